"""What the prompt trainers share: each file is one piece of them."""
