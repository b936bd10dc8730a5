"""Experimental audits, added to privaudit by entry points: none decides a verdict."""
