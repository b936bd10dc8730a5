"""Audits as files."""
