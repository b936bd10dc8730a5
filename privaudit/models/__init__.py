"""Frozen models behind one interface."""
