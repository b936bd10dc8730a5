"""Distribution shift or membership, against foreign non-members: ``privaudit shift``."""
