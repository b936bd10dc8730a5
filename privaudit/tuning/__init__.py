"""Local training that trainers share."""
