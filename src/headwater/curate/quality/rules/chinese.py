"""Rules of Chinese web corpora: ChineseWebText (arXiv 2311.01149, EvalWeb), WuDao and MNBVC."""

from __future__ import annotations

from headwater.curate.quality.registry import at_least, rule
from headwater.curate.quality.statistics import Numbers, Statistics, ratio


@rule("chinese.share", version=1, cjk=at_least(0.15))
def share(s: Statistics) -> Numbers:
    """Share of CJK characters among characters that are no white space. (EvalWeb's 0.3 loses technical prose.)"""
    return ratio(s.cjk, s.visible)


@rule("chinese.line-length", version=1, cjk=at_least(5))
def line_length(s: Statistics) -> Numbers:
    """Mean characters in a line."""
    return ratio(s.line_characters, s.lines)
