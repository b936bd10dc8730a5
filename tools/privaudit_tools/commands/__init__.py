"""Commands that the tools add to ``privaudit``."""
