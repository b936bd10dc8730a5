"""How many records a client trained on, by the rank of what it sent."""
