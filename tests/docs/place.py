"""The folder a reader of the documentation has before them, made small: recipes, raw text, and finished runs.

In: an empty folder. Out: `recipes/` with the quickstart cut down to seconds and its finished `workspace/`, raw inputs
under the names the pages use, and what the pages make of them (`clean`, `packed`, `run`, `model`).
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import yaml

from tests.docs.pages import REPOSITORY

WORDS = "the river runs down from the hills and the water turns the wheel of the mill beside the old bridge"
ENGLISH = WORDS.split()
CHINESE = "山高水长清风徐来明月照人江流有声断岸千尺白露横江水光接天"
PAGE = "<html><head><title>{0}</title></head><body><nav>Home</nav><article><h1>{0}</h1><p>{1}</p></article></body>"


def small_quickstart() -> str:
    """recipes/quickstart.yaml with one package as its text, a tiny model and a hundred short steps."""
    recipe = yaml.safe_load((REPOSITORY / "recipes" / "quickstart.yaml").read_text(encoding="utf-8"))
    recipe["collect"]["sources"][0].update(packages=["typer"], stdlib=False)
    recipe["tokenizer"]["vocab_size"] = 640
    recipe["model"].update(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=128
    )
    del recipe["train"]["tokens"]
    recipe["train"].update(steps=100, seq_len=64, global_batch=4)
    recipe["train"].update(validation={"windows_per_domain": 4}, sampling={"max_tokens": 8})
    recipe["evaluate"].update(max_tokens=400, sample_tokens=8)
    recipe["executor"] = {"kind": "inline"}
    return yaml.safe_dump(recipe, sort_keys=False)


def make_inputs(folder: Path) -> None:
    """Recipes, clusters and raw text; the same bytes every time."""
    shutil.copytree(REPOSITORY / "recipes", folder / "recipes")
    shutil.copytree(REPOSITORY / "clusters", folder / "clusters")
    (folder / "recipes" / "quickstart.yaml").write_text(small_quickstart(), encoding="utf-8")
    draw = random.Random(0)
    rows = [_english(draw, number) for number in range(300)] + [_chinese(draw, number) for number in range(300)]
    rows += [{"text": text, "domain": "code", "lang": "python"} for text in _code()]
    rows += [{"text": "too short", "domain": "web"}, rows[0]]
    _write(folder / "raw.jsonl", rows, "{broken\n")
    held_out = [make(draw, 900 + number) for number in range(5) for make in (_english, _chinese)]
    _write(folder / "held-out.jsonl", held_out)
    (folder / "pages").mkdir()
    for number in range(3):
        text = " ".join(draw.choices(ENGLISH, k=80))
        (folder / "pages" / f"{number}.html").write_text(PAGE.format(f"River {number}", text), encoding="utf-8")


def _english(draw: random.Random, number: int) -> dict[str, str]:
    return {"text": f"{number}: {' '.join(draw.choices(ENGLISH, k=60)).capitalize()}.", "domain": "web", "lang": "en"}


def _chinese(draw: random.Random, number: int) -> dict[str, str]:
    return {"text": f"第{number}段：{''.join(draw.choices(CHINESE, k=120))}。", "domain": "books", "lang": "zh"}


def _code() -> list[str]:
    """Functions of the standard library: text that is on every machine."""
    import argparse
    import inspect
    import textwrap

    sources = (Path(str(module.__file__)).read_text(encoding="utf-8") for module in (argparse, inspect, json, textwrap))
    return [part for source in sources for part in source.split("\n\n\n") if len(part) > 30]


def _write(path: Path, rows: list[dict[str, str]], rest: str = "") -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows) + rest, encoding="utf-8")


FINISHED = (
    "run recipes/quickstart.yaml",
    "curate raw.jsonl --out clean --rewrite-text",
    "tokenize clean/kept.jsonl.zst --out packed --set tokenizer.vocab_size=768",
    "train packed --out run --set model.hidden_size=32 --set model.num_hidden_layers=2"
    " --set model.num_attention_heads=4 --set model.max_position_embeddings=512 --set train.seq_len=256"
    " --set train.tokens=2e4",
    "export run --out model",
)
"""What makes the finished folders, in order."""
