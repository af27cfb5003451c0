"""The shape of a decoder of the Llama family or a ModernBERT encoder, and its parameters and FLOPs, exactly.

In: the `model:` block of a recipe (field names are Hugging Face's, aliases of other projects load too). Out: a frozen
`ModelConfig`. No torch is imported here; `headwater.model.hf_config` turns a Hugging Face `config.json` into one of
these and back.

    ModelConfig(vocab_size=32000, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32,
                intermediate_size=11008).parameter_count().total        # 6_738_415_616
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from headwater.core.config import Section, field
from headwater.core.errors import RecipeError

VOCAB_MULTIPLE = 128
"""The embedding is padded to a multiple of this: rows divide evenly among tensor-parallel ranks and fit GPU tiles."""

_ROPE_FIELDS: dict[str, tuple[set[str], set[str]]] = {  # type -> (required, optional) besides factor
    "linear": (set(), set()),
    "dynamic": (set(), set()),
    "llama3": ({"original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}, set()),
    "yarn": (
        {"original_max_position_embeddings"},
        {"beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"},
    ),
}


def _problem(what: str, mend: str) -> ValueError:
    """A ValueError in the form the recipe loader splits into what and mend."""
    return ValueError(f"{what}\n  mend: {mend}")


class RopeScaling(Section):
    """How rotary frequencies are stretched to reach longer contexts. Formulas are those of `transformers` 5."""

    rope_type: Literal["linear", "dynamic", "llama3", "yarn"] = field(..., aliases=("type",))
    """linear: positions divided by `factor` (kaiokendev). dynamic: NTK-aware base that grows with the sequence once it
    is longer than `max_position_embeddings`. llama3: Llama 3.1's blend by wavelength. yarn: arXiv 2309.00071."""
    factor: float = field(..., unit="ratio", ge=1)
    """How many times longer the context becomes."""
    original_max_position_embeddings: int | None = field(None, unit="tokens", ge=1)
    """Context length the model was first trained for (llama3, yarn)."""
    low_freq_factor: float | None = field(None, gt=0)
    """llama3: wavelengths longer than original context / this are stretched in full."""
    high_freq_factor: float | None = field(None, gt=0)
    """llama3: wavelengths shorter than original context / this are left alone."""
    beta_fast: float | None = field(None, gt=0)
    """yarn: rotations over the original context above which a dimension is left alone (32 if not given)."""
    beta_slow: float | None = field(None, gt=0)
    """yarn: rotations below which a dimension is stretched in full (1 if not given)."""
    attention_factor: float | None = field(None, gt=0)
    """yarn: factor on cos and sin; 0.1 ln(factor) + 1 if not given."""
    mscale: float | None = field(None, gt=0)
    """yarn as DeepSeek has it: attention factor = mscale term / mscale_all_dim term (both are needed)."""
    mscale_all_dim: float | None = field(None, gt=0)
    """See `mscale`."""
    truncate: bool | None = field(None)
    """yarn: round the ramp's ends to whole dimensions (true if not given)."""

    @model_validator(mode="after")
    def _fields_fit_the_type(self) -> Self:
        required, optional = _ROPE_FIELDS[self.rope_type]
        given = {name for name in type(self).model_fields if getattr(self, name) is not None} - {"rope_type", "factor"}
        if missing := sorted(required - given):
            raise _problem(f"rope_type {self.rope_type} needs {', '.join(missing)}", f"give {', '.join(missing)}")
        if useless := sorted(given - required - optional):
            raise _problem(
                f"{', '.join(useless)} has no effect on rope_type {self.rope_type}", f"remove {', '.join(useless)}"
            )
        if (self.mscale is None) != (self.mscale_all_dim is None):
            raise _problem("mscale and mscale_all_dim only work together", "give both or neither")
        low, high = self.low_freq_factor, self.high_freq_factor
        if low is not None and high is not None and high <= low:
            raise _problem(f"high_freq_factor {high:g} must be more than low_freq_factor {low:g}", "swap them")
        if (self.beta_fast or 32) < (self.beta_slow or 1):
            raise _problem("beta_fast must not be less than beta_slow", "swap them")
        return self


class EncoderConfig(Section):
    """What only an encoder has (ModernBERT, arXiv 2412.13663)."""

    global_attn_every_n_layers: int = field(3, unit="layers", ge=1)
    """Layers 0, n, 2n ... attend to the whole document, the others to a window around each token; 1: all are global."""
    local_attention: int = field(128, unit="tokens", aliases=("local_attention_window",), ge=2)
    """Width of the window of local layers: half of it to each side."""
    local_rope_theta: float = field(10000.0, gt=1)
    """Base of the rotary frequencies in local layers; `model.rope_theta` is that of the global ones."""
    norm_bias: bool = field(False)
    """Biases in the LayerNorms."""
    mlp_bias: bool = field(False)
    """Biases in the feed-forward layers."""
    decoder_bias: bool = field(True)
    """A bias for each token of the vocabulary in the output head."""
    classifier_bias: bool = field(False)
    """A bias in the dense layer before the output head."""

    def is_global(self, layer: int) -> bool:
        """Whether a layer attends to the whole document."""
        return layer % self.global_attn_every_n_layers == 0


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters by place. `embedding` has an encoder's norm behind it, `head` its dense layer, norm and bias; a tied
    head's matrix counts as the embedding's."""

    embedding: int
    per_layer: int
    layers: int
    final_norm: int
    head: int

    @property
    def total(self) -> int:
        return self.embedding + self.layers + self.final_norm + self.head

    @property
    def without_embedding(self) -> int:
        """Scaling-law papers' N: no embedding, no separate head."""
        return self.layers + self.final_norm


def feed_forward_width(hidden_size: int) -> int:
    """8/3 of the width, rounded up to a multiple of 64: SwiGLU's three matrices then hold as many weights as the two
    4-times-wide ones of GPT (Shazeer, arXiv 2002.05202)."""
    return math.ceil(hidden_size * 8 / 3 / 64) * 64


class ModelConfig(Section):
    """A Llama-family decoder (RMSNorm before each half of a block, rotary positions, SwiGLU, grouped queries), or a
    ModernBERT encoder (LayerNorm, GeGLU, attention both ways, most layers local)."""

    PATH_ALIASES: ClassVar[dict[str, str]] = {
        name: f"encoder.{name}" for name in ("global_attn_every_n_layers", "local_attention", "local_rope_theta")
    }

    architecture: Literal["decoder", "encoder"] = field("decoder")
    """decoder: reads left to right and generates. encoder: sees both sides, trained with `train.objective: mlm`,
    exported as `ModernBertForMaskedLM`."""
    hidden_size: int = field(512, aliases=("d_model", "n_embd", "dim"), ge=1)
    """Width of the residual stream."""
    num_hidden_layers: int = field(8, aliases=("n_layers", "n_layer", "num_layers"), ge=1)
    """Number of blocks."""
    num_attention_heads: int = field(8, aliases=("n_heads", "n_head", "num_heads"), ge=1)
    """Query heads of a layer."""
    num_key_value_heads: int = field(
        aliases=("n_kv_heads", "num_kv_heads"),
        ge=1,
        default_factory=lambda data: data.get("num_attention_heads", 8),
    )
    """Key and value heads of a layer; fewer than query heads is grouped-query attention (arXiv 2305.13245). As many as
    query heads if not given."""
    head_dim: int = field(
        ge=2,
        default_factory=lambda data: max(2, data.get("hidden_size", 512) // data.get("num_attention_heads", 8)),
    )
    """Width of one head; hidden_size / num_attention_heads if not given."""
    intermediate_size: int = field(
        aliases=("d_ff", "ffn_hidden_size", "ffn_dim", "n_inner"),
        ge=1,
        default_factory=lambda data: feed_forward_width(data.get("hidden_size", 512)),
    )
    """Width of the feed-forward layer; 8/3 hidden_size rounded up to a multiple of 64 if not given."""
    vocab_size: int | None = field(None, unit="tokens", ge=1)
    """Token ids the model knows; the tokenizer's size if not given. Stored and counted as it is; the embedding has rows
    up to the next multiple of 128, which never receive probability and are left out of exports."""
    max_position_embeddings: int = field(4096, unit="tokens", aliases=("max_seq_len", "n_positions", "n_ctx"), ge=1)
    """Longest context; generation stops there."""
    rope_theta: float = field(10000.0, aliases=("global_rope_theta",), gt=1)
    """Base of the rotary frequencies (arXiv 2104.09864)."""
    rope_scaling: RopeScaling | None = field(None)
    """Stretching of the rotary frequencies; none if not given."""
    rms_norm_eps: float = field(1e-5, aliases=("norm_eps", "layer_norm_epsilon", "layer_norm_eps"), gt=0)
    """Added to the mean square in RMSNorm, to the variance in an encoder's LayerNorm."""
    tie_word_embeddings: bool = field(False, aliases=("tied_embeddings", "weight_tying"))
    """The output head is the embedding matrix."""
    qk_norm: bool = field(False)
    """RMSNorm on each query and key head before rotation (Qwen3); keeps attention scores small at high learning
    rates."""
    attention_bias: bool | Literal["qkv"] = field(False)
    """Biases of the attention projections: false none, true on q, k, v and o (Llama, Qwen3), qkv on those three
    (Qwen2)."""
    initializer_range: float = field(0.02, aliases=("init_std", "initializer_std"), gt=0)
    """Standard deviation of initial weights (GPT-2's)."""
    depth_scaled_init: bool = field(True)
    """Initial o_proj and down_proj weights are divided by sqrt(2 layers), so that the residual stream's variance does
    not grow with depth (GPT-2, section 2.3)."""
    encoder: EncoderConfig | None = field(
        default_factory=lambda data: EncoderConfig() if data.get("architecture") == "encoder" else None
    )
    """What only an encoder has; none for a decoder."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        heads, groups = self.num_attention_heads, self.num_key_value_heads
        if "head_dim" not in self.model_fields_set and self.hidden_size % heads:
            raise _problem(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {heads}",
                f"use {heads * max(1, round(self.hidden_size / heads))}, or set head_dim",
            )
        if heads % groups:
            divisors = [d for d in range(1, heads + 1) if heads % d == 0]
            raise _problem(
                f"num_attention_heads {heads} is not a multiple of num_key_value_heads {groups}",
                f"use one of {', '.join(map(str, divisors))}",
            )
        if self.head_dim % 2:
            raise _problem(
                f"head_dim {self.head_dim} is odd; rotary positions turn pairs of dimensions", "use an even head_dim"
            )
        if self.qk_norm and self.attention_bias == "qkv":
            raise _problem(
                "qk_norm with attention_bias qkv is no Hugging Face architecture, so it could not be exported",
                "set attention_bias to true or false",
            )
        if not self.qk_norm and self.hidden_size % heads:
            raise _problem(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {heads}, which "
                "Hugging Face's Llama and Qwen2 demand",
                f"use {heads * max(1, round(self.hidden_size / heads))}, or set qk_norm (Qwen3)",
            )
        if self.rope_scaling is not None and self.rope_scaling.rope_type == "dynamic" and self.head_dim < 4:
            raise _problem("dynamic rope scaling needs a head_dim of at least 4", "use a larger head_dim")
        return self

    @model_validator(mode="after")
    def _fields_fit_the_architecture(self) -> Self:
        if self.architecture == "decoder":
            if self.encoder is not None:
                raise _problem("model.encoder has no effect on a decoder", "remove it, or set architecture: encoder")
            return self
        if self.encoder is None:
            raise _problem("an encoder needs model.encoder", "leave it out for the defaults")
        useless = {
            "num_key_value_heads": self.num_key_value_heads != self.num_attention_heads,
            "head_dim": self.head_dim * self.num_attention_heads != self.hidden_size,
            "rope_scaling": self.rope_scaling is not None,
            "qk_norm": self.qk_norm,
            "attention_bias: qkv": self.attention_bias == "qkv",
        }
        if wrong := [name for name, is_there in useless.items() if is_there]:
            raise _problem(f"ModernBERT has no {', '.join(wrong)}, so the encoder could not be exported", "remove it")
        if self.hidden_size // self.num_attention_heads % 2:
            raise _problem(f"heads of {self.head_dim} dimensions are odd", "use an even head width")
        return self

    @property
    def encoder_config(self) -> EncoderConfig:
        """`encoder` of an encoder."""
        assert self.encoder is not None, "a decoder has no encoder settings"
        return self.encoder

    def with_vocab_size(self, vocab_size: int) -> ModelConfig:
        """This configuration for a tokenizer of `vocab_size` ids. RecipeError if another size has been set."""
        if self.vocab_size not in (None, vocab_size):
            raise RecipeError(
                f"the model has {self.vocab_size:,} token ids and the tokenizer {vocab_size:,}",
                where="model.vocab_size",
                mend="remove model.vocab_size, or set tokenizer.vocab_size to the same",
            )
        return self.model_copy(update={"vocab_size": vocab_size})

    @property
    def true_vocab_size(self) -> int:
        """`vocab_size`, known. RecipeError if it was left to the tokenizer and never set."""
        if self.vocab_size is None:
            raise RecipeError(
                "the model's vocabulary size is not known",
                where="model.vocab_size",
                mend="set it, or use config.with_vocab_size(tokenizer.vocab_size)",
            )
        return self.vocab_size

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding: `vocab_size` rounded up to a multiple of 128."""
        return math.ceil(self.true_vocab_size / VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    @property
    def hf_type(self) -> Literal["llama", "qwen2", "qwen3", "modernbert"]:
        """The Hugging Face model type this model exports as."""
        if self.architecture == "encoder":
            return "modernbert"
        if self.qk_norm:
            return "qwen3"
        return "qwen2" if self.attention_bias == "qkv" else "llama"

    def parameter_count(self, *, padded: bool = False) -> ParameterCount:
        """Parameters by place, exactly. `padded` counts the padding rows of embedding and head, as held in memory."""
        width, head = self.hidden_size, self.head_dim
        q, kv = self.num_attention_heads * head, self.num_key_value_heads * head
        attention = width * (q + 2 * kv) + q * width
        if self.attention_bias:
            attention += q + 2 * kv
        if self.attention_bias is True:
            attention += width
        if self.qk_norm:
            attention += 2 * head
        per_layer = attention + 3 * width * self.intermediate_size + 2 * width
        rows = self.padded_vocab_size if padded else self.true_vocab_size
        if self.encoder is not None:
            return self._encoder_count(self.encoder, rows, per_layer)
        return ParameterCount(
            embedding=rows * width,
            per_layer=per_layer,
            layers=self.num_hidden_layers * per_layer,
            final_norm=width,
            head=0 if self.tie_word_embeddings else rows * width,
        )

    def _encoder_count(self, encoder: EncoderConfig, rows: int, per_layer: int) -> ParameterCount:
        width = self.hidden_size
        norm = 2 * width if encoder.norm_bias else width
        per_layer += 2 * (norm - width) + (2 * self.intermediate_size + width if encoder.mlp_bias else 0)
        head = width * width + norm + (width if encoder.classifier_bias else 0) + (rows if encoder.decoder_bias else 0)
        return ParameterCount(
            embedding=rows * width + norm,
            per_layer=per_layer,
            layers=self.num_hidden_layers * per_layer - norm,  # the first layer has no norm before its attention
            final_norm=norm,
            head=head if self.tie_word_embeddings else head + rows * width,
        )

    def flops_per_token(self, seq_len: int, *, causal: bool = False, scored: float = 1.0) -> int:
        """Model FLOPs a trained token costs, forward and backward, without recomputation.

        6 x (weights of all matrices a token is multiplied with: layers and head, true vocabulary) + 12 x layers x heads
        x head_dim x seq_len for attention scores and their product with values (PaLM, arXiv 2204.02311, appendix B).
        `causal` counts only the half of the scores a causal mask leaves; of an encoder's local layers only the window
        is counted. `scored`: share of the tokens whose logits are made (masked LM scores the masked ones only). Norms,
        biases and softmax are not counted.
        """
        width, head = self.hidden_size, self.head_dim
        q, kv = self.num_attention_heads * head, self.num_key_value_heads * head
        matrices = self.num_hidden_layers * (2 * width * (q + kv) + 3 * width * self.intermediate_size)
        matrices += round(scored * width * self.true_vocab_size)
        attention = 12 * self.num_hidden_layers * q * seq_len
        if self.encoder is not None:
            matrices += width * width  # the dense layer before the head
            reach = min(seq_len, 2 * (self.encoder.local_attention // 2) + 1)
            spans = [seq_len if self.encoder.is_global(n) else reach for n in range(self.num_hidden_layers)]
            attention = 12 * q * sum(spans)
        return 6 * matrices + (attention // 2 if causal else attention)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `ModelConfig.model_validate` takes them back."""
        return self.model_dump(mode="json")
