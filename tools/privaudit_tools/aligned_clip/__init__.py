"""Stand-ins for CLIP: a pretrained text encoder and embeddings, joined by one linear map."""
