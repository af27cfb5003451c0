"""Rules for any prose: what no reader could read."""

from __future__ import annotations

import numpy as np

from headwater.curate.quality.registry import at_most, rule
from headwater.curate.quality.statistics import Numbers, Statistics, ratio


@rule("text.garbled", version=1, latin=at_most(0.01), cjk=at_most(0.01))
def garbled(s: Statistics) -> Numbers:
    """Share of characters lost to wrong decoding, U+FFFD and 锟斤拷, if there are more than 10."""
    lost = s.replacements + 3 * s.count("锟斤拷")
    return ratio(np.where(lost > 10, lost, 0), s.visible)


@rule("text.longest-run", version=1, latin=at_most(300), cjk=at_most(300))
def longest_run(s: Statistics) -> Numbers:
    """Times that one character stands in a row."""
    return s.longest_run
