"""Attacks, one file each. To add one, copy ``loss_threshold.py``."""

from privaudit.core.registry import import_under_one_name

import_under_one_name(__name__)
