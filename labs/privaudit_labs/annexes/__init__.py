"""Annexes to an assessment, in the words of who asks: ``privaudit annex``."""
