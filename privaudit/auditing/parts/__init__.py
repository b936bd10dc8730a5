"""Parts of audits, one file each. To add one, copy ``server_model.py``."""
