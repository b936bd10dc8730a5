"""Differential privacy: clipping, noise, accountants, certificates per view."""
