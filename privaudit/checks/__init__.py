"""What holds a run to account: gate, lint, selftest, DP claims."""
