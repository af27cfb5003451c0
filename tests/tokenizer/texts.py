"""Small texts in English, Chinese and Python, made or found on any machine."""

from __future__ import annotations

import argparse
import json
import random
import textwrap
from pathlib import Path

from headwater.core.documents import Document, DocumentWriter, document_id

_SUBJECTS = (
    "我们",
    "他们",
    "老师",
    "学生",
    "农民",
    "工人",
    "作者",
    "城市",
    "河流",
    "春天",
    "机器",
    "模型",
    "数据",
    "孩子",
)
_VERBS = (
    "看见",
    "喜欢",
    "学习",
    "建造",
    "离开",
    "记录",
    "计算",
    "描写",
    "改变",
    "发现",
    "忘记",
    "保护",
    "等待",
    "理解",
)
_OBJECTS = (
    "一本书",
    "一座山",
    "新的方法",
    "古老的故事",
    "远方的海",
    "许多问题",
    "二〇二四年的雨",
    "清晨的光",
    "这条路",
)
_ENDS = "。。。！？；"


def chinese(count: int, seed: int = 0) -> list[str]:
    """Paragraphs of made Chinese sentences."""
    rng = random.Random(seed)

    def sentence() -> str:
        return rng.choice(_SUBJECTS) + rng.choice(_VERBS) + rng.choice(_OBJECTS) + rng.choice(_ENDS)

    return ["".join(sentence() for _ in range(rng.randint(3, 12))) + "\n" for _ in range(count)]


def python_code() -> list[str]:
    """Source files of the standard library."""
    return [Path(str(module.__file__)).read_text("utf-8") for module in (argparse, textwrap, json.decoder, random)]


def english() -> list[str]:
    """Comments and doc strings of the standard library, as prose."""
    lines = [line.strip(" #\"'") for text in python_code() for line in text.split("\n")]
    prose = [line for line in lines if len(line.split()) > 5 and line[-1:] in ".,"]
    return [" ".join(prose[start : start + 8]) + "\n" for start in range(0, len(prose), 8)]


def documents() -> list[Document]:
    """About 300 documents in three domains and three languages."""
    found = []
    for domain, lang, texts in (
        ("web", "zh", chinese(150)),
        ("books", "en", english()),
        ("code", "python", python_code()),
        ("web", "en", english()[::3]),
    ):
        for number, text in enumerate(texts):
            identity = document_id(f"{domain}-{lang}", "made", number)
            found.append(Document(identity, text, source=f"{domain}-{lang}", lang=lang, domain=domain))
    return found


def write_corpus(root: Path, found: list[Document], *, shards: int = 2, validation: int = 10) -> None:
    """`SPLIT/DOMAIN-00000.parquet` below root; every `validation`-th document is held out."""
    splits = {"train": [d for i, d in enumerate(found) if i % validation], "validation": found[::validation]}
    for split, rows in splits.items():
        (root / split).mkdir(parents=True)
        for domain in sorted({row.domain for row in rows}):
            mine = [row for row in rows if row.domain == domain]
            pieces = shards if split == "train" else 1
            for number in range(pieces):
                with DocumentWriter(root / split / f"{domain}-{number:05d}.parquet") as writer:
                    for row in mine[number::pieces]:
                        writer.add(row)
