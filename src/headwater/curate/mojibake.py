"""Mojibake: text that was decoded with the wrong table, put right where that is certain.

Three mistakes are undone, each only for whole runs of characters that decode without a flaw:

- UTF-8 read as Windows-1252 or Latin-1: "donâ€™t cafÃ©" to "don’t café", also Chinese ("ä½ å¥½" to "你好");
- GBK read as Latin-1: "ÄãºÃ£¬ÊÀ½ç" to "你好，世界", if that gives common characters;
- UTF-8 read as GBK: "浣犲ソ锛屼笘鐣" to "你好，世", if that turns rare characters into common ones.

What has lost bytes on the way (锟斤拷) cannot be put right; the rule `text.garbled` counts it. Controls U+0080 to
U+009F are part of such runs, so this comes before they are taken out.

    repair("donâ€™t")     # ("don’t", 1)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

ROUNDS = 3
"""Text may have been wronged more than once: "donÃ¢â‚¬â„¢t"."""

_COMMON_SHARE, _RARE_SHARE = 0.8, 0.6
_WINDOWS = "".join(character for byte in range(0x80, 0xA0) if (character := bytes([byte]).decode("cp1252", "ignore")))
_TAIL = f"\x80-\xbf{_WINDOWS}"
HIGH_CHARACTERS = "".join(map(chr, range(0x80, 0x100))) + _WINDOWS
_HIGH_RUN = re.compile(f"[\x80-\xff{_WINDOWS}]{{2,}}")
_PAIR = re.compile(f"(?<![\x80-\xff{_WINDOWS}])[\xc2-\xdf][{_TAIL}](?![\x80-\xff{_WINDOWS}])")
_LONG_SEQUENCES = re.compile(f"(?:[\xe0-\xef][{_TAIL}]{{2}}|[\xf0-\xf4][{_TAIL}]{{3}})+")
_HAN_RUN = re.compile("[\u2010-\u203b\u3000-\u303f\u3400-\u4dbf\u4e00-\u9fff\ue000-\uf8ff\uff00-\uffef]{3,}")
MARKS = "鐨锛銆涓鏄鍦"
"""What UTF-8 Chinese read as GBK is full of (的 ，。 上 是 在): a text without two of them is left alone."""


def repair(text: str) -> tuple[str, int]:
    """The text put right, and how many runs of it were. A repaired text needs no repair."""
    total = 0
    for _ in range(ROUNDS):
        count = 0
        if not text.isascii():
            data = text.encode("utf-8", "surrogatepass")
            if b"\xc3" in data or b"\xc2" in data:  # U+0080 to U+00FF
                text, count = _replaced(_HIGH_RUN, _from_latin, text)
                if count:  # then single pairs are meant no more than the rest
                    text, more = _replaced(_PAIR, _decoded, text)
                    count += more
            if sum(mark in text for mark in MARKS) >= 2:
                text, more = _replaced(_HAN_RUN, _from_gbk, text)
                count += more
        total += count
        if not count:
            break
    return text, total


def _replaced(pattern: re.Pattern[str], change: Callable[[str], str], text: str) -> tuple[str, int]:
    changed = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal changed
        found = change(match[0])
        changed += found != match[0]
        return found

    return pattern.sub(replace, text), changed


def _from_latin(run: str) -> str:
    data = _bytes_of(run)
    try:
        found = data.decode("utf-8")
    except UnicodeError:
        pass
    else:  # a single pair may be meant, as in "7×—", unless it begins as accented letters of Latin-1 do
        return found if len(run) > 2 or run[0] in "ÂÃ" else run
    if len(run) >= 6 and len(run) % 2 == 0 and min(data) >= 0xA1:
        try:
            found = data.decode("gbk")
        except UnicodeError:
            found = ""
        if found and _commonness(found) >= _COMMON_SHARE:
            return found
    return _LONG_SEQUENCES.sub(lambda match: _decoded(match[0]), run)


def _decoded(run: str) -> str:
    try:
        return _bytes_of(run).decode("utf-8")
    except UnicodeError:
        return run


def _bytes_of(run: str) -> bytes:
    """The bytes that Windows-1252, or Latin-1 where it has no sign, made these characters of."""
    return b"".join(
        character.encode("latin-1") if ord(character) < 0x100 else character.encode("cp1252") for character in run
    )


def _from_gbk(run: str) -> str:
    for end in (len(run), len(run) - 1):  # the last character may have taken a byte of what follows
        try:
            found = run[:end].encode("gb18030").decode("utf-8")
        except UnicodeError:
            continue
        if len(found) >= 2 and _commonness(found) >= _COMMON_SHARE and _commonness(run[:end]) <= _RARE_SHARE:
            return found + run[end:]
    return run


def _commonness(text: str) -> float:
    """Share of common characters."""
    return sum(character in _common() for character in text) / len(text)


@cache
def _common() -> frozenset[str]:
    """The 3,755 Han characters of GB 2312 level 1, the common ones, and Chinese punctuation."""
    level_1 = bytes(byte for lead in range(0xB0, 0xD8) for tail in range(0xA1, 0xFF) for byte in (lead, tail))
    return frozenset(level_1.decode("gb2312", "ignore") + "，。！？；：、“”‘’（）《》…—")
