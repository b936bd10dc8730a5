"""Trainers, one file each. To add one, copy ``promptfl.py``."""
