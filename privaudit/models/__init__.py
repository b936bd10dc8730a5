"""The audited models: open_clip towers behind a prompt, and the embedded weights."""
