"""Attacks, one file each. To add one, copy ``loss_threshold.py``."""
