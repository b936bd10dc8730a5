"""Pictures with captions or questions."""
