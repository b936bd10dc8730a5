"""Membership inference: the Attack protocol, signals, shadow models, audits."""
