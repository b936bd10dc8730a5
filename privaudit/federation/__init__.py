"""The federation: the Trainer protocol, rounds, messages, transcript, threat models."""
