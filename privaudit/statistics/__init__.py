"""What may be claimed from scores: estimates, ROC figures, comparisons."""
