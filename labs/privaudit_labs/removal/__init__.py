"""Training without the most exposed records: ``privaudit retrain``."""
