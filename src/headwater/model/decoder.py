"""The decoder: Llama's blocks as plain modules, with Hugging Face's parameter names and no parallel code.

In: tokens `[batch, seq]` (or, in a later pipeline stage, hidden states `[batch, seq, hidden_size]`), positions,
document borders. Out: hidden states; the head is applied by the loss (`headwater.model.loss`) or by `Decoder.logits`.

    model = Decoder(config); init_weights(model, seed=0)
    hidden = model(tokens); logits = model.logits(hidden)

What others rely on: layers are a `ModuleDict` keyed by absolute layer index, so a stage keeps a subset; heads are found
by `view(batch, seq, -1, head_dim)`, so a tensor-parallel rank may hold some of them; every projection is a Linear of
its own; there are no buffers; a block fits `torch.utils.checkpoint` and `torch.compile`.
Axes in names: b batch, s sequence, d hidden_size, h heads, e head_dim.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwater.model.attention import attend
from headwater.model.cache import AttentionCache
from headwater.model.config import ModelConfig
from headwater.model.layout import BlockLayout
from headwater.model.norm import RMSNorm
from headwater.model.rope import Rotary, rotate


class Attention(nn.Module):
    """Grouped-query self-attention with rotary positions."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.head_dim = layer, config.head_dim
        width, q, kv = (
            config.hidden_size,
            config.num_attention_heads * config.head_dim,
            config.num_key_value_heads * config.head_dim,
        )
        self.q_proj = nn.Linear(width, q, bias=bool(config.attention_bias))
        self.k_proj = nn.Linear(width, kv, bias=bool(config.attention_bias))
        self.v_proj = nn.Linear(width, kv, bias=bool(config.attention_bias))
        self.o_proj = nn.Linear(q, width, bias=config.attention_bias is True)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None

    def forward(
        self,
        x_bsd: Tensor,
        cos: Tensor,
        sin: Tensor,
        layout: BlockLayout | None = None,
        cache: AttentionCache | None = None,
    ) -> Tensor:
        batch, seq, _ = x_bsd.shape
        q_bshe = self.q_proj(x_bsd).view(batch, seq, -1, self.head_dim)
        k_bshe = self.k_proj(x_bsd).view(batch, seq, -1, self.head_dim)
        v_bshe = self.v_proj(x_bsd).view(batch, seq, -1, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q_bshe, k_bshe = self.q_norm(q_bshe), self.k_norm(k_bshe)
        scale = self.head_dim**-0.5  # on the queries' angles, which are few, rather than on the scores
        q_bshe, k_bshe = rotate(q_bshe, cos * scale, sin * scale), rotate(k_bshe, cos, sin)
        out_bshe = self.attend(q_bshe, k_bshe, v_bshe, layout, cache)
        return self.o_proj(out_bshe.reshape(batch, seq, -1))

    def attend(
        self, q_bshe: Tensor, k_bshe: Tensor, v_bshe: Tensor, layout: BlockLayout | None, cache: AttentionCache | None
    ) -> Tensor:
        """Attention between its projections, on its own so that it can be computed again in the backward pass."""
        if cache is not None:
            return cache.attend(self.layer, q_bshe, k_bshe, v_bshe)
        if layout is not None:
            return layout.attend(q_bshe, k_bshe, v_bshe)
        return attend(q_bshe, k_bshe, v_bshe, None)


class FeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202): down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_bsd: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x_bsd)) * self.up_proj(x_bsd))


class Block(nn.Module):
    """One layer: attention and feed-forward, each on a normalised copy and added to the stream."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = FeedForward(config)

    def forward(
        self,
        x_bsd: Tensor,
        cos: Tensor,
        sin: Tensor,
        layout: BlockLayout | None = None,
        cache: AttentionCache | None = None,
    ) -> Tensor:
        x_bsd = x_bsd + self.self_attn(self.input_layernorm(x_bsd), cos, sin, layout, cache)
        return x_bsd + self.mlp(self.post_attention_layernorm(x_bsd))


class Backbone(nn.Module):
    """Embedding, layers and final norm: what Hugging Face calls `model`. First and last are None in a middle stage."""

    def __init__(self, config: ModelConfig, layers: Iterable[int], first: bool, last: bool) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.padded_vocab_size, config.hidden_size) if first else None
        self.layers = nn.ModuleDict({str(layer): Block(config, layer) for layer in layers})
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps) if last else None


class Decoder(nn.Module):
    """A decoder-only language model, or a stage of one.

    `layers`, `first` and `last` make a pipeline stage: it holds these layers, the embedding if it is first, the final
    norm and the head if it is last. A tied head is the embedding itself where one stage holds both, else a copy named
    `lm_head.weight` that must be kept equal from outside.

    Weights are uninitialised until `init_weights` or a load; `config.vocab_size` must be known.
    """

    def __init__(
        self, config: ModelConfig, *, layers: Iterable[int] | None = None, first: bool = True, last: bool = True
    ) -> None:
        super().__init__()
        self.config = config
        self.rotary = Rotary(config)
        self.model = Backbone(config, range(config.num_hidden_layers) if layers is None else layers, first, last)
        tied = config.tie_word_embeddings and first
        self.lm_head = (
            nn.Linear(config.hidden_size, config.padded_vocab_size, bias=False) if last and not tied else None
        )

    @property
    def lm_head_weight(self) -> Tensor:
        """The output matrix [padded vocabulary, hidden_size]: the head's, or the embedding's where they are tied."""
        if self.lm_head is not None:
            return self.lm_head.weight
        assert self.model.embed_tokens is not None, "this stage has no head"
        return self.model.embed_tokens.weight

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        layout: BlockLayout | None = None,
        cache: AttentionCache | None = None,
    ) -> Tensor:
        """tokens: integers [batch, seq], or hidden states [batch, seq, hidden_size] if this stage has no embedding.
        positions: integers [batch, seq] (None: 0, 1, 2 ...). layout: document borders (None: each row one document).
        cache: keys and values of earlier tokens; then positions say where the tokens stand.

        Returns hidden states [batch, seq, hidden_size], after the final norm if this stage has it.
        """
        x_bsd = tokens if self.model.embed_tokens is None else self.model.embed_tokens(tokens)
        if positions is None:
            positions = torch.arange(x_bsd.shape[1], device=x_bsd.device).unsqueeze(0)
        if cache is not None:
            positions = positions.expand(x_bsd.shape[0], -1)
            cache.begin(positions)
        cos, sin = self.rotary(positions, None if layout is None else layout.longest)
        for block in self.model.layers.values():
            x_bsd = block(x_bsd, cos, sin, layout, cache)
        return x_bsd if self.model.norm is None else self.model.norm(x_bsd)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores [..., vocab_size] of hidden states [..., hidden_size]; padding rows of the head are left out."""
        return F.linear(hidden, self.lm_head_weight[: self.config.true_vocab_size])
