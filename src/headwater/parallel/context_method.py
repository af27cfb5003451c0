"""Which way of context parallelism a layout takes, and whether the sequences can be cut for it. Needs no torch.

In: the `parallel` section, the model's heads, sequence lengths. Out: a method with its reason, or what does not fit.

    choose_method(ParallelConfig(cp=4), heads=32, kv_heads=8)  # ("ulysses", "32 query and 8 key-value heads ...")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from headwater.model.config import ModelConfig
    from headwater.parallel.config import ParallelConfig

Method = Literal["ulysses", "all_gather"]


def method_of(parallel: ParallelConfig, model: ModelConfig) -> tuple[Method, str]:
    """`choose_method` for a model. `ValueError` also for an encoder: its layers look both ways."""
    if model.architecture == "encoder":
        raise ValueError(
            f"cp {parallel.cp} shares windows that are read from left to right; an encoder looks both ways"
            "\n  mend: use cp: 1; tp shares an encoder's sequences between its matrices"
        )
    return choose_method(parallel, heads=model.num_attention_heads, kv_heads=model.num_key_value_heads)


def choose_method(parallel: ParallelConfig, *, heads: int, kv_heads: int) -> tuple[Method, str]:
    """(method, why). heads, kv_heads: of the whole model; a tensor-parallel rank holds its share of them.

    Raises `ValueError` (what, then `mend:`) where Ulysses is asked for and the heads do not divide.
    """
    tp, cp = parallel.tp, parallel.cp
    on_a_rank = "" if tp == 1 else f" on each of {tp} tensor-parallel ranks"
    have = f"{heads // tp} query and {max(1, kv_heads // tp)} key-value heads{on_a_rank}"
    divides = heads % (tp * cp) == 0 and kv_heads % (tp * cp) == 0
    if parallel.cp_method == "ulysses" and not divides:
        raise ValueError(
            f"cp_method ulysses gives every context-parallel rank whole heads, and {have} do not divide over cp {cp}"
            "\n  mend: use cp_method: all_gather (or auto), or a cp that divides both"
        )
    if parallel.cp_method != "auto":
        return parallel.cp_method, "as asked for"
    if divides:
        return "ulysses", f"{have} divide over cp {cp}: two all-to-alls a layer and pass, full-length attention"
    return "all_gather", f"{have} do not divide over cp {cp}: keys and values are gathered"


def length_problem(parallel: ParallelConfig, seq_len: int, method: Method) -> str | None:
    """Why windows of `seq_len` tokens cannot be cut for this layout; None if they can."""
    cp, tp = parallel.cp, parallel.tp
    pieces = cp if method == "ulysses" else 2 * cp
    if seq_len % pieces:
        why = "" if method == "ulysses" else f" (each rank takes an early and a late piece of every window: 2 x {cp})"
        return f"{seq_len:,} tokens do not divide into {pieces:,} pieces for cp {cp:,}{why}"
    if cp > 1 and (seq_len // cp) % tp:
        return f"{seq_len:,} tokens leave {seq_len // cp:,} on each of {cp} cp ranks, which do not divide over tp {tp}"
    return None
