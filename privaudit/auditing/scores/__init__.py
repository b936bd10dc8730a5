"""Audits of scores that somebody else computed: no model, no record, no transcript."""
