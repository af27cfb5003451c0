"""Scores computed again in plain Python, and how sure a share from a sample is.

Written from the descriptions of the rules, not from the compiled kernels, and on the units themselves instead of their
hashes: an audit that used the same code would repeat its mistakes.

    overlap("the cat sat on the mat today", "the cat sat on the mat")     # 0.666...
    wilson(0, 200)                                                        # (0.0, 0.0188...)
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable

from headwater.core.units import APOSTROPHE, DIGIT, HAN, HANGUL, JOINER, LATIN, LETTER, MARK, POINT, class_table
from headwater.curate.dedup.folding import traditional_pairs

_LETTERS = (LATIN, LETTER)
_WORD = (*_LETTERS, DIGIT, JOINER)
_Z = 1.959963984540054  # of 95 %


def fold(character: str) -> str:
    """Case and width folded; one character in, one out."""
    point = ord(character)
    if 0xF900 <= point <= 0xFAFF or 0xFF01 <= point <= 0xFFEE or 0x2F800 <= point <= 0x2FA1D:
        plain = unicodedata.normalize("NFKC", character)
        character = plain if len(plain) == 1 else character
    lowered = character.lower()
    return "'" if character == "’" else lowered if len(lowered) == 1 else character


def folder(simplify: bool) -> Callable[[str], str]:
    """`fold`, and traditional characters to simplified ones if asked."""
    if not simplify:
        return fold
    simplified = dict(zip(*traditional_pairs(), strict=True))
    return lambda character: simplified.get(fold(character), fold(character))


def units(text: str, simplify: bool = False) -> list[tuple[str, int, int]]:
    """(folded unit, start, end) in characters: CJK characters, words and numbers."""
    folded = folder(simplify)
    table = class_table()
    kinds = [int(table[ord(character)]) for character in text]
    found: list[tuple[str, int, int]] = []
    at = 0
    while at < len(text):
        if HAN <= kinds[at] <= HANGUL:
            found.append((folded(text[at]), at, at + 1))
            at += 1
            continue
        if kinds[at] not in _WORD:
            at += 1
            continue
        end = at
        while end < len(text):
            after = kinds[end + 1] if end + 1 < len(text) else -1
            before = kinds[end - 1] if end else -1
            goes_on = (
                kinds[end] in _WORD
                or (kinds[end] == MARK and before in (*_LETTERS, MARK))
                or (kinds[end] == APOSTROPHE and before in _LETTERS and after in _LETTERS)
                or (kinds[end] == POINT and before == DIGIT and after == DIGIT)
            )
            if not goes_on:
                break
            end += 1
        found.append(("".join(folded(character) for character in text[at:end] if character != "_"), at, end))
        at = end
    return found


def words(text: str, simplify: bool = False) -> list[str]:
    """The folded units of a text."""
    return [unit for unit, _, _ in units(text, simplify)]


def _shingles(found: list[str], width: int) -> set[tuple[str, ...]]:
    return {tuple(found[at : at + width]) for at in range(len(found) - width + 1)}


def overlap(removed: str, kept: str, *, width: int = 5, measure: str = "jaccard", simplify: bool = False) -> float:
    """Jaccard similarity of two texts' shingles, or the share of the removed text's that the kept one has; short texts
    are compared as wholes."""
    if removed == kept:
        return 1.0
    mine, theirs = _shingles(words(removed, simplify), width), _shingles(words(kept, simplify), width)
    if not mine and not theirs:
        folded = folder(simplify)
        first, second = (" ".join("".join(map(folded, text)).split()) for text in (removed, kept))
        return float(first == second)
    if not mine or not theirs:
        return 0.0
    return len(mine & theirs) / (len(mine) if measure == "containment" else len(mine | theirs))


def covered(question: str, text: str, *, width: int, simplify: bool = False) -> float:
    """Share of a question's units that lie in n-grams which the text has too; short questions must be there whole."""
    asked, found = words(question, simplify), words(text, simplify)
    if len(asked) < width:
        size = len(asked)
        return float(any(found[at : at + size] == asked for at in range(len(found) - size + 1)))
    there = _shingles(found, width)
    hit = [False] * len(asked)
    for at in range(len(asked) - width + 1):
        if tuple(asked[at : at + width]) in there:
            hit[at : at + width] = [True] * width
    return sum(hit) / len(asked)


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    if not trials:
        return 0.0, 1.0
    share = hits / trials
    scale = 1 + _Z**2 / trials
    middle = (share + _Z**2 / (2 * trials)) / scale
    half = _Z * math.sqrt(share * (1 - share) / trials + _Z**2 / (4 * trials**2)) / scale
    return (0.0 if hits == 0 else middle - half), (1.0 if hits == trials else middle + half)


def clopper_pearson(hits: int, trials: int) -> tuple[float, float]:
    """95 % interval of a share that holds for any true share (Clopper, Pearson 1934)."""
    if not trials:
        return 0.0, 1.0
    low = 0.0 if hits == 0 else _solve(lambda share: 1 - _at_most(hits - 1, trials, share), rising=True)
    high = 1.0 if hits == trials else _solve(lambda share: _at_most(hits, trials, share), rising=False)
    return low, high


def _solve(tail: Callable[[float], float], rising: bool) -> float:
    """The share at which a tail probability is 2.5 %."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if (tail(middle) < 0.025) == rising:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _at_most(hits: int, trials: int, share: float) -> float:
    """Probability of at most so many hits."""
    if share <= 0 or share >= 1:
        return 1.0 if share <= 0 or hits >= trials else 0.0
    logs = (
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        + k * math.log(share) + (trials - k) * math.log1p(-share)
        for k in range(hits + 1)
    )  # fmt: skip
    return min(1.0, math.fsum(math.exp(value) for value in logs))
