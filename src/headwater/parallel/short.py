"""A layout in one line: `dp=2,tp=2,pp=2,cp=1,zero=3,schedule=interleaved_1f1b`.

In: the line. Out: fields of the `parallel` section, and a precision if one is named. Fields keep their own names too.

- `dp`: data-parallel ranks. With `zero` 1, 2 or 3 they share state (`dp_shard`); without, or with 0, they are copies
  (`dp_replicate`). `dp_replicate` and `dp_shard` name them apart.
- `zero`: `zero_stage`; `v`: `virtual_stages`, which is 2 where a schedule needs several and none are named.
- Other projects' names that the `parallel` section knows (`tensor_model_parallel_size`) are known here too.

    parse_layout("dp=4,zero=2,pp=2,schedule=zbv") == ({"dp_shard": 4, "zero_stage": 2, "pp": 2, "schedule": "zbv",
                                                       "virtual_stages": 2}, None)
"""

from __future__ import annotations

import re
from typing import Any

from headwater.core.config import field_aliases
from headwater.core.errors import UserError
from headwater.parallel.config import INTERLEAVED, V_SHAPED, ParallelConfig

_NUMBERS = ("dp", "dp_replicate", "dp_shard", "tp", "pp", "cp", "zero", "virtual_stages", "micro_batch")
_WORDS = ("schedule", "cp_method", "precision")
_OTHER_NAMES = {
    alias: name
    for name, known in ParallelConfig.model_fields.items()
    if name in (*_NUMBERS, *_WORDS)
    for alias in field_aliases(known)
} | {"zero_stage": "zero", "zero_optimization.stage": "zero", "v": "virtual_stages"}


def parse_layout(line: str) -> tuple[dict[str, Any], str | None]:
    """(fields of `parallel`, precision). Raises UserError for what is no layout."""
    given: dict[str, Any] = {}
    for item in line.split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        name = _OTHER_NAMES.get(name, name)
        if not equals and name in (*_NUMBERS, *_WORDS):
            raise _refusal(f"{name} has no value", f"write {name}=VALUE")
        if name not in (*_NUMBERS, *_WORDS):
            raise _refusal(f"{item.strip()!r} is no part of a layout", f"use {', '.join((*_NUMBERS, *_WORDS))}")
        if name in given:
            raise _refusal(f"{name} is given twice", f"give {name} once")
        if name in _WORDS:
            given[name] = value
            continue
        given[name] = _count(name, value)
    precision = given.pop("precision", None)
    zero = given.pop("zero", None)
    if (dp := given.pop("dp", None)) is not None:
        if {"dp_replicate", "dp_shard"} & given.keys():
            raise _refusal("dp is given beside dp_replicate or dp_shard", "give dp, or its two parts")
        given["dp_shard" if zero else "dp_replicate"] = dp
    if zero is not None:
        given["zero_stage"] = zero
    if given.get("schedule") in (*INTERLEAVED, *V_SHAPED) and given.get("pp", 1) > 1:
        given.setdefault("virtual_stages", 2)
    return given, precision


def _count(name: str, value: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,9}", value):
        raise _refusal(f"{name} = {value!r} is not a whole number", f"write {name}=2 or the like")
    number = int(value)
    if name == "zero" and not 0 <= number <= 3:
        raise _refusal(f"zero = {number} is no ZeRO stage", "write zero=0, 1, 2 or 3")
    if name != "zero" and number < 1:
        raise _refusal(f"{name} = {number} is less than 1", f"write {name}=1 or more, or leave {name} out")
    return number


def short_layout(parallel: ParallelConfig, precision: str | None = None) -> str:
    """The line that `parse_layout` reads as this layout."""
    default = ParallelConfig()
    parts = [
        f"{name}={getattr(parallel, name)}"
        for name in ("dp_replicate", "dp_shard", "tp", "pp", "cp")
        if getattr(parallel, name) != 1
    ]
    if parallel.zero_stage is not None:
        parts.append(f"zero={parallel.zero_stage}")
    if parallel.pp > 1:
        parts.append(f"schedule={parallel.schedule}")
        if parallel.virtual_stages != default.virtual_stages:
            parts.append(f"virtual_stages={parallel.virtual_stages}")
    if parallel.cp > 1 and parallel.cp_method != default.cp_method:
        parts.append(f"cp_method={parallel.cp_method}")
    if parallel.micro_batch is not None:
        parts.append(f"micro_batch={parallel.micro_batch}")
    return ",".join([*parts, f"precision={precision}"] if precision else parts) or "dp=1"


def _refusal(what: str, mend: str) -> UserError:
    return UserError(what, where="--layout", mend=mend)
