"""Causal attention within documents for CPUs: a blocked kernel out of batched matrix products.

In: q `[batch, queries, heads, head_dim]` (already scaled), k and v `[batch, keys, kv_heads, head_dim]`, and for each
query the first position of its document. The queries are the last of the keys' positions: all of them, or the tail of a
window whose earlier part another rank has. Out: `[batch, queries, heads, head_dim]`. Works tile by tile: 128 queries
of a few rows against the keys from the earliest document start to the last query, so the upper triangle and other
documents cost nothing, and scores stay in cache. One opaque operator: `torch.compile` neither unrolls it nor recompiles
for new document borders.

    out = blocked_attention(q * q.shape[-1] ** -0.5, k, v)

Measured on 1 thread of a 2-core EPYC (AVX512_BF16), torch 2.13, forward and backward, against
`scaled_dot_product_attention(is_causal=True)` in the same run, in ms: 16 x 512, 6 heads of 32: bf16 84 : 190, fp32
137 : 179; 32 x 256: 56 : 115 and 82 : 88; 4 x 1024, 8 heads of 64: 147 : 249 and 256 : 303; 1 x 4096: 744 : 794 and
1002 : 887. Products of whole matrices took 187 (bf16) and 425 (fp32) at 16 x 512.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

QUERY_BLOCK = 128
"""Queries of a tile. 64 to 256 are within 15 % of each other; larger wastes more of the triangle."""

TILE_BYTES = 3 << 20
"""Scores of a tile: small enough for the cache, large enough for the matrix products (best of 1 to 16 MiB)."""

KEEP_UP_TO = 1024
"""Windows of up to so many keys keep the probabilities for the backward pass (22 % faster at 512; at 1024 they weigh
half as much as a layer's other activations); longer ones compute them again."""


class _Tiles:
    """How a batch is cut: chunks of rows (or of the heads of one row), each into blocks of queries."""

    def __init__(self, q: Tensor, k: Tensor) -> None:
        self.batch, self.seq, self.heads, self.head_dim = q.shape
        self.before = k.shape[1] - self.seq
        """Keys before the first query."""
        self.groups = k.shape[2]
        self.share = self.heads // self.groups
        block_bytes = self.share * min(QUERY_BLOCK, self.seq) * k.shape[1] * q.element_size()
        units = max(1, TILE_BYTES // block_bytes)  # (row, kv head) pairs in a chunk
        self.rows = max(1, units // self.groups)
        self.chunk_groups = self.groups if units >= self.groups else units

    def keep_sizes(self) -> list[int]:
        """Elements to keep of each chunk's probabilities, if no document border shortens its tiles. A buffer a chunk,
        because the allocator recycles 8 MB ones and returns 60 MB ones to the system (+30 % time in fp32)."""
        triangle = sum((end - start) * (self.before + end) for start, end in self.blocks())
        return [
            (rows.stop - rows.start) * (groups.stop - groups.start) * self.share * triangle
            for rows, groups in self.chunks()
        ]

    def blocks(self) -> Iterator[tuple[int, int]]:
        for start in range(0, self.seq, QUERY_BLOCK):
            yield start, min(start + QUERY_BLOCK, self.seq)

    def chunks(self) -> Iterator[tuple[slice, slice]]:
        for row in range(0, self.batch, self.rows):
            for group in range(0, self.groups, self.chunk_groups):
                yield (
                    slice(row, min(row + self.rows, self.batch)),
                    slice(group, min(group + self.chunk_groups, self.groups)),
                )


class _Borders:
    """What the document borders mean for a tile: its first key and the mask to add."""

    def __init__(self, q: Tensor, k: Tensor, starts: Tensor | None) -> None:
        self.starts = starts
        self.before = k.shape[1] - q.shape[1]
        size = min(QUERY_BLOCK, q.shape[1])
        future = torch.ones(size, size, dtype=torch.bool, device=q.device).triu_(1)
        self.causal = torch.zeros(size, size, dtype=q.dtype, device=q.device).masked_fill_(future, float("-inf"))
        self.columns = torch.arange(k.shape[1], device=q.device)
        if starts is not None:
            block_starts = list(range(0, q.shape[1], QUERY_BLOCK))
            block_ends = [min(start + QUERY_BLOCK, q.shape[1]) - 1 for start in block_starts]
            self.first = starts[:, block_starts].tolist()
            self.last = starts[:, block_ends].tolist()

    def first_key(self, rows: slice, start: int) -> int:
        if self.starts is None:
            return 0
        block = start // QUERY_BLOCK
        return min(self.first[row][block] for row in range(rows.start, rows.stop))

    def mask(self, scores: Tensor, rows: slice, start: int, end: int, first_key: int) -> None:
        """Add -inf to what may not be seen. scores: [rows, kv heads, share, end - start, keys from first_key on]."""
        size = end - start
        scores[..., self.before + start - first_key :].add_(self.causal[:size, :size])
        if self.starts is None:
            return
        block = start // QUERY_BLOCK
        if all(self.last[row][block] == first_key for row in range(rows.start, rows.stop)):
            return  # one document, seen whole
        other = self.columns[first_key : self.before + end] < self.starts[rows, start:end, None]
        bias = torch.zeros(other.shape, dtype=scores.dtype, device=scores.device).masked_fill_(other, float("-inf"))
        scores.add_(bias[:, None, None])


def _by_head(x: Tensor) -> Tensor:
    """[batch, seq, heads, dim] -> contiguous [batch, heads, seq, dim]."""
    return x.transpose(1, 2).contiguous()


def _probabilities(
    q: Tensor, k: Tensor, borders: _Borders, rows: slice, start: int, end: int, first_key: int, out: Tensor
) -> Tensor:
    """Softmax of one tile's scores, [n, share * block, keys] in `out`. q [n, share, block, dim]; k [n, keys, dim]."""
    n, share, size, dim = q.shape
    scores = torch.bmm(q.reshape(n, share * size, dim), k.transpose(1, 2))
    borders.mask(scores.view(rows.stop - rows.start, -1, share, size, k.shape[1]), rows, start, end, first_key)
    return torch.softmax(scores, -1, out=out)


@torch.library.custom_op("headwater::blocked_attention", mutates_args=())
def _forward(q: Tensor, k: Tensor, v: Tensor, starts: Tensor | None, keep: bool) -> tuple[Tensor, list[Tensor]]:
    tiles, borders = _Tiles(q, k), _Borders(q, k, starts)
    queries = _by_head(q).view(tiles.batch, tiles.groups, tiles.share, tiles.seq, tiles.head_dim)
    keys, values = _by_head(k), _by_head(v)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    out_by_head = out.view(tiles.batch, tiles.seq, tiles.groups, tiles.share, tiles.head_dim).permute(0, 2, 3, 1, 4)
    kept = [q.new_empty(size) for size in tiles.keep_sizes()] if keep else []
    for chunk, (rows, groups) in enumerate(tiles.chunks()):
        offset = 0
        n = (rows.stop - rows.start) * (groups.stop - groups.start)
        for start, end in tiles.blocks():
            first_key, last_key = borders.first_key(rows, start), tiles.before + end
            shape = (n, tiles.share * (end - start), last_key - first_key)
            if keep:
                tile = kept[chunk][offset : offset + math.prod(shape)].view(shape)
                offset += n * tiles.share * (end - start) * last_key
            else:
                tile = q.new_empty(shape)
            probabilities = _probabilities(
                queries[rows, groups, :, start:end].flatten(0, 1),
                keys[rows, groups, first_key:last_key].flatten(0, 1),
                borders,
                rows,
                start,
                end,
                first_key,
                tile,
            )
            product = torch.bmm(probabilities, values[rows, groups, first_key:last_key].flatten(0, 1))
            target = out_by_head[rows, groups, :, start:end]
            target.copy_(product.view(target.shape))
    return out, kept


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, starts: Tensor | None, keep: bool) -> tuple[Tensor, list[Tensor]]:
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    return out, [q.new_empty(size) for size in _Tiles(q, k).keep_sizes()] if keep else []


@torch.library.custom_op("headwater::blocked_attention_backward", mutates_args=())
def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, starts: Tensor | None, kept: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    tiles, borders = _Tiles(q, k), _Borders(q, k, starts)
    shape = (tiles.batch, tiles.groups, tiles.share, tiles.seq, tiles.head_dim)
    queries, grads = _by_head(q).view(shape), _by_head(grad).view(shape)
    keys, values = _by_head(k), _by_head(v)
    grad_q = q.new_empty(shape)
    # Keys and values collect from many tiles: in float32, or each addition would round to 8 bits.
    wide = torch.promote_types(q.dtype, torch.float32)
    grad_k = torch.zeros(keys.shape, dtype=wide, device=q.device)
    grad_v = torch.zeros(keys.shape, dtype=wide, device=q.device)
    for chunk, (rows, groups) in enumerate(tiles.chunks()):
        offset = 0
        n = (rows.stop - rows.start) * (groups.stop - groups.start)
        for start, end in tiles.blocks():
            first_key, last_key = borders.first_key(rows, start), tiles.before + end
            query = queries[rows, groups, :, start:end].flatten(0, 1)
            key = keys[rows, groups, first_key:last_key].flatten(0, 1)
            value = values[rows, groups, first_key:last_key].flatten(0, 1)
            size = (n, tiles.share * (end - start), last_key - first_key)
            if kept:
                p = kept[chunk][offset : offset + math.prod(size)].view(size)
                offset += n * tiles.share * (end - start) * last_key
            else:
                p = _probabilities(query, key, borders, rows, start, end, first_key, q.new_empty(size))
            query = query.reshape(n, -1, tiles.head_dim)
            out_grad = grads[rows, groups, :, start:end].reshape(n, -1, tiles.head_dim)
            d_scores = torch._softmax_backward_data(torch.bmm(out_grad, value.transpose(1, 2)), p, -1, p.dtype)
            into_v = grad_v[rows, groups, first_key:last_key]
            into_v += torch.bmm(p.transpose(1, 2), out_grad).view(into_v.shape)
            into_k = grad_k[rows, groups, first_key:last_key]
            into_k += torch.bmm(d_scores.transpose(1, 2), query).view(into_k.shape)
            into_q = grad_q[rows, groups, :, start:end]
            into_q.copy_(torch.bmm(d_scores, key).view(into_q.shape))
    return (
        grad_q.flatten(1, 2).transpose(1, 2),
        grad_k.to(q.dtype).transpose(1, 2),
        grad_v.to(q.dtype).transpose(1, 2),
    )


@_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, starts: Tensor | None, kept: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    fresh = [x.new_empty(x.transpose(1, 2).shape).transpose(1, 2) for x in (q, k, v)]
    return fresh[0], fresh[1], fresh[2]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, list[Tensor]]) -> None:
    q, k, v, starts, _ = inputs
    ctx.save_for_backward(q, k, v, starts, *output[1])
    ctx.mark_non_differentiable(*output[1])


def _autograd(ctx: Any, grad: Tensor, _: list[Tensor]) -> tuple[Tensor | None, ...]:
    q, k, v, starts, *kept = ctx.saved_tensors
    return (*_backward(grad, q, k, v, starts, kept), None, None)


_forward.register_autograd(_autograd, setup_context=_setup_context)


def blocked_attention(q: Tensor, k: Tensor, v: Tensor, starts: Tensor | None = None) -> Tensor:
    """Softmax(q k^T) v over the keys from the query's document start to the query itself.

    q: [batch, queries, heads, head_dim], already multiplied by the scale; k, v: [batch, keys, kv_heads, head_dim],
    heads a multiple of kv_heads, keys at least queries; starts: int [batch, queries], the first position of each
    query's document, counted in keys (None: 0). All of one dtype. Query i stands at key keys - queries + i. Returns
    [batch, queries, heads, head_dim]. Scores of bfloat16 inputs are rounded to bfloat16.
    """
    if k.shape[1] < q.shape[1]:
        raise ValueError(f"{q.shape[1]} queries have only {k.shape[1]} keys; each query must stand at a key")
    keep = torch.is_grad_enabled() and k.shape[1] <= KEEP_UP_TO
    return _forward(q, k, v, starts, keep)[0]
