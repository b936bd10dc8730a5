"""The field's terms, defined for a reader of the report."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """One entry of the glossary.

    Attributes:
        key: Its anchor on the page.
        title: Its heading in the glossary.
        words: How texts write it: a regular expression, case-insensitive.
        meaning: Its definition.
    """

    key: str
    title: str
    words: str
    meaning: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """A regular expression that finds it as whole words."""
        return re.compile(rf"(?<![\w-])(?:{self.words})(?![\w-])", re.IGNORECASE)


TERMS = (
    Term(
        "accountant",
        "Accountant",
        "accountants?",
        "A method that proves an ε for the noise as applied, composed over all rounds.",
    ),
    Term(
        "adjacency",
        "Adjacency",
        "adjacency|neighbours by",
        "Which pairs of data sets a DP guarantee compares. “add/remove-one”: they "
        "differ by the presence of one record.",
    ),
    Term(
        "advantage",
        "Advantage",
        "advantage",
        "True-positive rate minus false-positive rate of the attack's guesses: 0 by "
        "chance, 1 at best.",
    ),
    Term(
        "attack",
        "Attack",
        "attacks?",
        "A membership inference attack: a rule that scores a record from what the "
        "adversary sees, higher for “member”. It has no access to the true "
        "membership, which is joined with the scores afterwards.",
    ),
    Term(
        "auroc",
        "AUROC",
        "AUROCs?",
        "Probability that the attack scores a random member above a random non-member "
        "of the same client: 0.5 is random guessing, 1 is perfect. Computed within "
        "each client and averaged, because scores of different clients come from "
        "different models and are not comparable.",
    ),
    Term(
        "canary",
        "Canary",
        "canary|canaries",
        "A record inserted or left out by a fair coin, to test whether the model "
        "reveals it. If an attack guesses that many coins right, ε cannot be below "
        "the bound. Some canaries are crafted to be easy to detect; the page says "
        "which.",
    ),
    Term(
        "ceiling",
        "Ceiling",
        "ceiling",
        "The largest lower bound possible with this many records, if every guess were "
        "right. A claim above the ceiling was not tested.",
    ),
    Term(
        "claim-verdict",
        "REFUTED, NOT REFUTED, UNDERPOWERED, UNTESTABLE",
        "(?:NOT )?REFUTED|UNTESTABLE",
        "Verdict on a claimed ε. REFUTED: the lower bound is above the claim. NOT "
        "REFUTED: it is not, although it could have been; this does not prove the "
        "claim. UNDERPOWERED: the ceiling is not above the claim, so nothing was "
        "tested. UNTESTABLE: there is no claim that this bound applies to. A bound "
        "above the certified ε means that the accountant or the implementation is "
        "wrong.",
    ),
    Term(
        "dominated",
        "Dominated, Pareto front",
        "dominated|Pareto|front of the means",
        "A setting is dominated if another has less leakage or more utility, beyond "
        "the margin, and is not worse beyond the margin in the other. This is decided "
        "by a test over seeds, not by the point estimates. Settings that are not "
        "dominated need not be the best.",
    ),
    Term(
        "epsilon",
        "ε (epsilon): claimed, certified, empirical",
        "ε(?: claimed| certified)?|epsilon",
        "Privacy budget of differential privacy: an upper bound on what anyone can "
        "learn about one record. Smaller is better; 0 reveals nothing, “none” is no "
        "bound. Claimed: by the method's own formula. Certified: proved by an "
        "accountant for the noise as applied, against this adversary; whoever adds "
        "the noise also sees the values before noise. Declared: the same number for "
        "noise that nothing here applied; no proof. Empirical, or shown: a lower "
        "bound from an attack's guesses.",
    ),
    Term(
        "federated",
        "Client, server, round",
        "clients?|federated",
        "In federated learning clients train together without sharing records. In "
        "each round the server broadcasts the shared parameters; clients train them "
        "on their own records and send updates.",
    ),
    Term(
        "grid",
        "MaxRényi-K %, order",
        "MaxRényi(?:-K)?|Rényi|max-renyi",
        "An attack on the model's uncertainty about the next token: the mean of the K "
        "% largest Rényi entropies of a slice (0 %: the maximum). Low entropy "
        "suggests a member. The order sets the weight of unlikely tokens (½: much; ∞: "
        "none). Slices: the image's tokens, or the description's.",
    ),
    Term(
        "headline",
        "Named beforehand",
        "named beforehand|headline",
        "The verdict is about the one attack that the scenario named before any score "
        "was computed. The best of several attacks, picked afterwards, would look "
        "better than it is. If another attack shows a leak after correction for "
        "multiple testing, the page reports it beside the verdict.",
    ),
    Term(
        "holm",
        "Holm's method, corrected",
        "Holm(?:'s method|-corrected)?|corrected",
        "Correction for multiple testing: with many tests some are significant by "
        "chance. Holm's method keeps the probability of any false alarm on a page at "
        "5 % or less.",
    ),
    Term(
        "interval",
        "Interval, n",
        "intervals?|confidence|in brackets",
        "Confidence interval: it covers the true value in 95 of 100 draws of other "
        "records of the same clients. n: number of members + non-members. “Other "
        "clients”: each client is one observation, so many clients are needed. One "
        "run is one draw of partition, membership and noise. Its intervals do not "
        "cover other seeds: a claim about a training method needs several seeds.",
    ),
    Term(
        "mechanism",
        "Mechanism, clip norm, noise multiplier",
        "mechanisms?|clip norm|noise multiplier",
        "How noise is added: vectors are clipped to an L2 norm (the clip norm), and "
        "Gaussian noise is added whose standard deviation is the noise multiplier "
        "times that norm.",
    ),
    Term(
        "member",
        "Member, non-member",
        "members?|non-members?|trained on",
        "Each client has candidate records. A fair coin makes each of them a member "
        "(trained on) or a non-member, so both come from one distribution and differ "
        "only in membership.",
    ),
    Term(
        "metrics",
        "ROUGE-L, BLEU, CIDEr-D, F1, exact match",
        "ROUGE-L|BLEU(?:-\\d)?|CIDEr-D|F1|exact match",
        "Similarity of generated text to the reference text. ROUGE-L: longest common "
        "subsequence; BLEU-n: matching n-grams (both 0 to 1); CIDEr-D: n-grams "
        "weighted by TF-IDF (0 to 10). F1: token overlap of short answers (0 to 1). "
        "Exact match: share of answers that equal the reference.",
    ),
    Term(
        "own",
        "Own classes, others' classes",
        "own classes",
        "The partition gives each client more of some classes. Own: test records of "
        "the classes that a client has. Others': test records of classes that only "
        "other clients have.",
    ),
    Term(
        "reconstructed",
        "Reconstructed model",
        "reconstructed|reconstructs?|reconstruction",
        "The best approximation of a client's model that the adversary can build from "
        "what it sees and knows of the method. Attacks query this model, not the true "
        "one.",
    ),
    Term(
        "roc",
        "ROC curve",
        "ROC",
        "True-positive rate (up) against false-positive rate (right), over all "
        "thresholds on the attack's scores.",
    ),
    Term(
        "scenario",
        "Scenario, threat model",
        "scenario|threat model|adversary",
        "Who the adversary is, which messages it sees, and which attacks it runs. A "
        "result holds for one adversary: another that sees more may learn more.",
    ),
    Term(
        "shadow",
        "Shadow model",
        "shadow(?: models?)?",
        "A model that the adversary trains as the clients do, on records whose "
        "membership it knows, to learn how scores of members and non-members differ.",
    ),
    Term(
        "success",
        "Success rate, threshold",
        "success rates?|attack success|threshold",
        "Share of correct guesses “member” or “non-member” (0.5 by chance), averaged "
        "over classes. The threshold is calibrated on the adversary's own models or "
        "records, never on the true membership.",
    ),
    Term(
        "server-model",
        "Server's own model",
        "server's (?:own )?model",
        "The average of the clients' updates. A client's model is the best that the "
        "adversary can reconstruct. The same attack is run on both, on the same "
        "records.",
    ),
    Term(
        "tpr",
        "TPR at FPR",
        "TPR(?: at FPR)?|true-positive rate|false-positive rate",
        "The share of members detected (true-positive rate) when at most that share "
        "of non-members is falsely accused (false-positive rate). Unresolved with "
        "fewer than 10 ÷ FPR non-members: the number would rest on a few records.",
    ),
    Term(
        "verdict",
        "Leaks, separates with the sign turned, no leak found, underpowered, no verdict",
        "leaks|leak|separated? with the sign turned|sign turned|no leak found|"
        "underpowered|cannot be decided|no verdict|without a verdict",
        "“Leaks”: the whole interval is above 0.5; this happens for at most one in 40 "
        "runs that cannot leak. “Separates, sign turned”: the whole interval is below "
        "0.5, so low scores mark members; as rare by chance. “No leak found”: neither, and the "
        "test had the power to detect a leak beyond the margin in the evidence. "
        "“Underpowered”: too few records to decide; not evidence of safety. “No verdict”: "
        "nobody declares that a fair coin chose the members, so that a difference may "
        "be one of the data.",
    ),
    Term(
        "when",
        "Leakage by round, source inference",
        "By round\\.|first above 0\\.5 in round|no round can be named|Source inference\\.",
        "Leakage by round: one attack scores each round's uploads alone by their "
        "alignment with a record's gradient; the others attack the clients as "
        "reconstructed from all uploads so far. A round is named only if its AUROC is "
        "above 0.5 after correction for the number of rounds; it may have leaked "
        "earlier. Source inference: an adversary who knows that some client trained "
        "on a record guesses the client whose model fits it best. The class alone "
        "reveals much of that, so the same guess is made for candidates that no "
        "client trained on; only the difference is a leak.",
    ),
    Term(
        "zero-shot",
        "Zero-shot, untrained model",
        "zero-shot|untrained",
        "The frozen model before any fine-tuning.",
    ),
)
"""In the order of their keys; a page lists those it uses by title."""
