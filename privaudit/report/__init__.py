"""The report of an audit: one HTML page, its figures."""
