"""A small bilingual dataset with a training and a validation split, and a run that has trained on it for a moment."""

from __future__ import annotations

import random
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
from headwater.train import RunFolder, train

from ..serve.tiny import LINES, make_tokenizer


@dataclass(frozen=True)
class World:
    """Where the fixtures lie, and the documents of the validation split by domain."""

    tokenizer: Path
    dataset: Path
    held_out: dict[str, list[Document]]


def documents(domain: str, split: str, count: int) -> list[Document]:
    """Documents of one language each; one in ten is empty or a single character."""
    rng = random.Random(f"{domain}/{split}")
    made = []
    for number in range(count):
        lang = rng.choice(("en", "zh"))
        lines = [line for line in LINES if line.isascii() == (lang == "en")]
        text = "\n".join(rng.choice(lines) for _ in range(rng.randint(1, 8)))
        text = rng.choice(("", "水")) if number % 10 == 9 else text
        made.append(Document(document_id(domain, split, number), text, source=domain, lang=lang, domain=domain))
    return made


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("evaluate-world")
    tokenizer = make_tokenizer(root / "tokenizer")
    spec = spec_for(DatasetConfig(), tokenizer)
    facts = []
    held_out = {}
    for split, count in (("train", 80), ("validation", 20)):
        (root / "dataset" / split).mkdir(parents=True)
        for domain in ("books", "web"):
            name = f"{split}/{domain}-00000.tokens"
            made = documents(domain, split, count)
            with TokenShardWriter(root / "dataset" / name, spec, split=split, domain=domain) as writer:
                for document in made:
                    writer.add(document, tokenizer.encode(document.text))
            facts.append((split, domain, {"name": name, **writer.counts}))
            held_out[domain] = made
    atomic_write(root / "dataset" / INDEX, pretty_json(dataset_index(spec, facts)))
    return World(root / "tokenizer", root / "dataset", held_out)


@pytest.fixture(scope="session")
def tokenizer(world: World) -> Tokenizer:
    return Tokenizer.load(world.tokenizer)


@pytest.fixture(scope="session")
def run(world: World, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Forty steps of a model with 40 thousand parameters: enough to know the few sentences there are."""
    return train(
        dataset=world.dataset,
        tokenizer=world.tokenizer,
        run_dir=tmp_path_factory.mktemp("runs") / "brook",
        model={
            "hidden_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": 256,
            "tie_word_embeddings": True,
        },
        config={
            "steps": 40,
            "global_batch": 8,
            "seq_len": 64,
            "optimizer": {"lr": 0.01},
            "sampling": {"every": 0, "max_tokens": 1},
        },
    )
