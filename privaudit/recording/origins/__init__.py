"""What stands in the place of a trained run, by the origin that its header names."""
