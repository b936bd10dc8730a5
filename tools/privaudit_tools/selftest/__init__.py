"""Null and power checks of the installed version, for ``privaudit selftest``."""
