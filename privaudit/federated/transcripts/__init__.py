"""What every party of a federated run sent, on disk, and what each adversary sees."""
