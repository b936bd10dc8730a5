"""Tokenizer of tiny-clip: the words of its captions, and characters."""

from privaudit.models.clip.word_tokenizer import WordTokenizer, vocabulary_of

CONTEXT_LENGTH = 32
WORDS = """
again also an and arrow at background black blue brown by can capital checked circle
class clearly close coarse cross cyan diamond digit dotted drawing eight example
fading five for four green grey hand handwritten heart here image in is it just kind
letter look moon nine noisy now number of on one only orange photo picture pink
plain printed purple red ring scan scanned see seven shows sign six small some
square star striped symbol that the there thing this three triangle two type very
was we well white with written yellow you zero
"""
"""Of the captions that the weights were trained on, in privaudit_tools.pretraining."""


class TinyTokenizer(WordTokenizer):
    """Turns texts into the token numbers of ``tiny-clip``.

    Example:
        >>> tokenizer = TinyTokenizer()
        >>> len(tokenizer.encode("a photo of the digit five."))
        7
        >>> tokenizer("five").shape
        torch.Size([1, 32])
    """

    def __init__(self) -> None:
        super().__init__(vocabulary_of([WORDS]), CONTEXT_LENGTH)
