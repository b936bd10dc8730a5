"""Parts of an audit: leakage by round, linkage, source inference, one-run bounds."""
