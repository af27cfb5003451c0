"""Seeded damage to a text, in Chinese and English: the same text, kind, rate and seed give the same result.

In: a text, a kind of `KINDS`, a rate from 0 to 1: the share of places of that kind that are damaged, at least one.
Out: the text damaged. A kind that has no place in a text (homophones in English) leaves it as it is.

    perturb("The river is wide.", "swap", 0.2, seed="piqa:17")

Character: `typo` (a neighbouring key), `swap` (two neighbouring characters of a word, two neighbouring Chinese
characters), `homoglyph` (letters of other alphabets that look the same), `shape` (Chinese characters that look alike),
`homophone` (that sound alike), `case`. Word: `word_swap`, `word_delete` (English words; of Chinese, pairs of
characters). Sentence: `distractor` (a true sentence about something else, in the text's language). Form: `punctuation`
(dropped or doubled), `width` (half width to full width and back).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache
from importlib import resources

Damage = Callable[[str, float, random.Random], str]

_WORD = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)?")
_HAN = re.compile(r"[\u3400-\u9fff]")
_PAIR = re.compile(r"[\u3400-\u9fff]{2}")
_PUNCTUATION = re.compile(r"[,.;:!?，。；：！？、]")

_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_HOMOGLYPHS = str.maketrans("aceopxyiABCEHKMOPTX", "асеорхуіАВСЕНКМОРТХ")

DISTRACTORS = {
    "en": (
        "Honey keeps for years in a closed jar.",
        "The post office opens at nine on weekdays.",
        "Most cats sleep more than twelve hours a day.",
        "A kilometre is a thousand metres.",
        "The blue bicycle belongs to the neighbour.",
    ),
    "zh": (
        "蜂蜜密封后可以保存很多年。",
        "邮局工作日上午九点开门。",
        "大多数猫每天要睡十二个小时以上。",
        "一公里等于一千米。",
        "那辆蓝色的自行车是邻居的。",
    ),
}


def perturb(text: str, kind: str, rate: float, *, seed: str) -> str:
    """The text, damaged. KeyError for an unknown kind; rate 0 changes nothing."""
    if rate <= 0:
        return text
    return KINDS[kind](text, min(rate, 1.0), random.Random(f"{kind}:{rate}:{seed}"))


def _some(places: list[int], rate: float, draw: random.Random) -> list[int]:
    """That share of the places, at least one, in order."""
    return sorted(draw.sample(places, min(len(places), max(1, round(rate * len(places)))))) if places else []


def _replace(text: str, found: dict[int, str], rate: float, draw: random.Random) -> str:
    """Characters at some of the places by what they may become."""
    characters = list(text)
    for place in _some(sorted(found), rate, draw):
        characters[place] = draw.choice(found[place])
    return "".join(characters)


@cache
def _neighbours() -> dict[str, str]:
    """Keys beside each other, in a row and in the row below, on an English keyboard."""
    near: dict[str, str] = {}
    for number, row in enumerate(_ROWS):
        for place, key in enumerate(row):
            around = row[max(0, place - 1) : place] + row[place + 1 : place + 2]
            for other in _ROWS[max(0, number - 1) : number] + _ROWS[number + 1 : number + 2]:
                around += other[max(0, place - 1) : place + 1]
            near[key], near[key.upper()] = around, around.upper()
    return near


@cache
def _groups(name: str) -> dict[str, str]:
    """Each character's others. Homophones: of the 2,500 commonest simplified characters those with one reading in
    common, tone included (readings of pypinyin, MIT licence), at most eight a group. Shapes: a list of our own."""
    groups = resources.files(__package__).joinpath(f"{name}s_zh.txt").read_text("utf-8").split()
    others: dict[str, str] = {}
    for group in groups:
        for character in group:
            more = "".join(other for other in group if other != character)
            others[character] = others.get(character, "") + more
    return others


def _typo(text: str, rate: float, draw: random.Random) -> str:
    near = _neighbours()
    return _replace(text, {i: near[c] for i, c in enumerate(text) if c in near}, rate, draw)


def _swap(text: str, rate: float, draw: random.Random) -> str:
    """Neighbours change places; no character is moved twice."""
    places = [
        place
        for match in re.finditer(r"[A-Za-z]{2,}|[\u3400-\u9fff]{2,}", text)
        for place in range(match.start(), match.end() - 1, 2)
        if text[place] != text[place + 1]
    ]
    characters = list(text)
    for place in _some(places, rate, draw):
        characters[place], characters[place + 1] = characters[place + 1], characters[place]
    return "".join(characters)


def _homoglyph(text: str, rate: float, draw: random.Random) -> str:
    found = {i: c.translate(_HOMOGLYPHS) for i, c in enumerate(text) if c.translate(_HOMOGLYPHS) != c}
    return _replace(text, found, rate, draw)


def _chinese(name: str) -> Damage:
    def damage(text: str, rate: float, draw: random.Random) -> str:
        others = _groups(name)
        return _replace(text, {i: others[c] for i, c in enumerate(text) if c in others}, rate, draw)

    return damage


def _case(text: str, rate: float, draw: random.Random) -> str:
    found = {i: c.swapcase() for i, c in enumerate(text) if c.isascii() and c.isalpha()}
    return _replace(text, found, rate, draw)


def _words(text: str) -> list[tuple[int, int]]:
    """(start, end) of English words and of pairs of Chinese characters."""
    found = [match.span() for match in _WORD.finditer(text)] + [match.span() for match in _PAIR.finditer(text)]
    return sorted(found)


def _word_swap(text: str, rate: float, draw: random.Random) -> str:
    words = _words(text)
    chosen = _some(list(range(0, len(words) - 1, 2)), rate, draw)
    for number in reversed(chosen):
        (a, b), (c, d) = words[number], words[number + 1]
        text = text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:]
    return text


def _word_delete(text: str, rate: float, draw: random.Random) -> str:
    """At least one word is left."""
    words = _words(text)
    if len(words) < 2:
        return text
    for number in reversed(_some(list(range(len(words))), min(rate, (len(words) - 1) / len(words)), draw)):
        start, end = words[number]
        end += text[end : end + 1] == " "
        text = text[:start] + text[end:]
    return text


def _distractor(text: str, rate: float, draw: random.Random) -> str:
    """Before the text; the rate is the chance that there is one more."""
    chinese = len(_HAN.findall(text)) * 4 > len(text)
    sentences = list(DISTRACTORS["zh" if chinese else "en"])
    draw.shuffle(sentences)
    count = 1
    while count < len(sentences) and draw.random() < rate:
        count += 1
    between = "" if chinese else " "
    return between.join([*sentences[:count], text])


def _punctuation(text: str, rate: float, draw: random.Random) -> str:
    """Dropped or doubled, as it comes."""
    found = {match.start(): ("", match.group() * 2) for match in _PUNCTUATION.finditer(text)}
    characters = list(text)
    for place in _some(sorted(found), rate, draw):
        characters[place] = draw.choice(found[place])
    return "".join(characters)


def _width(text: str, rate: float, draw: random.Random) -> str:
    found = {}
    for place, character in enumerate(text):
        point = ord(character)
        if 0x21 <= point <= 0x7E:
            found[place] = chr(point + 0xFEE0)
        elif 0xFF01 <= point <= 0xFF5E:
            found[place] = chr(point - 0xFEE0)
    return _replace(text, found, rate, draw)


KINDS: dict[str, Damage] = {
    "typo": _typo,
    "swap": _swap,
    "homoglyph": _homoglyph,
    "shape": _chinese("shape"),
    "homophone": _chinese("homophone"),
    "case": _case,
    "word_swap": _word_swap,
    "word_delete": _word_delete,
    "distractor": _distractor,
    "punctuation": _punctuation,
    "width": _width,
}
