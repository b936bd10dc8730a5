"""What attacks read of a model: class probabilities and token statistics."""
