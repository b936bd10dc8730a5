"""Surrogates of CLIP, made on the public part of a data set."""
