"""A run on disk: its configuration, folder, membership ledger and utility."""
