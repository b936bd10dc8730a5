"""The transcript of a run, on disk, and what each adversary sees of it."""
