"""Vision-language models of transformers, by what they can do and not by name."""
