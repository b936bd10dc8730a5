"""Lower bounds on epsilon from canaries: what an audit can hold against a claim.

Two designs, with score types of their own, because neither's bounds hold for the other:
many independent runs with one canary each, and one run with many canaries.
"""
