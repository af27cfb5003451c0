"""Whether a model's matrices and samples can be cut for tensor parallelism, and why not. Needs no torch.

In: the shape of a model, the layout, lengths of samples by name. Out: (recipe field, what is wrong, how to mend it) for
everything that does not divide.

    list(tensor_problems(model, ParallelConfig(tp=4), {"train.seq_len": 2048}))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headwater.core.errors import RecipeError
from headwater.model.config import VOCAB_MULTIPLE, ModelConfig
from headwater.parallel.config import ParallelConfig


def tensor_problems(
    model: ModelConfig, parallel: ParallelConfig, lengths: Mapping[str, int]
) -> Iterator[tuple[str, str, str]]:
    """What keeps `parallel.tp` from cutting the model; nothing for `tp: 1`."""
    tp = parallel.tp
    if tp == 1:
        return
    heads, groups = model.num_attention_heads, model.num_key_value_heads
    lower = f"use tp {_largest_divisor(tp, heads, groups, model.intermediate_size, VOCAB_MULTIPLE)}"
    if heads % tp:
        yield (
            "parallel.tp",
            f"a tensor-parallel rank holds whole heads; model.num_attention_heads {heads} does not divide over tp {tp}",
            lower,
        )
    elif groups % tp:
        yield (
            "parallel.tp",
            "a tensor-parallel rank holds whole key-value heads, or copies of one would be trained apart; "
            f"model.num_key_value_heads {groups} does not divide over tp {tp}",
            f"{lower}, or set model.num_key_value_heads to a multiple of {tp}",
        )
    if model.intermediate_size % tp:
        yield (
            "parallel.tp",
            f"model.intermediate_size {model.intermediate_size:,} does not divide over tp {tp}",
            f"{lower}, or set model.intermediate_size to a multiple of {tp}",
        )
    rows = VOCAB_MULTIPLE if model.vocab_size is None else model.padded_vocab_size
    if rows % tp:
        counted = f"a vocabulary padded to a multiple of {rows}" if model.vocab_size is None else f"{rows:,}"
        yield "parallel.tp", f"rows of embedding and head ({counted}) do not divide over tp {tp}", lower
    if parallel.cp > 1:
        return  # what a rank of both has to divide by is context parallelism's to say
    for name, length in lengths.items():
        if length % tp:
            yield (
                "parallel.tp",
                f"{name} {length:,} does not divide over tp {tp}, whose ranks share the sequence between matrices",
                f"use a length that is a multiple of {tp}",
            )


def check_divisible(model: ModelConfig, parallel: ParallelConfig, lengths: Mapping[str, int]) -> None:
    """RecipeError with the first of the problems, if there is one."""
    for where, what, mend in tensor_problems(model, parallel, lengths):
        raise RecipeError(what, where=where, mend=mend)


def _largest_divisor(limit: int, *sizes: int) -> int:
    return next(d for d in range(limit, 0, -1) if all(size % d == 0 for size in sizes))
