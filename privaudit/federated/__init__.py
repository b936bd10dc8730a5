"""Federated training: Trainer, rounds, messages, transcript, threat models."""
