"""Trainers, one file each. To add one, copy ``promptfl.py``."""

from privaudit.core.registry import import_under_one_name

import_under_one_name(__name__)
