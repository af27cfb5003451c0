"""The whole matrix of layouts: each axis alone, pairs, all of them, 2 to 16 real ranks, against one process.

`HEADWATER_PARITY=table.md pytest tests/parallel/test_matrix.py` also writes what was measured as a table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.model import ModelConfig
from headwater.parallel.config import ParallelConfig
from headwater.parallel.short import parse_layout
from headwater.pipeline.certify import MATRIX, TABLE_HEAD, table_row, text
from headwater.train.certificate import Certificate, certify
from headwater.train.certificate_case import small_case
from headwater.train.config import TrainConfig

LLAMA = {
    "hidden_size": 256,
    "num_hidden_layers": 9,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "vocab_size": 1000,
    "head_dim": 8,
    "qk_norm": True,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
}
"""Grouped queries, normalised heads, a head of its own, uneven stages; z-loss."""
TIED = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 700,
    "tie_word_embeddings": True,
    "attention_bias": True,
    "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
    "max_position_embeddings": 32,
}
"""A tied head, biases, a rotary base that depends on the window; activations computed again."""
ENCODER = {
    "architecture": "encoder",
    "hidden_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "vocab_size": 700,
    "tie_word_embeddings": True,
}

MODELS: dict[str, dict[str, Any]] = {"llama": LLAMA, "tied": TIED, "encoder": ENCODER}

OTHERS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    *(
        (layout, "tied", {"activation_checkpointing": "full", "document_mask": False})
        for layout in (
            *("tp=2", "cp=2,cp_method=ulysses", "cp=2,cp_method=all_gather", "pp=2,schedule=zbv"),
            *("dp=2,zero=3,cp=2,tp=2", "cp=2,tp=2,pp=2", "dp=2,tp=2,pp=2,schedule=interleaved_zero_bubble"),
        )
    ),
    ("dp=2,tp=2,pp=2", "llama", {"activation_checkpointing": "selective", "optimizer": {"name": "muon", "lr": 0.02}}),
    ("dp=2,zero=2,cp=2,pp=2,schedule=dualpipev", "llama", {}),
    ("cp=4,cp_method=all_gather", "llama", {}),
    ("cp=2,tp=2,precision=bf16", "llama", {}),
    ("dp=2,zero=3,tp=2,precision=fp8", "llama", {}),
    *((layout, "encoder", {"objective": "mlm"}) for layout in ("dp=2,zero=3", "tp=2", "dp=2,tp=2,pp=2")),
)


@pytest.fixture(scope="module")
def measured() -> Iterator[dict[str, list[Certificate]]]:
    """What was found, by kind of model."""
    found: dict[str, list[Certificate]] = {}
    yield found
    if (path := os.environ.get("HEADWATER_PARITY")) is not None:
        parts = [[f"## {name}", "", TABLE_HEAD, *map(table_row, rows), ""] for name, rows in found.items()]
        Path(path).write_text("\n".join(line for part in parts for line in part), "utf-8")


def _check(layout: str, name: str, train: dict[str, Any], measured: dict[str, list[Certificate]]) -> None:
    fields, precision = parse_layout(layout)
    config = TrainConfig.model_validate({"steps": 100, "optimizer": {"lr": 1e-3}, "z_loss": 1e-4, **train})
    parallel = ParallelConfig.model_validate(fields)
    full = ModelConfig.model_validate(MODELS[name])
    found = certify(small_case(full, config, parallel, precision=precision or "fp32", seed=0), timeout=120)
    measured.setdefault(name, []).append(found)
    assert found.agrees, text(found)
    assert found.leak_unknown or found.moved >= 2


@pytest.mark.parametrize("layout", MATRIX)
def test_a_layout_trains_as_one_process_does(layout: str, measured: dict[str, list[Certificate]]) -> None:
    _check(layout, "llama", {}, measured)


@pytest.mark.parametrize(("layout", "model", "train"), OTHERS, ids=[f"{model}-{layout}" for layout, model, _ in OTHERS])
def test_other_models_and_steps_do_too(
    layout: str, model: str, train: dict[str, Any], measured: dict[str, list[Certificate]]
) -> None:
    _check(layout, model, train, measured)
