"""Numbers with uncertainty: ROC curves, intervals, comparisons, epsilon bounds."""
