"""The encoder: ModernBERT's blocks (arXiv 2412.13663) as plain modules, with the seams of the decoder.

In: tokens `[batch, seq]` (or, in a later pipeline stage, hidden states `[batch, seq, hidden_size]`), positions,
document borders. Out: hidden states; in the last stage those that the vocabulary's matrix and bias are applied to,
which the loss does (`headwater.model.loss`), or `Encoder.logits`.

    model = Encoder(config); init_weights(model, seed=0)
    hidden = model(tokens); logits = model.logits(hidden)

Parameters are called as the decoder's are, so that what is applied from outside (tensor parallelism, checkpointed
activations, stages) finds them: q, k, v, gate and up are Linear modules of their own. `modernbert_hf` renames and joins
them for Hugging Face. Axes in names: b batch, s sequence, d hidden_size, h heads, e head_dim.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwater.model.both_ways import Borders, attend_both_ways
from headwater.model.config import ModelConfig
from headwater.model.interval_attention import NO_LIMIT
from headwater.model.layout import BlockLayout
from headwater.model.precision import product_dtype
from headwater.model.rope import Rotary, rotate

Angles = tuple[Tensor, Tensor]
"""cos and sin, each [batch, seq, head_dim]."""


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Over the last axis, in float32 or wider; under autocast the result has autocast's dtype, so that no projection
    casts it again."""
    return F.layer_norm(x, weight.shape, weight, bias, eps).to(product_dtype(x))


class LayerNorm(nn.LayerNorm):
    """See `layer_norm`."""

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)


def _norm(config: ModelConfig) -> LayerNorm:
    return LayerNorm(config.hidden_size, eps=config.rms_norm_eps, bias=config.encoder_config.norm_bias)


class EncoderAttention(nn.Module):
    """Self-attention both ways with rotary positions, over the whole document or a window around each token."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        encoder = config.encoder_config
        self.head_dim = config.head_dim
        self.reach = NO_LIMIT if encoder.is_global(layer) else encoder.local_attention // 2
        width, bias = config.hidden_size, bool(config.attention_bias)
        self.q_proj = nn.Linear(width, width, bias=bias)
        self.k_proj = nn.Linear(width, width, bias=bias)
        self.v_proj = nn.Linear(width, width, bias=bias)
        self.o_proj = nn.Linear(width, width, bias=bias)

    def forward(self, x_bsd: Tensor, cos: Tensor, sin: Tensor, borders: Borders) -> Tensor:
        batch, seq, _ = x_bsd.shape
        q_bshe = self.q_proj(x_bsd).view(batch, seq, -1, self.head_dim)
        k_bshe = self.k_proj(x_bsd).view(batch, seq, -1, self.head_dim)
        v_bshe = self.v_proj(x_bsd).view(batch, seq, -1, self.head_dim)
        scale = self.head_dim**-0.5
        q_bshe, k_bshe = rotate(q_bshe, cos * scale, sin * scale), rotate(k_bshe, cos, sin)
        out_bshe = self.attend(q_bshe, k_bshe, v_bshe, borders)
        return self.o_proj(out_bshe.reshape(batch, seq, -1))

    def attend(self, q_bshe: Tensor, k_bshe: Tensor, v_bshe: Tensor, borders: Borders) -> Tensor:
        """Attention between its projections, on its own so that it can be computed again in the backward pass."""
        return attend_both_ways(q_bshe, k_bshe, v_bshe, borders, self.reach)


class EncoderFeedForward(nn.Module):
    """GeGLU (arXiv 2002.05202): down(gelu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        bias = config.encoder_config.mlp_bias
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=bias)

    def forward(self, x_bsd: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.gate_proj(x_bsd)) * self.up_proj(x_bsd))


class EncoderBlock(nn.Module):
    """One layer. The first has no norm before its attention: the embedding's norm is just behind it."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = _norm(config) if layer else nn.Identity()
        self.self_attn = EncoderAttention(config, layer)
        self.post_attention_layernorm = _norm(config)
        self.mlp = EncoderFeedForward(config)

    def forward(self, x_bsd: Tensor, cos: Tensor, sin: Tensor, borders: Borders) -> Tensor:
        x_bsd = x_bsd + self.self_attn(self.input_layernorm(x_bsd), cos, sin, borders)
        return x_bsd + self.mlp(self.post_attention_layernorm(x_bsd))


class EncoderBackbone(nn.Module):
    """Embedding with its norm, layers, final norm. First and last are None in a middle stage."""

    def __init__(self, config: ModelConfig, layers: Iterable[int], first: bool, last: bool) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.padded_vocab_size, config.hidden_size) if first else None
        self.embed_norm = _norm(config) if first else None
        self.layers = nn.ModuleDict({str(layer): EncoderBlock(config, layer) for layer in layers})
        self.norm = _norm(config) if last else None


class PredictionHead(nn.Module):
    """What stands between the encoder and the vocabulary: norm(gelu(dense(x)))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.encoder_config.classifier_bias)
        self.norm = _norm(config)

    def forward(self, x_bsd: Tensor) -> Tensor:
        return self.norm(F.gelu(self.dense(x_bsd)))


class Encoder(nn.Module):
    """A masked language model, or a stage of one. Stages, tied heads and initialisation as in `Decoder`."""

    def __init__(
        self, config: ModelConfig, *, layers: Iterable[int] | None = None, first: bool = True, last: bool = True
    ) -> None:
        super().__init__()
        self.config = config
        self.rotary = Rotary(config)
        """Of the global layers."""
        self.local_rotary = Rotary(config.model_copy(update={"rope_theta": config.encoder_config.local_rope_theta}))
        self.model = EncoderBackbone(config, range(config.num_hidden_layers) if layers is None else layers, first, last)
        self.head = PredictionHead(config) if last else None
        tied = config.tie_word_embeddings and first
        self.lm_head = (
            nn.Linear(config.hidden_size, config.padded_vocab_size, bias=False) if last and not tied else None
        )
        bias = last and config.encoder_config.decoder_bias
        self.lm_head_bias = nn.Parameter(torch.zeros(config.padded_vocab_size)) if bias else None

    @property
    def lm_head_weight(self) -> Tensor:
        """The output matrix [padded vocabulary, hidden_size]: the head's, or the embedding's where they are tied."""
        if self.lm_head is not None:
            return self.lm_head.weight
        assert self.model.embed_tokens is not None, "this stage has no head"
        return self.model.embed_tokens.weight

    def forward(self, tokens: Tensor, positions: Tensor | None = None, layout: BlockLayout | None = None) -> Tensor:
        """Arguments as `Decoder.forward`. Returns hidden states [batch, seq, hidden_size]; of a stage with the head,
        those its matrix and bias are applied to."""
        x_bsd = tokens
        if self.model.embed_tokens is not None and self.model.embed_norm is not None:
            x_bsd = self.model.embed_norm(self.model.embed_tokens(tokens))
        if positions is None:
            positions = torch.arange(x_bsd.shape[1], device=x_bsd.device).unsqueeze(0)
        whole, local = self.rotary(positions), self.local_rotary(positions)
        borders = Borders.of(layout)
        encoder = self.config.encoder_config
        for layer, block in self.model.layers.items():
            cos, sin = whole if encoder.is_global(int(layer)) else local
            x_bsd = block(x_bsd, cos, sin, borders)
        if self.model.norm is not None and self.head is not None:
            x_bsd = self.head(self.model.norm(x_bsd))
        return x_bsd

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores [..., vocab_size] of what `forward` returned [..., hidden_size]; padding rows are left out."""
        rows = self.config.true_vocab_size
        bias = None if self.lm_head_bias is None else self.lm_head_bias[:rows]
        return F.linear(hidden, self.lm_head_weight[:rows], bias)
