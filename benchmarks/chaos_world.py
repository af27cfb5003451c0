"""The small world in which faults are put into real runs: two datasets of real text, a tokenizer, tiny models.

In: a folder of corpora (`*.jsonl.zst` with `text` and `lang`), or none: then this project's own pages, which are there
in English and Chinese. Out: packed datasets `mixed`, `en` and `zh` under the output folder, made once.

    world = make_world(Path("build/chaos"), corpora=None); start(world, run_dir, steps=200, seed=1)
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import zstandard

from headwater.core.documents import Document, document_id
from headwater.core.files import atomic_write
from headwater.core.jsonl import pretty_json
from headwater.dataset.config import DatasetConfig
from headwater.dataset.dataset import INDEX
from headwater.dataset.pack import dataset_index, spec_for
from headwater.dataset.writer import TokenShardWriter
from headwater.monitor import MonitorConfig
from headwater.parallel.config import ParallelConfig
from headwater.tokenizer import Tokenizer
from headwater.tokenizer.config import TokenizerConfig
from headwater.tokenizer.files import train_tokenizer_files
from headwater.train import RunFolder, train
from headwater.train.callbacks import Callback

REPOSITORY = Path(__file__).resolve().parent.parent
CHARACTERS = 1_500_000
"""Of text, a language."""

MODEL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
CONFIG: dict[str, Any] = {
    "global_batch": 8,
    "seq_len": 32,
    "optimizer": {"lr": 3e-3},
    "schedule": {"name": "constant", "warmup_steps": 20},
    "validation": {"every": 100_000, "windows_per_domain": 2},
    "recovery": {"enabled": False},  # a detector's word is counted, not what is done about it
    "dry_run": False,
    "deterministic": False,
}


@dataclass(frozen=True)
class World:
    """Where things lie; `datasets` by name."""

    tokenizer: Path
    datasets: dict[str, Path]
    text: str


def make_world(out: Path, corpora: Path | None) -> World:
    """The world under `out`, made if it is not there yet."""
    root = out / "world"
    datasets = {name: root / name for name in ("mixed", "en", "zh")}
    described = root / "text.txt"
    if not described.exists():
        shutil.rmtree(root, ignore_errors=True)  # what an earlier try left
        texts = {"en": list(_texts(corpora, "en")), "zh": list(_texts(corpora, "zh"))}
        samples = root / "samples"
        samples.mkdir(parents=True, exist_ok=True)
        for language, found in texts.items():
            (samples / f"{language}.txt").write_text("\n".join(found)[:300_000], "utf-8")
        train_tokenizer_files([samples], root / "tokenizer", TokenizerConfig(vocab_size=2048, character_coverage=0.98))
        tokenizer = Tokenizer.load(root / "tokenizer")
        for name, path in datasets.items():
            _pack({key: texts[key] for key in (["en", "zh"] if name == "mixed" else [name])}, path, tokenizer)
        what = "the given corpora" if corpora else "the pages of this project"
        count = {language: sum(map(len, found)) for language, found in texts.items()}
        described.write_text(f"{what}, {count['en']:,} characters of English and {count['zh']:,} of Chinese", "utf-8")
    return World(root / "tokenizer", datasets, described.read_text("utf-8"))


def _texts(corpora: Path | None, language: str) -> Iterator[str]:
    read = 0
    for text in _rows(corpora, language) if corpora else _pages(language):
        if read >= CHARACTERS:
            return
        read += len(text)
        yield text[:20_000]


def _rows(corpora: Path, language: str) -> Iterator[str]:
    for path in sorted(corpora.glob("*.jsonl.zst")):
        with zstandard.open(path, "rb") as stream:
            for line in io.BufferedReader(stream):
                row = json.loads(line)
                if row["lang"] == language:
                    yield row["text"]


def _pages(language: str) -> Iterator[str]:
    for path in sorted((REPOSITORY / "docs").rglob("*.md")) + sorted(REPOSITORY.glob("*.md")):
        if path.name.endswith(".zh.md") == (language == "zh"):
            yield path.read_text("utf-8")


def _pack(texts: dict[str, list[str]], path: Path, tokenizer: Tokenizer) -> None:
    spec = spec_for(DatasetConfig(), tokenizer)
    facts = []
    for split in ("train", "validation"):
        (path / split).mkdir(parents=True)
        for domain, found in texts.items():
            held_out = max(1, len(found) // 50)
            chosen = found[:held_out] if split == "validation" else found[held_out:] or found
            name = f"{split}/{domain}-00000.tokens"
            with TokenShardWriter(path / name, spec, split=split, domain=domain) as writer:
                for number, text in enumerate(chosen):
                    key = document_id(domain, split, number)
                    writer.add(Document(id=key, text=text, source=domain, domain=domain), tokenizer.encode(text))
            facts.append((split, domain, {"name": name, **writer.counts}))
    atomic_write(path / INDEX, pretty_json(dataset_index(spec, facts)))


def start(
    world: World,
    run_dir: Path,
    *,
    dataset: str = "mixed",
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
    config: dict[str, Any] | None = None,
    monitor: dict[str, Any] | None = None,
    parallel: dict[str, Any] | None = None,
) -> RunFolder:
    """Train, or go on, with one thread. Errors are the trainer's own."""
    torch.set_num_threads(1)
    return train(
        dataset=world.datasets[dataset],
        tokenizer=world.tokenizer,
        run_dir=run_dir,
        model=MODEL,
        config={**CONFIG, **(config or {})},
        monitor=MonitorConfig.model_validate({"console": False, **(monitor or {})}),
        parallel=ParallelConfig.model_validate({"micro_batch": 8, **(parallel or {})}),
        seed=seed,
        callbacks=callbacks,
    )
