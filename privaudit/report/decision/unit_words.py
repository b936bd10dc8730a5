"""Words for what an audit counts, where that is not single records."""

OF_CLIENTS = (
    (
        "members from non-members of a client",
        "clients that took part from clients that did not",
    ),
    (" members + ", " that took part + "),
    ("non-members;", "that did not;"),
    ("members have the lower ones", "clients that took part have the lower ones"),
    ("too few records", "too few clients"),
    ("one member and one non-member of a client", "one client of each kind"),
    ("identifies the member", "identifies the one that took part"),
    ("candidates are tied with another of the same client", "clients are tied"),
)
"""What is said of records, and in its place of whole clients."""
OF_GROUPS = (
    (
        "one member and one non-member of a client",
        "one group of members and one of non-members, each of records that share a "
        "coin, of a client",
    ),
    ("identifies the member ", "identifies the group of members "),
    (" members + ", " groups of members + "),
    ("non-members;", "groups of non-members;"),
    ("too few records", "too few groups of records that share a coin"),
    ("candidates are tied", "groups of candidates are tied"),
)
"""What is said of records, and in its place of groups of them."""
