"""A small real world to train in: text of two domains, a tokenizer trained on it, a packed dataset with splits."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from headwater.core.documents import Document, document_id
from headwater.core.files import atomic_write
from headwater.core.jsonl import pretty_json
from headwater.dataset.config import DatasetConfig
from headwater.dataset.dataset import INDEX
from headwater.dataset.pack import dataset_index, spec_for
from headwater.dataset.writer import TokenShardWriter
from headwater.tokenizer import Tokenizer
from headwater.tokenizer.config import TokenizerConfig
from headwater.tokenizer.files import train_tokenizer_files

WORDS = tuple(re.findall(r"\w+", "river water stone valley cloud rain snow spring lake mill bridge bank flood drop"))
CHARACTERS = "水源河流山谷云雨雪春湖磨桥岸洪滴溪"


@dataclass(frozen=True)
class World:
    """Where the fixtures lie."""

    tokenizer: Path
    dataset: Path


def documents(domain: str, split: str, count: int) -> list[Document]:
    """Documents of uneven length, half English and half Chinese; some are a single word."""
    rng = random.Random(f"{domain}/{split}")
    made = []
    for number in range(count):
        length = rng.choice((1, 5, 20, 60, 200))
        if number % 2:
            text = "".join(rng.choice(CHARACTERS) + ("。" if rng.random() < 0.1 else "") for _ in range(2 * length))
        else:
            text = " ".join(rng.choice(WORDS) for _ in range(length)) + ".\n"
        made.append(Document(id=document_id(domain, split, number), text=text, source=domain, domain=domain))
    return made


def make_world(root: Path, *, train: int = 300, validation: int = 40) -> World:
    """A tokenizer and a packed dataset of so many documents a domain."""
    texts = root / "texts"
    texts.mkdir()
    for document in documents("web", "train", 200):
        (texts / f"{document.id}.txt").write_text(document.text, "utf-8")
    train_tokenizer_files([texts], root / "tokenizer", TokenizerConfig(vocab_size=512))
    tokenizer = Tokenizer.load(root / "tokenizer")
    spec = spec_for(DatasetConfig(), tokenizer)
    facts = []
    for split, count in (("train", train), ("validation", validation)):
        (root / "dataset" / split).mkdir(parents=True)
        for domain in ("code", "web"):
            name = f"{split}/{domain}-00000.tokens"
            with TokenShardWriter(root / "dataset" / name, spec, split=split, domain=domain) as writer:
                for document in documents(domain, split, count):
                    writer.add(document, tokenizer.encode(document.text))
            facts.append((split, domain, {"name": name, **writer.counts}))
    atomic_write(root / "dataset" / INDEX, pretty_json(dataset_index(spec, facts)))
    return World(root / "tokenizer", root / "dataset")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
"""A model of some 30 thousand parameters."""
