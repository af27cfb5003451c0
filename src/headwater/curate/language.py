"""Which languages a text is in, offline.

Chinese, Japanese and Korean are told by their scripts, everything else by py3langid's model (in the package, BSD-3,
loaded on first use) on a small sample of words. Shares are in words, 1.6 Han characters counting as one, so a mixed
text gets a share for each of its languages. Markdown code and addresses are left out of the count.

    detect_language("今天天气很好，我们去公园吧。")       # ("zh", 1.0)
    language_shares("使用 PyTorch 训练模型")              # {"zh": 0.81, ...}
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headwater.core.units import HAN, HANGUL, KANA, LATIN, LETTER, OTHER, class_table, classes
from headwater.curate.language_model import chances
from headwater.curate.markdown import prose, split_fences

CJK_LANGUAGES = frozenset(["zh", "ja", "ko"])
UNKNOWN = "und"
"""ISO 639-2 for undetermined: a text without letters."""


def _words_of(line: str) -> frozenset[str]:
    return frozenset(line.split())


CODE_LANGUAGES = _words_of(
    "assembly bash c c# c++ clojure cpp csharp css cuda dart elixir erlang fortran go haskell html java javascript jsx "
    "json julia kotlin latex lua makefile matlab objective-c ocaml perl php powershell python r ruby rust scala shell "
    "sql swift tex toml tsx typescript verilog vhdl vue xml yaml zig"
)
"""Values of `lang` that mean program code or a data format."""

SAMPLE_CHARACTERS = 450
"""About this much of a long text's words is shown to the model, from its beginning, middle and end."""

CERTAIN_SHARE = 0.85
"""When a script alone gives a language this share, the model is not asked about the rest."""

CLEAR_CHANCE = 0.5
"""Below this chance of its first guess the model knows no language: names, identifiers, a few words."""

NAMES_SHARE = 0.2
"""Latin words of no clear language beside at least this share of CJK are names and identifiers: not counted."""

OTHER_SCRIPT_SHARE = 0.1
"""Latin words beside those of another alphabet are told apart where both are more than this share of them."""

Answer = TypeVar("Answer")
Guess = tuple[list[tuple[str, float]], float]
"""Likely languages of a sample of words with their chances, and how certain the model is of the first."""

_WEIGHTS = {HAN: 1 / 1.6, KANA: 1 / 2.5, HANGUL: 1 / 2.5, LATIN: 1 / 4.7, LETTER: 1 / 4.7}  # words a character
_JAPANESE_KANA_SHARE = 0.08  # Japanese prose has well over 30% kana; Chinese quotes a の now and then
_KOREAN_SHARE = 0.3
_MIXED_KANA = (_JAPANESE_KANA_SHARE, 0.3)  # of Han and kana: Japanese with much Han, or Japanese beside Chinese
_MIXED_HANGUL = (0.02, 0.9)  # of all CJK: Korean with Han characters, or Korean beside another
_FEW_HAN = 12  # a sentence of Han alone below this may be of any of the three
_ENDS = np.array([ord(sign) for sign in "\n.!?。！？．｡"], np.uint32)
_WORD = re.compile(r"[^\W\d_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff]{2,}(?:['’][^\W\d_]+)?")
_ASCII_WORD = re.compile(r"[A-Za-z]{2,}(?:'[A-Za-z]+)?")  # the same in ASCII text, found three times as fast
_ENGLISH = _words_of(
    "the of and to that is with for as was are this be by which from have it not on you an or at can will if when"
)
_ENGLISH_SHARE, _ENGLISH_KINDS = 0.2, 5


def script_counts(text: str) -> NDArray[np.int64]:
    """Characters of each class of `headwater.core.units`, int64 [16]."""
    return np.bincount(classes(text), minlength=16)


def is_chinese(counts: NDArray[np.int64]) -> bool:
    """Whether the CJK part of a text is Chinese rather than Japanese or Korean, from `script_counts`."""
    return bool(counts[HAN]) and _cjk_language(counts) == "zh"


def has_letters(counts: NDArray[np.int64]) -> bool:
    """Whether a text has letters of any script, from `script_counts`."""
    return any(counts[kind] for kind in _WEIGHTS)


def _cjk_language(counts: NDArray[np.int64]) -> str:
    han, kana, hangul = int(counts[HAN]), int(counts[KANA]), int(counts[HANGUL])
    if hangul > _KOREAN_SHARE * (han + kana + hangul):
        return "ko"
    return "ja" if kana > _JAPANESE_KANA_SHARE * (han + kana) else "zh"


def _cjk_shares(text: str, counts: NDArray[np.int64]) -> dict[str, float]:
    """Shares of Chinese, Japanese and Korean in the CJK part of a text; where scripts stand side by side, sentence by
    sentence."""
    han, kana, hangul = int(counts[HAN]), int(counts[KANA]), int(counts[HANGUL])
    korean_beside = _MIXED_HANGUL[0] * (han + kana + hangul) < hangul < _MIXED_HANGUL[1] * (han + kana + hangul)
    japanese_beside = _MIXED_KANA[0] * (han + kana) < kana < _MIXED_KANA[1] * (han + kana)
    if not korean_beside and not japanese_beside:
        return {_cjk_language(counts): 1.0}
    kinds = classes(text)
    ends = np.isin(np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32), _ENDS)
    starts = np.concatenate([[0], np.flatnonzero(ends[:-1]) + 1])
    hans, kanas, hanguls = (np.add.reduceat(kinds == kind, starts, dtype=np.int64) for kind in (HAN, KANA, HANGUL))
    korean = hanguls > _KOREAN_SHARE * (hans + kanas + hanguls)
    japanese = ~korean & (kanas > _JAPANESE_KANA_SHARE * (hans + kanas))
    chinese = ~korean & ~japanese & (hans >= _FEW_HAN)
    words = {
        language: int(hans[its].sum()) * _WEIGHTS[HAN] + int((kanas + hanguls)[its].sum()) * _WEIGHTS[KANA]
        for language, its in (("ja", japanese), ("ko", korean), ("zh", chinese))
    }
    whole = sum(words.values())
    if not whole:
        return {_cjk_language(counts): 1.0}
    return {language: count / whole for language, count in words.items() if count}


@dataclass(frozen=True, slots=True)
class Identified:
    """Share of each language, largest first, fixed to 4 decimals, so that they are equal on every machine. `clear` is
    False if most of the text is Latin (or another alphabet) words that look like no language in particular."""

    shares: dict[str, float]
    clear: bool


def language_shares(text: str) -> dict[str, float]:
    """Share of each language in `text`, largest first. Shares add up to at most 1: what is too little or too unclear
    to name is left out. Empty for a text without letters."""
    words = prose(split_fences(text))
    counts = script_counts(words)
    if not has_letters(counts):  # all of it is code or addresses
        words, counts = text, script_counts(text)
    return answered([identify(words, counts)])[0].shares


def identify(text: str, counts: NDArray[np.int64]) -> Generator[str, Guess, Identified]:
    """The languages of text that has no code in it, from its `script_counts`: see `answered`."""
    words = {kind: float(counts[kind]) * weight for kind, weight in _WEIGHTS.items()}
    cjk, other = words[HAN] + words[KANA] + words[HANGUL], words[LATIN] + words[LETTER]
    if cjk + other == 0:
        return Identified({}, False)
    asked = cjk < CERTAIN_SHARE * (cjk + other)
    size = SAMPLE_CHARACTERS if cjk < NAMES_SHARE * (cjk + other) else SAMPLE_CHARACTERS // 2  # names, beside CJK
    guesses: list[tuple[str, float]] = []
    certainty = 1.0
    if asked and min(words[LATIN], words[LETTER]) > OTHER_SCRIPT_SHARE * other:
        other, guesses, certainty = yield from _two_scripts(text, words, size)
    elif asked:
        guesses, certainty = yield _sample(text, size)
    clear = certainty >= CLEAR_CHANCE
    if not clear and cjk > NAMES_SHARE * (cjk + other):
        other, guesses, clear = 0.0, [], True
    named = _cjk_shares(text, counts).items() if cjk else ()
    shares = {language: share * cjk / (cjk + other) for language, share in named}
    for language, chance in guesses:
        shares[language] = shares.get(language, 0.0) + chance * other / (cjk + other)
    ordered = sorted(((round(share, 4), language) for language, share in shares.items()), key=lambda x: (-x[0], x[1]))
    return Identified({language: share for share, language in ordered if share > 0}, clear or cjk > other)


def detect_language(text: str) -> tuple[str, float]:
    """The main language of `text` (ISO 639-1, or 639-3 where there is no shorter code) and its share, 0..1.

    ("und", 0.0) for a text without letters. Texts of one or two Latin words are guesses.
    """
    shares = language_shares(text)
    return next(iter(shares.items()), (UNKNOWN, 0.0))


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of lines in one language: text[start:end], in characters."""

    start: int
    end: int
    lang: str


def language_segments(text: str) -> list[Segment]:
    """A mixed text in runs of lines of one language, in order and without gaps. A line without words of its own (blank,
    code, a number, a name) goes with the one before it, or with the next at the beginning."""
    found: list[Segment] = []
    start = 0
    for line in text.splitlines(keepends=True):
        lang, share = detect_language(line)
        end = start + len(line)
        unclear = lang == UNKNOWN or (share < CLEAR_CHANCE and lang not in CJK_LANGUAGES) or len(line.strip()) < 2
        if found and (unclear or found[-1].lang in (lang, UNKNOWN)):
            known = lang if found[-1].lang == UNKNOWN and not unclear else found[-1].lang
            found[-1] = Segment(found[-1].start, end, known)
        else:
            found.append(Segment(start, end, UNKNOWN if unclear else lang))
        start = end
    return found


def answered(askers: Sequence[Generator[str, Guess, Answer]]) -> list[Answer]:
    """What generators return that ask about samples of words. Samples are looked at one after the other, while the
    model's 90 MB, little of which a sample touches, are near: that takes a third of the time it takes in between."""
    answers: dict[int, Answer] = {}
    guesses: dict[int, Any] = dict.fromkeys(range(len(askers)))
    while guesses:
        samples = {}
        for place, guess in guesses.items():
            try:
                samples[place] = askers[place].send(guess)
            except StopIteration as end:
                answers[place] = end.value
        guesses = {place: _classify(sample) for place, sample in samples.items()}
    return [answers[place] for place in range(len(askers))]


def _two_scripts(
    text: str, words: dict[int, float], size: int
) -> Generator[str, Guess, tuple[float, list[tuple[str, float]], float]]:
    """Words of Latin and of another alphabet, such as Cyrillic: how many count, what languages each are in, and how
    certain that is. Latin words of no clear language are names, and do not count."""
    latin, letter = words[LATIN], words[LETTER]
    latin_guesses, latin_certainty = yield _sample(text, size, LATIN)
    letter_guesses, letter_certainty = yield _sample(text, size, LETTER)
    if latin_certainty < CLEAR_CHANCE:
        return letter, letter_guesses, letter_certainty
    whole = latin + letter
    guesses = [(language, chance * latin / whole) for language, chance in latin_guesses]
    guesses += [(language, chance * letter / whole) for language, chance in letter_guesses]
    return whole, guesses, (latin_certainty * latin + letter_certainty * letter) / whole


def _classify(sample: str) -> Guess:
    """Likely languages of words that are not CJK with their chances, and how certain the model is of the first.
    English is known by its common words, which is cheap."""
    if not sample:
        return [], 0.0
    words = sample.lower().split(" ")
    common = [word for word in words if word in _ENGLISH]
    if len(common) >= _ENGLISH_SHARE * len(words) and len(set(common)) >= _ENGLISH_KINDS:
        return [("en", 1.0)], 1.0
    return chances(sample)


def _sample(text: str, size: int, script: int = OTHER) -> str:
    """Words of the text that are not CJK, of all scripts or of one class, from three places, with a space between."""
    third = size // 3
    if len(text) <= 2 * size:
        return " ".join(_words(text, script))[: 2 * size]
    places = (0, len(text) // 2, len(text) - 2 * third)
    return " ".join(" ".join(_words(text[place : place + 2 * third], script))[: third + 40] for place in places)


def _words(text: str, script: int) -> list[str]:
    words = (_ASCII_WORD if text.isascii() else _WORD).findall(text)
    return words if script == OTHER else [word for word in words if class_table()[ord(word[0])] == script]


def identifier_version() -> str:
    """What identified the languages, for reports."""
    from importlib.metadata import version

    return f"scripts 2 + priors 1 + py3langid {version('py3langid')}"
