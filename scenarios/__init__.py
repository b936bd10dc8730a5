"""Scenarios, one file each. To add one, copy ``server_reconstruct.py``."""

from privaudit.core.registry import import_under_one_name

import_under_one_name(__name__)

IN_LABS = ("client-profile", "server-invert", "text-extraction")
