"""Shadow models: their splits, training and signals."""
