"""Two runs held side by side."""
