"""Differential privacy and secure aggregation: noise, accountants, certificates."""
