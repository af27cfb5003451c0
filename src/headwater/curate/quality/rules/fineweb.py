"""The rules FineWeb adds (Penedo et al. 2024, arXiv 2406.17557, 3.6), with limits of our own for both."""

from __future__ import annotations

import numpy as np

from headwater.curate.quality.registry import at_least, at_most, rule
from headwater.curate.quality.statistics import CJK, Numbers, Statistics, ratio


@rule("fineweb.closed-lines", version=2, latin=at_least(0.05), cjk=at_least(0.05))
def closed_lines(s: Statistics) -> Numbers:
    """Share of lines that end as sentences do; in CJK text, where items of lists end without a mark, or that begin with
    a bullet. (FineWeb's 0.12 loses novels with hard line breaks.)"""
    closed = np.where(s.kinds == CJK, np.minimum(s.closed_lines + s.bullet_lines, s.lines), s.closed_lines)
    return s.many_lines(ratio(closed, s.lines))


@rule("fineweb.short-lines", version=1, latin=at_most(0.75), cjk=at_most(0.8))
def short_lines(s: Statistics) -> Numbers:
    """Share of lines of at most 30 characters, or 10 in CJK text."""
    return s.many_lines(ratio(np.where(s.kinds == CJK, s.lines_to_10, s.lines_to_30), s.lines))


@rule("fineweb.duplicate-line-characters", version=2, latin=at_most(0.35), cjk=at_most(0.35))
def duplicate_line_characters(s: Statistics) -> Numbers:
    """Share of characters in lines that stood before. (FineWeb's 0.01 loses most pages about programming.)"""
    return ratio(s.duplicate_line_characters, s.line_characters)


@rule("fineweb.lines", version=1, latin=at_most(0.3), cjk=at_most(0.3))
def lines(s: Statistics) -> Numbers:
    """Lines to words; blank lines do not count."""
    return s.many_lines(ratio(s.lines, s.words_worth))
