"""What results say in words: sentences with blanks, known by what they are about.

A result's file holds sentences for people to read. Whether one is of phrases that code
has registered here, with numbers or known words in their blanks, can be asked: then no
user, record or path has put anything there.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from string import Formatter

_NUMBER = r"[0-9.e+-]+|nan|inf"
_LONGEST = 2000  # letters of a text that is looked at
_PATTERNS: dict[str, list[str]] = defaultdict(list)


def phrase(about: str, template: str, **words: Sequence[str]) -> str:
    """Register a phrase, and return it, to be filled in by ``str.format``.

    Args:
        about: What its sentences are about, such as "method".
        template: Fixed words, and blanks in braces. What a blank holds is written into
            it as text: numbers, or one of the words.
        words: Of a blank that takes no number: what it may hold.

    Example:
        >>> TPR = phrase("doctest", "TPR at FPR {fpr}")
        >>> text = TPR.format(fpr=0.01)
        >>> is_phrase("doctest", text), is_phrase("doctest", "TPR at /home/ann")
        (True, False)
    """
    pattern = ""
    for fixed, blank, _, _ in Formatter().parse(template):
        pattern += re.escape(fixed)
        if blank is not None:
            known = "|".join(map(re.escape, words.get(blank, ()))) or _NUMBER
            pattern += f"(?:{known})"
    _PATTERNS[about].append(pattern)
    return template


def is_phrase(about: str, text: str) -> bool:
    """Say whether a text is one registered phrase or several, joined by semicolons."""
    one = f"(?:{'|'.join(_PATTERNS[about])})"
    known = rf"{one}(?:(?:; )?{one})*"
    return len(text) <= _LONGEST and bool(re.fullmatch(known, text, re.ASCII))
