"""Parts of audits, one file each. To add one, copy ``source_inference.py``."""
