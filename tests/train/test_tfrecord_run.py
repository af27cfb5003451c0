"""A run on TFRecord shards is the run on our own: the same batches, so the same losses to the last bit."""

from __future__ import annotations

from pathlib import Path

from headwater.core.progress import Reporter
from headwater.dataset.config import DatasetConfig
from headwater.dataset.files import pack_files
from headwater.train import train
from tests.train.conftest import TINY, World, documents


def test_both_formats_train_to_the_same_losses(world: World, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for document in documents("web", "train", 120):
        (texts / f"{document.id}.txt").write_text(document.text, "utf-8")
    losses = []
    for kind in ("tokens", "tfrecord"):
        pack_files([texts], world.tokenizer, tmp_path / kind, config=DatasetConfig.model_validate({"format": kind}))
        run = train(
            dataset=tmp_path / kind,
            tokenizer=world.tokenizer,
            run_dir=tmp_path / f"run-{kind}",
            model=TINY,
            config={"steps": 3, "global_batch": 4, "seq_len": 32, "dry_run": False, "checkpoint": {"every": 3}},
            reporter=Reporter(quiet=True),
        )
        losses.append([line["loss"] for line in run.metrics() if "loss" in line])
    assert len(losses[0]) == 3
    assert losses[0] == losses[1]
