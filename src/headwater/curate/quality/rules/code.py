"""Rules for program code: StarCoder's (Li et al. 2023, arXiv 2305.06161, 3.1) and marks of generated files. Licence
headers are no reason to go."""

from __future__ import annotations

import re

import numpy as np

from headwater.curate.quality.registry import at_least, at_most, rule
from headwater.curate.quality.statistics import CODE, Numbers, Statistics, ratio

_HEAD_CHARACTERS = 1000
_GENERATED = re.compile(
    r"@generated\b|do not (?:edit|modify)|don'?t edit|auto-?generated|automatically generated|machine generated|"
    r"generated (?:by|from|file|automatically)|请勿(?:手动)?(?:修改|编辑)|自动生成",
    re.IGNORECASE,
)


@rule("code.longest-line", version=1, code=at_most(1000))
def longest_line(s: Statistics) -> Numbers:
    """Characters in the longest line."""
    return s.longest_line


@rule("code.line-length", version=1, code=at_most(100))
def line_length(s: Statistics) -> Numbers:
    """Mean characters in a line."""
    return ratio(s.line_characters, s.lines)


@rule("code.alphanumeric", version=1, code=at_least(0.25))
def alphanumeric(s: Statistics) -> Numbers:
    """Share of letters and digits among all characters."""
    return ratio(s.letters + s.digits + s.cjk, s.characters)


@rule("code.digits", version=1, code=at_most(0.5))
def digits(s: Statistics) -> Numbers:
    """Share of digits among characters that are no white space: tables of numbers."""
    return ratio(s.digits, s.visible)


@rule("code.generated", version=1, code=at_most(0))
def generated(s: Statistics) -> Numbers:
    """Lines at the beginning that say the file was generated or is not to be edited."""
    found = np.zeros(len(s))
    for number in np.flatnonzero(s.kinds == CODE).tolist():
        found[number] = len(_GENERATED.findall(s.texts[number][:_HEAD_CHARACTERS]))
    return found


@rule("code.length", version=1, code=at_least(3))
def length(s: Statistics) -> Numbers:
    """Units (words, numbers, names)."""
    return s.units
