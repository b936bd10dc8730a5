"""Estimates of epsilon that assume Gaussian noise: they inform, and refute nothing."""
