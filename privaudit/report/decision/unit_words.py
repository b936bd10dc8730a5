"""Words for what an audit counts: single records, groups of them, or whole clients."""

from dataclasses import dataclass


@dataclass(frozen=True)
class UnitWords:
    """What has a coin of its own, as sentences name it.

    Attributes:
        kinds: What an attack separates, "members from non-members of a client".
        members: Those with a coin for training.
        records: In "too few records".
        one_of_each: What a bet is on.
        the_member: The one that was trained on.
        n_members: Behind the number of those with a coin for training.
        n_others: Behind the number of the others.
        tied: Behind the number of those with tied scores.
    """

    kinds: str = "members from non-members of a client"
    members: str = "members"
    records: str = "records"
    one_of_each: str = "one member and one non-member of a client"
    the_member: str = "the member"
    n_members: str = "members"
    n_others: str = "non-members"
    tied: str = "candidates are tied with another of the same client"


OF_RECORDS = UnitWords()
OF_GROUPS = UnitWords(
    records="groups of records that share a coin",
    one_of_each="one group of members and one of non-members, each of records that share "
    "a coin, of a client",
    the_member="the group of members",
    n_members="groups of members",
    n_others="groups of non-members",
    tied="groups of candidates are tied with another of the same client",
)
OF_CLIENTS = UnitWords(
    kinds="clients that took part from clients that did not",
    members="clients that took part",
    records="clients",
    one_of_each="one client of each kind",
    the_member="the one that took part",
    n_members="that took part",
    n_others="that did not",
    tied="clients are tied",
)
