"""How well captions and answers agree with references."""
