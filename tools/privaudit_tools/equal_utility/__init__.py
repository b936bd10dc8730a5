"""Methods by what they leak at equal utility, held against stopping early."""
