"""Slow, plain Python versions of the compiled kernels, written from their descriptions, and small helpers."""

from __future__ import annotations

import io
import json
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson
import zstandard

from headwater.core.units import APOSTROPHE, DIGIT, HAN, HANGUL, JOINER, LATIN, LETTER, MARK, POINT, class_table

MASK = (1 << 64) - 1


def fold(character: str) -> str:
    """Case and width folded; one character in, one out."""
    point = ord(character)
    if 0xF900 <= point <= 0xFAFF or 0xFF01 <= point <= 0xFFEE or 0x2F800 <= point <= 0x2FA1D:
        plain = unicodedata.normalize("NFKC", character)
        character = plain if len(plain) == 1 else character
    lowered = character.lower()
    return "'" if character == "’" else lowered if len(lowered) == 1 else character


def units(text: str) -> list[tuple[str, int, int]]:
    """(folded unit, start, end) in characters."""
    kinds = [int(class_table()[ord(character)]) for character in text]
    found: list[tuple[str, int, int]] = []
    at = 0
    word = (LATIN, LETTER, DIGIT, JOINER)
    while at < len(text):
        if HAN <= kinds[at] <= HANGUL:
            found.append((fold(text[at]), at, at + 1))
            at += 1
            continue
        if kinds[at] not in word:
            at += 1
            continue
        end = at
        while end < len(text):
            after = kinds[end + 1] if end + 1 < len(text) else -1
            before = kinds[end - 1]
            letters = (LATIN, LETTER)
            if (
                kinds[end] in word
                or (kinds[end] == MARK and before in (*letters, MARK))
                or (kinds[end] == APOSTROPHE and before in letters and after in letters)
                or (kinds[end] == POINT and before == DIGIT and after == DIGIT)
            ):
                end += 1
            else:
                break
        found.append(("".join(fold(character) for character in text[at:end] if character != "_"), at, end))
        at = end
    return found


def shingles(text: str, width: int = 5) -> set[tuple[str, ...]]:
    words = [unit for unit, _, _ in units(text)]
    return {tuple(words[at : at + width]) for at in range(len(words) - width + 1)}


def folded(text: str) -> str:
    return " ".join("".join(fold(character) for character in text).split())


def jaccard(first: str, second: str, width: int = 5) -> float:
    if first == second:
        return 1.0
    a, b = shingles(first, width), shingles(second, width)
    if not a and not b:
        return float(folded(first) == folded(second))
    return len(a & b) / len(a | b)


def mix(value: int) -> int:
    value ^= value >> 32
    value = value * 0xFF51AFD7ED558CCD & MASK
    value ^= value >> 32
    value = value * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ value >> 32


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def write_texts(path: Path, texts: Sequence[str], prefix: str = "d", **fields: Any) -> Path:
    return write_jsonl(path, [{"id": f"{prefix}{n:05d}", "text": text, **fields} for n, text in enumerate(texts)])


def read_zst(path: Path) -> list[dict[str, Any]]:
    with open(path, "rb") as file:
        lines = io.BytesIO(zstandard.ZstdDecompressor().stream_reader(file).read())
    return [orjson.loads(line) for line in lines]


def outcome(folder: Path) -> tuple[set[str], dict[str, dict[str, Any]]]:
    """(ids kept, removed rows by id) of a result folder; rows that only cut a passage are not among the removed."""
    kept = {row["id"] for row in read_zst(folder / "kept.jsonl.zst")}
    removed = {row["id"]: row for row in read_zst(folder / "removed.jsonl.zst") if row["action"] == "remove"}
    return kept, removed


WORDS = [
    "river",
    "stone",
    "market",
    "winter",
    "letter",
    "garden",
    "machine",
    "silver",
    "window",
    "doctor",
    "engine",
    "forest",
    "number",
    "season",
    "bridge",
]
HAN_CHARACTERS = (
    "山水田园春夏秋冬天地人和东西南北风雨云月花鸟鱼虫金木火土书画琴棋江河湖海日星光影门户窗台桥路车船茶酒米面"
)


def sentence(random: Any, size: int, chinese: bool = False) -> str:
    """A text of `size` units that no other draw repeats."""
    if chinese:
        return "".join(random.choice(HAN_CHARACTERS) for _ in range(size))
    return " ".join(f"{random.choice(WORDS)}{random.randrange(100)}" for _ in range(size))


def edited(random: Any, text: str, share: float, chinese: bool = False) -> str:
    """The text with this share of its units replaced, evenly spread."""
    parts = list(text) if chinese else text.split()
    for at in random.sample(range(len(parts)), round(share * len(parts))):
        parts[at] = random.choice("変驛縣鐵") if chinese else f"changed{random.randrange(10**6)}"
    return ("" if chinese else " ").join(parts)
