"""Runs: configuration, population, ledger, training, and their folder."""
