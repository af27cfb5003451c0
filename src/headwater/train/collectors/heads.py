"""What attention heads do: how spread their attention is, how much of it sinks, how large their logits get, and
whether their output still counts.

In: one window (the first of a step's global batch) in a forward pass of its own, without gradients. Out: on every rank,
figures of all heads of the model, each a mean over `QUERIES` positions spread evenly over the window:

- `head_entropy`: entropy of the attention over its largest possible value, ln(visible keys). Near 0 a head looks at
  single tokens; low entropy goes with unstable training (Zhai et al. 2023, arXiv 2303.06296).
- `head_sink`: probability of the first visible key, of its document.
- `head_max_logit`: the largest score before the softmax; above about 100 training is in danger (Kimi K2's qk-clip).
- `head_activity`: RMS of the head's output as it enters the stream (through its columns of o_proj), over the mean of
  its layer's heads. A dead head is near 0.

    heads = HeadFigures(model_config, mesh, context)
    with heads.watching(stages): ...one forward pass...
    sample = heads.sample()

Fused attention gives no probabilities, so scores of the chosen queries are computed again from the very queries and
keys the model uses. Under tensor parallelism a rank has some of the heads, under context parallelism some of the
queries (keys are gathered), in a pipeline some of the layers; one all-reduce brings them together. Only the
data-parallel rank with the global batch's first window counts: others go along, as their parameters are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headwater.model import BlockLayout, ModelConfig
from headwater.model.both_ways import Borders
from headwater.model.hf import Model
from headwater.model.interval_attention import NO_LIMIT
from headwater.parallel.context import ContextParallel
from headwater.parallel.mesh import Mesh
from headwater.parallel.slices import local

QUERIES = 64
AT_ONCE = 1 << 24
"""Elements that are made at once: of scores, and of the heads' outputs at the model's width."""

ENTROPY, SINK, SQUARES, COUNTED, LOOKED = range(5)
"""Rows of the sums: figures, then the number of queries behind the first two and behind the third."""


class HeadFigures:
    """See the module. `watching` and `sample` are called by all ranks together."""

    def __init__(self, config: ModelConfig, mesh: Mesh, context: ContextParallel | None) -> None:
        self._mesh, self._context = mesh, context
        self._shape = (config.num_hidden_layers, config.num_attention_heads)
        self._counts = mesh.coordinate("dp") == 0
        self._clear()

    def _clear(self) -> None:
        wide = torch.float32 if self._mesh.device.type == "mps" else torch.float64
        self._sums = torch.zeros(5, *self._shape, dtype=wide, device=self._mesh.device)
        self._largest = torch.full(self._shape, -torch.inf, dtype=wide, device=self._mesh.device)

    @contextmanager
    def watching(self, stages: Sequence[Model]) -> Iterator[None]:
        """Look at every attention of the stages in a block that makes one forward pass of one window."""
        attentions: list[tuple[int, Any]] = [
            (int(layer), block.self_attn) for stage in stages for layer, block in stage.model.layers.items()
        ]
        before = [attention.__dict__.get("attend") for _, attention in attentions]
        for layer, attention in attentions:
            attention.attend = self._looking(layer, attention, attention.attend)
        try:
            yield
        finally:
            for (_, attention), own in zip(attentions, before, strict=True):
                if own is None:
                    del attention.attend  # the class's own
                else:
                    attention.attend = own

    def _looking(self, layer: int, attention: Any, attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def wrapper(q: Tensor, k: Tensor, v: Tensor, borders: BlockLayout | Borders | None, *rest: Any) -> Tensor:
            out = attend(q, k, v, borders, *rest)
            if self._counts:
                with torch.autocast(q.device.type, enabled=False):
                    self._look(layer, attention, q, k, out, borders)
            return out

        return wrapper

    @torch.no_grad()
    def _look(
        self, layer: int, attention: Any, q: Tensor, k: Tensor, out: Tensor, borders: BlockLayout | Borders | None
    ) -> None:
        """This rank's columns and heads: q, out [1, columns, heads, head_dim], k [1, columns, kv_heads, head_dim]."""
        keys = self._whole(k[0])
        columns, places = self._chosen(keys.shape[0], q.device)
        queries, outputs = q[0, columns], out[0, columns].float()
        n, heads, _ = queries.shape
        if not n:
            return
        start = self._mesh.coordinate("tp") * heads
        here = self._sums[:, layer, start : start + heads]
        largest = self._largest[layer, start : start + heads]
        here[SQUARES] += _through_output(outputs, local(attention.o_proj.weight).float())
        here[LOOKED] += n
        first, end = _visible(places, keys.shape[0], borders, getattr(attention, "reach", None))
        several = end - first > 1  # one key leaves no choice
        here[COUNTED] += several.sum()
        share = heads // keys.shape[1]
        groups = max(1, AT_ONCE // (share * n * keys.shape[0]))
        for group in range(0, keys.shape[1], groups):
            own = slice(share * group, min(heads, share * (group + groups)))
            scores = _scores(queries[:, own], keys[:, group : group + groups], first, end)
            log_z = scores.logsumexp(-1)
            weights = (scores - log_z[..., None]).exp_()
            entropy = log_z - (weights * scores.clamp(min=torch.finfo(scores.dtype).min)).sum(-1)
            possible = (end - first).clamp(min=2).to(entropy.dtype).log()
            sink = weights.gather(-1, first.expand(len(scores), n)[..., None])[..., 0]
            here[ENTROPY, own] += (entropy / possible * several).sum(-1)
            here[SINK, own] += (sink * several).sum(-1)
            largest[own] = torch.maximum(largest[own], scores.amax((-2, -1)).to(largest.dtype))

    def _chosen(self, seq: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """(columns of this rank, places in the window) of the queries that are looked at."""
        count = min(QUERIES, seq)
        wanted = [(number + 1) * seq // count - 1 for number in range(count)]
        chosen: list[tuple[int, int]] = []
        column = 0
        for first, end in [(0, seq)] if self._context is None else self._context.pieces(seq):
            chosen += [(column + place - first, place) for place in wanted if first <= place < end]
            column += end - first
        both = torch.tensor(chosen, dtype=torch.int64, device=device).view(-1, 2)
        return both[:, 0], both[:, 1]

    def _whole(self, keys: Tensor) -> Tensor:
        """[columns, kv_heads, head_dim] of this rank -> all of the window's, in order."""
        group = self._mesh.group("cp")
        if self._context is None or group is None:
            return keys
        gathered = [torch.empty_like(keys, memory_format=torch.contiguous_format) for _ in range(self._context.size)]
        dist.all_gather(gathered, keys.contiguous(), group=group)
        seq = keys.shape[0] * self._context.size
        whole = keys.new_empty(seq, *keys.shape[1:])
        for rank, part in enumerate(gathered):
            offset = 0
            for first, end in ContextParallel(self._context.method, None, rank, self._context.size).pieces(seq):
                whole[first:end] = part[offset : offset + end - first]
                offset += end - first
        return whole

    def sample(self) -> dict[str, dict[str, float]]:
        """Figures by metric and `layers.3.head.5`; heads that no query looked at with a choice have no entropy."""
        if (world := self._mesh.group("world")) is not None:
            dist.all_reduce(self._sums, group=world)
            dist.all_reduce(self._largest, dist.ReduceOp.MAX, group=world)
        sums, largest = self._sums.cpu(), self._largest.cpu()
        self._clear()
        rms = (sums[SQUARES] / sums[LOOKED]).sqrt()
        mean = rms.mean(-1, keepdim=True)
        found = {
            "head_entropy": sums[ENTROPY] / sums[COUNTED],
            "head_sink": sums[SINK] / sums[COUNTED],
            "head_max_logit": largest,
            "head_activity": torch.where(mean > 0, rms / mean, 0.0),
        }
        return {
            metric: {
                f"layers.{layer}.head.{head}": value
                for layer, row in enumerate(values.tolist())
                for head, value in enumerate(row)
                if value == value
            }
            for metric, values in found.items()
        }


def _scores(queries: Tensor, keys: Tensor, first: Tensor, end: Tensor) -> Tensor:
    """[heads, queries, keys] before the softmax, -inf where a key is not seen. queries [queries, heads, head_dim], keys
    [keys, kv_heads, head_dim]."""
    n, heads, width = queries.shape
    grouped = queries.float().view(n, keys.shape[1], -1, width)
    scores = torch.einsum("ngme,sge->gmns", grouped, keys.float()).reshape(heads, n, -1)
    seen = torch.arange(keys.shape[0], device=keys.device)
    return scores.masked_fill_((seen < first[:, None]) | (seen >= end[:, None]), -torch.inf)


def _visible(
    places: Tensor, seq: int, borders: BlockLayout | Borders | None, reach: int | None
) -> tuple[Tensor, Tensor]:
    """(first key, one after the last) that the queries at `places` see; `reach`: of an encoder, None: a decoder."""
    starts = None if borders is None else borders.starts
    first = torch.zeros_like(places) if starts is None else starts[0, places].long()
    if reach is None:
        return first, places + 1
    ends = borders.ends if isinstance(borders, Borders) else None
    end = torch.full_like(places, seq) if ends is None else ends[0, places].long()
    if reach != NO_LIMIT:
        first, end = torch.maximum(first, places - reach), torch.minimum(end, places + reach + 1)
    return first, end


def _through_output(outputs: Tensor, weight: Tensor) -> Tensor:
    """[heads]: sum over queries of the squared size of each head's part of o_proj's result. outputs [queries, heads,
    head_dim], weight [hidden, heads x head_dim]."""
    n, heads, width = outputs.shape
    by_head = weight.view(-1, heads, width)
    at_once = max(1, AT_ONCE // (n * by_head.shape[0]))
    parts = [
        torch.einsum("nhe,dhe->hnd", outputs[:, start : start + at_once], by_head[:, start : start + at_once])
        .square()
        .sum((1, 2))
        for start in range(0, heads, at_once)
    ]
    return torch.cat(parts)
