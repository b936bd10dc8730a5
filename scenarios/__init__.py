"""Scenarios, one file each. To add one, copy ``server_reconstruct.py``."""
