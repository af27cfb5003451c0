"""The rules of C4 (Raffel et al. 2020, arXiv 1910.10683, 2.2) for whole documents; those for lines are part of cleaning
(`boilerplate`). Sentences end with Chinese marks too."""

from __future__ import annotations

import numpy as np

from headwater.curate.quality.registry import at_least, at_most, rule
from headwater.curate.quality.statistics import Numbers, Statistics, ratio


@rule("c4.sentences", version=2, latin=at_least(1))
def sentences(s: Statistics) -> Numbers:
    """Sentences, by their end marks, in texts of 200 words on. (C4 wants 5 in any; lists in Chinese have none.)"""
    return np.where(s.words_worth >= 200, s.sentences, np.nan)


@rule("c4.lorem-ipsum", version=1, latin=at_most(0), cjk=at_most(0))
def lorem_ipsum(s: Statistics) -> Numbers:
    """Times that "lorem ipsum" stands there."""
    return s.count("orem ipsum")


@rule("c4.braces", version=1, latin=at_most(0.2), cjk=at_most(0.2))
def braces(s: Statistics) -> Numbers:
    """Opening braces to words. (C4 drops every page with one, and so all about programming.)"""
    return ratio(s.braces, s.words_worth)


@rule("c4.longest-word", version=1, latin=at_most(1000), cjk=at_most(1000))
def longest_word(s: Statistics) -> Numbers:
    """Characters in the longest word."""
    return s.longest_word
