"""Data sets, their partition among clients, and the member and non-member split."""
