"""Text extraction: which texts can be drawn, word for word, out of a model?"""

from privaudit.auditing.scenario import SCENARIOS, Scenario
from privaudit_labs.extraction.extraction import Extraction

NAME = "text-extraction"


@SCENARIOS.register(NAME)
def text_extraction(shadows: int = 50) -> Scenario:
    """Somebody with a released model has it continue the beginnings of its records.

    The verdict compares how likely the rest of a text is drawn, for records that were
    trained on and for records of the same client that were not.

    Args:
        shadows: No attack of this scenario trains any.
    """
    return Scenario(
        name=NAME,
        question="Which texts does a released model write out when it is shown a part?",
        threat="released",
        attacks={"extraction": Extraction()},
        dominates=("black-box-labels",),
    )
