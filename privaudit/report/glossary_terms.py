"""The field's terms in plain words."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """One entry of the glossary.

    Attributes:
        key: Of its address on the page.
        title: As it is listed.
        words: How texts write it: a regular expression, in any case.
        meaning: In plain words.
    """

    key: str
    title: str
    words: str
    meaning: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """What finds it, as whole words."""
        return re.compile(rf"(?<![\w-])(?:{self.words})(?![\w-])", re.IGNORECASE)


TERMS = (
    Term(
        "accountant",
        "Accountant",
        "accountants?",
        "A computation that proves an ε for noise as it was added, over all rounds.",
    ),
    Term(
        "adjacency",
        "Adjacency",
        "adjacency|neighbours by",
        "Which two data sets a proof of privacy compares: “add/remove-one” differ in "
        "that a record is there or not.",
    ),
    Term(
        "advantage",
        "Advantage",
        "advantage",
        "True- less false-positive rate of the attack's guesses: 0 by chance, 1 at "
        "best.",
    ),
    Term(
        "attack",
        "Attack",
        "attacks?",
        "A rule that scores a record by what the adversary sees, higher for “was "
        "trained on”. It never sees the truth: scores and truth meet in the audit.",
    ),
    Term(
        "auroc",
        "AUROC",
        "AUROCs?",
        "The chance that the attack gives a random member a higher score than a random "
        "non-member of the same client. 0.5 is a coin toss, 1 never errs. It is "
        "measured within each client and then averaged, since scores of different "
        "clients come from different models and cannot be compared.",
    ),
    Term(
        "canary",
        "Canary",
        "canary|canaries",
        "A record that is put in or left out by a coin, to see whether the model gives "
        "it away. Each canary is in or out by a coin of its own: if so many coins are "
        "guessed rightly, ε cannot be smaller than the bound. Some are made easy to "
        "notice, and the page says which.",
    ),
    Term(
        "ceiling",
        "Ceiling",
        "ceiling",
        "The most that a bound could have shown with so few records, had every guess "
        "been right. A claim beyond it was not tested.",
    ),
    Term(
        "claim-verdict",
        "REFUTED, NOT REFUTED, UNDERPOWERED, UNTESTABLE",
        "(?:NOT )?REFUTED|UNTESTABLE",
        "Of a claimed ε. REFUTED: the bound is above the claim. NOT REFUTED: it is "
        "not, and could have been; that proves nothing for the claim. UNDERPOWERED: "
        "the ceiling is not above the claim, so nothing was tested. UNTESTABLE: "
        "nothing is claimed that this bound could speak about. A bound above what is "
        "certified means that the accountant or the implementation is wrong.",
    ),
    Term(
        "dominated",
        "Dominated, Pareto front",
        "dominated|Pareto|front of the means",
        "A setting is dominated if another leaks less, or is more use, beyond the "
        "margin, and is not worse beyond the margin in the other. Here that is "
        "decided by a test over seeds, not by the points; settings that nothing "
        "dominates need not be the best.",
    ),
    Term(
        "epsilon",
        "ε (epsilon): claimed, certified, empirical",
        "ε(?: claimed| certified)?|epsilon",
        "An upper bound on what anybody could learn about one record: the smaller, the "
        "better; 0 is nothing, “none” is no bound at all. Claimed: by the method's own "
        "formula. Certified: proved by an accountant for the noise as it was added, "
        "against this adversary; the same noise may protect against one adversary and "
        "not against another, since whoever adds the noise sees what it hides. "
        "Empirical, or shown: a bound from below, from what an attack guessed.",
    ),
    Term(
        "federated",
        "Client, server, round",
        "clients?|federated",
        "Clients train together without sending records: in each round the server "
        "sends what all share, clients train it on their own records and send back "
        "what changed.",
    ),
    Term(
        "grid",
        "MaxRényi-K %, order",
        "MaxRényi(?:-K)?|Rényi|max-renyi",
        "How unsure a model is of the next token, where it is least sure: the mean of "
        "the K % largest entropies of a slice (0 %: the largest alone). Records that a "
        "model is sure about look trained on. The order says how much unlikely words "
        "count (½: much; ∞: not at all). Slices: the picture's tokens, or the "
        "description's.",
    ),
    Term(
        "headline",
        "Named beforehand",
        "named beforehand|headline",
        "The verdict is about the one attack that the scenario named before any score "
        "was seen. The best of several attacks, picked afterwards, would look "
        "better than it is. Where another one shows a leak even when corrected for "
        "their number, the verdict stands, and the page says so beside it.",
    ),
    Term(
        "holm",
        "Holm's method, corrected",
        "Holm(?:'s method|-corrected)?|corrected",
        "Of many numbers some stand out by chance. Holm's method asks more of each the "
        "more there are, so that where there is nothing to find, at most one page in "
        "twenty names any of them.",
    ),
    Term(
        "interval",
        "Interval, n",
        "intervals?|confidence|in brackets",
        "With other records of the same clients the number would have been another; "
        "the interval covers the true value in 95 of 100 such cases. n: how many "
        "records it is from, as members + non-members. “Other clients” takes each "
        "client as one observation and so asks more: it needs many clients. One run is "
        "one draw of partition, membership and noise: intervals of one run do not say "
        "what another seed would give, and a claim about a training method needs "
        "several.",
    ),
    Term(
        "mechanism",
        "Mechanism, clip norm, noise multiplier",
        "mechanisms?|clip norm|noise multiplier",
        "How noise is added: what is sent is cut to a length (the clip norm), and "
        "noise of so many times that length (the multiplier) is added.",
    ),
    Term(
        "member",
        "Member, non-member",
        "members?|non-members?|trained on",
        "Each client holds candidate records. A fair coin made each of them a member "
        "(trained on) or not, so both sorts come from one distribution and differ in "
        "nothing but having been trained on.",
    ),
    Term(
        "metrics",
        "ROUGE-L, BLEU, CIDEr-D, F1, exact match",
        "ROUGE-L|BLEU(?:-\\d)?|CIDEr-D|F1|exact match",
        "How far captions agree with people's: ROUGE-L by words in common and in "
        "order, BLEU-n by runs of n words (both 0 to 1), CIDEr-D by runs of words that "
        "are rare elsewhere (0 to 10). F1: of short answers, by words in common (0 to "
        "1). Exact match: the share of questions answered with exactly the right "
        "choice or words.",
    ),
    Term(
        "own",
        "Own classes, others' classes",
        "own classes",
        "A client trains on some classes more than on others. Own: test records of the "
        "classes it has. Others': of those that only other clients have.",
    ),
    Term(
        "rebuilt",
        "Rebuilt model",
        "rebuilt|rebuilds?|rebuilding",
        "The best model of a client that an adversary can put together from what it "
        "sees and knows of the method. An attack questions that one, not the true one.",
    ),
    Term(
        "roc",
        "ROC curve",
        "ROC",
        "How many members are found (up) at the price of how many false accusations "
        "(right), for every threshold of the attack's scores.",
    ),
    Term(
        "scenario",
        "Scenario, threat model",
        "scenario|threat model|adversary",
        "Who looks on, what it sees of all that is sent, and which attacks are tried. "
        "A leak is found against one adversary: somebody who sees more may learn more.",
    ),
    Term(
        "shadow",
        "Shadow model",
        "shadow(?: models?)?",
        "A model that the adversary trains itself, the way the clients do, on records "
        "whose membership it knows: from many of them it learns how members look.",
    ),
    Term(
        "success",
        "Success rate, threshold",
        "success rates?|attack success|threshold",
        "The share of right guesses “was trained on” or “was not” (0.5 by chance), "
        "averaged over classes. The threshold that makes guesses of scores was fixed "
        "on the adversary's own models or records, never on the truth.",
    ),
    Term(
        "server-model",
        "Server's own model",
        "server's (?:own )?model",
        "The average of what clients sent; a client's is the best that the adversary "
        "can rebuild. The same attack asks both about the same records.",
    ),
    Term(
        "tpr",
        "TPR at FPR",
        "TPR(?: at FPR)?|true-positive rate|false-positive rate",
        "The share of members that are found (true-positive rate) while at most that "
        "share of non-members is accused (false-positive rate). A rate is unresolved "
        "where there are fewer than 10 ÷ FPR non-members: the number would rest on a "
        "handful of records.",
    ),
    Term(
        "verdict",
        "Leaks, reversed, no leak found, undecided",
        "leaks|leak|reversed|no leak found|undecided|underpowered|cannot be decided",
        "“Leaks”: the whole interval lies above 0.5; of runs that cannot leak, at most "
        "one in forty is called so. “Reversed”: the whole interval lies below 0.5, so "
        "that low scores mark members; by chance as seldom. “No leak found”: neither, "
        "and a leak beyond the margin named in the evidence would have shown. "
        "“Undecided”: there are too few records to say. It is no all-clear.",
    ),
    Term(
        "when",
        "When, whose",
        "When\\.|first above 0\\.5 in round|no round can be named|Whose\\.",
        "A round's uploads alone are scored by whether they point along a record's "
        "gradient; any other attack is made on the clients as they could be rebuilt "
        "from all uploads so far. A round is named only if its AUROC lies above 0.5 "
        "when corrected for the number of rounds; it may have leaked earlier. Whose: "
        "an adversary who knows that somebody trained on a record names the client "
        "whose model likes it best. The class alone says much of that, so the same "
        "guess is made of candidates that nobody trained on; only the difference is a "
        "leak.",
    ),
    Term(
        "zero-shot",
        "Zero-shot, untrained model",
        "zero-shot|untrained",
        "The frozen model as it comes, before anybody trained anything.",
    ),
)
"""In the order of their keys; a page lists those it uses by title."""
