"""A secure sum by pairwise masks, with dropout recovery, simulated in one process.

Source: Bonawitz et al., "Practical secure aggregation for privacy-preserving machine
learning", CCS 2017, figure 4, with the signatures and the consistency round of its
active-server variant.
"""
