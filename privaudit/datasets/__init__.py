"""Data sets by name, and how their records are dealt to clients."""
