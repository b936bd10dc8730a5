"""What a run costs its clients, and how evenly it serves them: ``privaudit costs``."""
