"""Federations that others train: the coin before, the record, and their runs."""
