"""Runs that were not trained here, by the origin that their header names."""
