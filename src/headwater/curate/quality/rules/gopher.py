"""The rules of Gopher (Rae et al. 2021, arXiv 2112.11446, A1.1), as datatrove states them, and what answers to them in
Chinese, Japanese and Korean.

Lengths are in words, 1.6 CJK characters counting as one. Repeated passages are 2 to 10 words, or the 3 to 16 CJK
characters that hold as many. Here every character in a passage that stood before counts, where datatrove steps over
some, and scores are higher: the limits leave 99 % of English novels, papers and posts, and of Chinese statutes, novels
and abstracts. Shares of lines are asked of texts with at least 5 lines.
"""

from __future__ import annotations

import numpy as np

from headwater.curate.quality.registry import Limits, at_least, at_most, between, rule
from headwater.curate.quality.statistics import Numbers, Statistics, ratio


@rule("gopher.length", version=1, latin=at_least(10), cjk=at_least(6))
def length(s: Statistics) -> Numbers:
    """Length in words. (Gopher wants 50 to 100,000: that loses every poem, definition and book.)"""
    return s.words_worth


@rule("gopher.word-length", version=1, latin=between(3, 10))
def word_length(s: Statistics) -> Numbers:
    """Mean characters in a word."""
    return ratio(s.word_characters, s.words)


@rule("gopher.hash-signs", version=1, latin=at_most(0.1), cjk=at_most(0.1))
def hash_signs(s: Statistics) -> Numbers:
    """Hash signs to words, those that begin a line (headings) apart."""
    return ratio(s.hash_signs, s.words_worth)


@rule("gopher.ellipses", version=1, latin=at_most(0.1), cjk=at_most(0.1))
def ellipses(s: Statistics) -> Numbers:
    """Ellipses to words."""
    return ratio(s.ellipses, s.words_worth)


@rule("gopher.bullet-lines", version=1, latin=at_most(0.95), cjk=at_most(0.95))
def bullet_lines(s: Statistics) -> Numbers:
    """Share of lines that begin with a bullet."""
    return s.many_lines(ratio(s.bullet_lines, s.lines))


@rule("gopher.ellipsis-lines", version=1, latin=at_most(0.3), cjk=at_most(0.3))
def ellipsis_lines(s: Statistics) -> Numbers:
    """Share of lines that end with an ellipsis."""
    return s.many_lines(ratio(s.ellipsis_lines, s.lines))


@rule("gopher.alphabetic", version=1, latin=at_least(0.75), cjk=at_least(0.7))
def alphabetic(s: Statistics) -> Numbers:
    """Share of words with a letter in them; CJK characters count as words have them."""
    return ratio(s.alphabetic_words + s.cjk / 1.6, s.words_worth)


@rule("gopher.stop-words", version=1, latin=at_least(2), cjk=at_least(2))
def stop_words(s: Statistics) -> Numbers:
    """Different frequent words (the, be, of, der, la ...) or characters (的, 一, 是 ...), in texts of 50 words on."""
    return np.where(s.words_worth >= 50, s.stop_words + s.stop_characters, np.nan)


@rule("gopher.duplicate-lines", version=2, latin=at_most(0.6), cjk=at_most(0.6))
def duplicate_lines(s: Statistics) -> Numbers:
    """Share of lines that stood before. (Gopher's 0.3 loses references, whose entries have the same short labels.)"""
    return s.many_lines(ratio(s.duplicate_lines, s.lines))


@rule("gopher.duplicate-line-characters", version=2, latin=at_most(0.35), cjk=at_most(0.35))
def duplicate_line_characters(s: Statistics) -> Numbers:
    """Share of characters in lines that stood before. (Gopher's 0.2 loses manuals that show commands again.)"""
    return ratio(s.duplicate_line_characters, s.line_characters)


@rule("gopher.duplicate-paragraphs", version=2, latin=at_most(0.5), cjk=at_most(0.5))
def duplicate_paragraphs(s: Statistics) -> Numbers:
    """Share of paragraphs that stood before. (Gopher's 0.3 loses manuals; what repeats much text goes by its
    characters.)"""
    return ratio(s.duplicate_paragraphs, s.paragraphs)


@rule("gopher.duplicate-paragraph-characters", version=2, latin=at_most(0.3), cjk=at_most(0.3))
def duplicate_paragraph_characters(s: Statistics) -> Numbers:
    """Share of characters in paragraphs that stood before. (Gopher's 0.2 loses manuals that show commands again.)"""
    return ratio(s.duplicate_paragraph_characters, s.line_characters)


def _passages(column: str, says: str, latin: Limits, cjk: Limits) -> None:
    """A rule on one of the columns about repetition."""

    def score(s: Statistics) -> Numbers:
        values: Numbers = getattr(s, column)
        return values

    score.__doc__ = says
    rule(f"gopher.{column.replace('_', '-')}", version=1, latin=latin, cjk=cjk)(score)


for _width, _latin, _cjk in ((2, 0.20, 0.28), (3, 0.18, 0.28), (4, 0.16, 0.28)):
    _passages(
        f"top_{_width}", f"Share of characters in the most frequent {_width} words in a row.",
        at_most(_latin), at_most(_cjk),
    )  # fmt: skip

for _width, _latin, _cjk in (
    (5, 0.40, 0.50), (6, 0.36, 0.46), (7, 0.33, 0.42), (8, 0.30, 0.39), (9, 0.27, 0.36), (10, 0.25, 0.33),
):  # fmt: skip
    _passages(
        f"repeated_{_width}", f"Share of characters in {_width} words in a row that stood before.",
        at_most(_latin), at_most(_cjk),
    )  # fmt: skip
