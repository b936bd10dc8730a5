"""Models that generate text, with or without pictures."""
