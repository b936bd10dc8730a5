"""Low-rank changes to a frozen language model: what the LoRA trainers share."""
