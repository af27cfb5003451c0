"""From specifications to `Cases`: one layout, or arrays of layouts over one model, cluster and work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from .cases import NAMES, Array, Cases
from .cluster import ClusterSpec
from .model_spec import ModelSpec
from .precision import arithmetic
from .stacks import stack
from .train_spec import Layout, TrainSpec

LAYOUT_FIELDS = (
    "tp", "pp", "dp", "cp", "ep", "chunks", "micro_batch", "zero", "shard_group", "schedule", "recompute",
    "recompute_light", "recompute_core",
)  # fmt: skip


def fixed_fields(model: ModelSpec, train: TrainSpec, cluster: ClusterSpec) -> dict[str, float]:
    """All fields of `Cases` that a layout does not decide. InputError when the part lacks the precision."""
    software = stack(train.stack)
    return {
        **model.case_fields(),
        **arithmetic(cluster.gpu, train.precision),
        **software.fields(),
        **train.case_fields(),
        **cluster.case_fields(),
        "derate": 1.0,
    }


def cases(model: ModelSpec, train: TrainSpec, cluster: ClusterSpec, layouts: Mapping[str, Array]) -> Cases:
    """Cases over arrays of layouts: every name in LAYOUT_FIELDS, equal lengths or scalars."""
    return Cases(**{**fixed_fields(model, train, cluster), **{name: layouts[name] for name in LAYOUT_FIELDS}})


def one_case(model: ModelSpec, train: TrainSpec, cluster: ClusterSpec, layout: Layout) -> Cases:
    """A single layout, as arrays of length one."""
    values = {**fixed_fields(model, train, cluster), **layout.case_fields()}
    return Cases(**{name: np.array([float(values[name])]) for name in NAMES})


def scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """The only entry of each array."""
    return {name: float(np.asarray(value).reshape(-1)[0]) for name, value in values.items()}


def missing_fields() -> list[str]:
    """Fields of `Cases` that nothing above provides; empty unless the two drift apart (a test asks)."""
    from .cluster import parse

    model = ModelSpec.from_fields(layers=2, hidden=64, heads=2, vocab=128)
    provided = set(fixed_fields(model, TrainSpec(1e6, 64, 8), parse("a100:8x1"))) | set(LAYOUT_FIELDS)
    return sorted({f.name for f in fields(Cases)} - provided)
