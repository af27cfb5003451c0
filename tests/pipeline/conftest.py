"""A small bilingual corpus and a recipe that runs on it in seconds."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

RECIPE = """\
schema: 1
name: small
collect:
  root: {root}
  sources:
    - {{name: web, paths: ["web.jsonl"], domain: web}}
    - {{name: books, paths: ["books/*.txt"], domain: books}}
curate:
  split: {{validation: 0.1}}
tokenizer: {{vocab_size: 640}}
model: {{hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2, max_position_embeddings: 128}}
train:
  steps: 6
  seq_len: 64
  global_batch: 4
  validation: {{every: 0, windows_per_domain: 4}}
  sampling: {{every: 0, max_tokens: 8}}
evaluate: {{max_tokens: 300, sample_tokens: 8}}
executor: {{kind: inline}}
"""

WORDS = "the river runs down from the hills and the water turns the wheel of the mill beside the old bridge"
ENGLISH = WORDS.split()
CHINESE = "山高水长清风徐来明月照人江流有声断岸千尺白露横江水光接天"


def make_corpus(folder: Path, seed: int = 0) -> Path:
    """120 web rows (half of them Chinese) and 40 English books under `folder`."""
    draw = random.Random(seed)
    (folder / "books").mkdir(parents=True)
    rows = []
    for number in range(120):
        english = " ".join(draw.choices(ENGLISH, k=40)).capitalize() + "."
        chinese = "".join(draw.choices(CHINESE, k=80)) + "。"
        rows.append({"text": f"{number}: {english if number % 2 else chinese}", "lang": "en" if number % 2 else "zh"})
    (folder / "web.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    for number in range(40):
        text = "\n".join(" ".join(draw.choices(ENGLISH, k=12)).capitalize() + "." for _ in range(8))
        (folder / "books" / f"{number:02d}.txt").write_text(f"Chapter {number}\n\n{text}\n")
    return folder


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe file beside its corpus, in `tmp_path`."""
    make_corpus(tmp_path / "corpus")
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE.format(root=tmp_path / "corpus"))
    return path
