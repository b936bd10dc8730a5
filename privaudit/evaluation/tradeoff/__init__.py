"""Sweeps over methods and epsilons."""
