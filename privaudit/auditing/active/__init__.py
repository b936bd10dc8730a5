"""An adversary who sends, and not only looks."""
