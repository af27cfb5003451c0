"""A tiny untrained model as a Hugging Face folder, and small data sets, for tests of tasks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..serve.tiny import make_tokenizer, random_model, save


def tiny_folder(root: Path, context: int = 128) -> Path:
    tokenizer = make_tokenizer(root / "tokenizer")
    return save(random_model(tokenizer, context), tokenizer, root / "tiny")


def write(path: Path, rows: Sequence[Any]) -> Path:
    """JSON Lines; a string is a line as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


RIVERS = [
    {"country": country, "options": ["the river", "a mountain", "一座山"], "answer": number % 3}
    for number, country in enumerate(["France", "China", "Peru", "中国", "Egypt", "India"])
]

OWN_TASK = """
name: rivers
kind: multiple_choice
files: [rivers.jsonl]
group: country
context: "In {{ country }} there is"
choices: "{{ options }}"
gold: "{{ answer }}"
"""
