"""What a server reads of records out of uploads: the scenario ``server-invert``."""
