"""Small models that stand in for CLIP where its weights cannot be had."""
