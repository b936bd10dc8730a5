"""Words and texts of a batch, read off how a text model's weights moved."""
