"""The model to train: its shape, exact parameter count and FLOPs a token.

In: fields by name (`from_fields`) or a Hugging Face `config.json` (`from_hf_config`). Out: a frozen `ModelSpec`.
Counts are exact for the public configurations in `tests/plan/test_counts.py`, compared with `transformers`.

    ModelSpec.from_fields(layers=32, hidden=4096, heads=32, ffn=11008, vocab=32000).parameters   # 6_738_415_616
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from headwater.core.errors import InputError

# Names other projects use for the same field, as recipes accept them too.
ALIASES = {
    "hidden_size": "hidden", "d_model": "hidden", "n_embd": "hidden", "num_hidden_layers": "layers",
    "n_layers": "layers", "n_layer": "layers", "num_layers": "layers", "num_attention_heads": "heads",
    "n_heads": "heads", "n_head": "heads", "num_key_value_heads": "kv_heads", "n_kv_heads": "kv_heads",
    "intermediate_size": "ffn", "d_ff": "ffn", "ffn_hidden_size": "ffn", "vocab_size": "vocab",
    "tie_word_embeddings": "tied",
}  # fmt: skip
LARGEST = {"layers": 10_000, "hidden": 1_000_000, "heads": 10_000, "vocab": 100_000_000, "ffn": 10_000_000}


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < math.inf and value == int(value)


@dataclass(frozen=True)
class ModelSpec:
    """A decoder. Sizes in elements; booleans as the architecture has it. MoE and MLA fields are 0 when unused."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    name: str = "model"
    kv_heads: int = 0  # 0: as many as heads
    head_dim: int = 0  # 0: hidden / heads
    gated: bool = True
    tied: bool = False
    attention_bias: bool = False  # query, key, value projections
    output_bias: bool = False  # attention output projection
    mlp_bias: bool = False
    qk_norm: bool = False  # one weight a head dimension, for queries and keys each
    norm_bias: bool = False
    norms_per_layer: int = 2
    embedding_norm: bool = False
    learned_positions: int = 0
    parallel_block: bool = False
    experts: int = 0
    topk: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    dense_layers: int = 0  # first layers without experts
    sinks: bool = False  # one learned logit a head
    q_lora: int = 0
    kv_lora: int = 0  # above 0: multi-head latent attention
    rope_dim: int = 0
    value_dim: int = 0
    window: int = 0
    window_share: float = 0.0
    other: int = 0  # parameters of none of these: biases, and the dense layer of an encoder's head

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type == "int" and f.name != "other" and not _is_count(value):
                raise InputError(f"{f.name} is {value!r}", where="model", mend="a whole number, not below zero")
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "head_dim", self.head_dim or self.hidden // max(self.heads, 1))
        object.__setattr__(self, "value_dim", self.value_dim or self.head_dim)
        for name, limit in LARGEST.items():
            value = getattr(self, name)
            least = 0 if name == "ffn" and self.experts else 1
            if not least <= value <= limit or value != int(value):
                raise InputError(f"{name} is {value}", where="model", mend=f"a whole number from {least} to {limit}")
        if self.heads % self.kv_heads:
            raise InputError(
                f"{self.heads} heads do not share {self.kv_heads} key-value heads evenly",
                where="model.num_key_value_heads",
                mend="give a divisor of num_attention_heads",
            )
        if self.experts and not 0 < self.topk <= self.experts:
            raise InputError(f"top {self.topk} of {self.experts} experts", where="model", mend="1 <= topk <= experts")
        if self.experts and self.expert_ffn <= 0:
            raise InputError("experts have no width", where="model.moe_intermediate_size")
        if not 0 <= self.dense_layers <= self.layers:
            raise InputError(f"{self.dense_layers} dense layers of {self.layers}", where="model.dense_layers")

    @classmethod
    def from_fields(cls, **values: Any) -> ModelSpec:
        """From keyword fields under any usual name; an unknown or missing one is an InputError."""
        known = {f.name for f in fields(cls)}
        named: dict[str, Any] = {}
        for key, value in values.items():
            name = ALIASES.get(key, key)
            if name not in known:
                raise InputError(
                    f"unknown model field {key!r}", where="model", mend=f"known: {', '.join(sorted(known))}"
                )
            if value is not None:
                named[name] = value
        missing = [name for name in ("layers", "hidden", "heads", "vocab") if name not in named]
        if missing:
            raise InputError(f"the model lacks {', '.join(missing)}", where="model")
        named.setdefault("ffn", 0 if named.get("experts") else 4 * named["hidden"])
        return cls(**named)

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any], name: str = "") -> ModelSpec:
        """From a Hugging Face `config.json`; InputError for an architecture whose count would be a guess."""
        from .hf_models import read

        return cls(**read(config, name))

    @classmethod
    def from_file(cls, path: Path) -> ModelSpec:
        """From a `config.json` or the folder that holds one."""
        import json

        file = path / "config.json" if path.is_dir() else path
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(
                f"cannot read a model configuration: {error}", where=str(file), mend="give a Hugging Face config.json"
            ) from error
        if not isinstance(config, Mapping):
            raise InputError(
                "a model configuration is a mapping of fields", where=str(file), mend="give a Hugging Face config.json"
            )
        return cls.from_hf_config(config, name=file.parent.name if file.name == "config.json" else file.stem)

    # Parameters -----------------------------------------------------------------------------------------------------

    @property
    def attention_parameters(self) -> int:
        """Attention of one layer, biases, head norms and sinks included."""
        h, a, k, e = self.hidden, self.heads, self.kv_heads, self.head_dim
        if self.kv_lora:
            nope = e - self.rope_dim
            q = h * self.q_lora + self.q_lora + self.q_lora * a * e if self.q_lora else h * a * e
            kv = h * (self.kv_lora + self.rope_dim) + self.kv_lora + self.kv_lora * a * (nope + self.value_dim)
            return q + kv + a * self.value_dim * h
        weights = h * a * e + 2 * h * k * e + a * e * h
        bias = (a + 2 * k) * e * self.attention_bias + h * self.output_bias
        return weights + bias + 2 * e * self.qk_norm + a * self.sinks

    def _ffn(self, width: int, bias: bool) -> int:
        inputs = 2 if self.gated else 1
        return (inputs + 1) * self.hidden * width + bias * (inputs * width + self.hidden)

    @property
    def sparse_parameters(self) -> int:
        """Router, experts and shared expert of one MoE layer."""
        router = self.hidden * self.experts + self.experts * self.router_bias
        shared = self._ffn(self.shared_ffn, False) + self.hidden * self.shared_gate if self.shared_ffn else 0
        return router + self.experts * self._ffn(self.expert_ffn, self.expert_bias) + shared

    @property
    def norm_parameters(self) -> int:
        return self.hidden * (2 if self.norm_bias else 1)

    @property
    def embedding_parameters(self) -> int:
        """Token table, positions, and the separate output head when there is one."""
        tables = self.vocab * self.hidden * (1 if self.tied else 2)
        return tables + self.learned_positions * self.hidden + self.embedding_norm * self.norm_parameters

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def parameters(self) -> int:
        """All trained parameters, exactly."""
        dense = self._ffn(self.ffn, self.mlp_bias) * (self.layers - self.moe_layers)
        sparse = self.sparse_parameters * self.moe_layers
        per_layer = self.attention_parameters + self.norms_per_layer * self.norm_parameters
        return self.layers * per_layer + dense + sparse + self.norm_parameters + self.embedding_parameters + self.other

    @property
    def active_parameters(self) -> int:
        """Parameters a token meets: the routed experts it is sent to, all else whole."""
        idle = (self.experts - self.topk) * self._ffn(self.expert_ffn, self.expert_bias) if self.experts else 0
        return self.parameters - idle * self.moe_layers

    # Cases ----------------------------------------------------------------------------------------------------------

    def case_fields(self) -> dict[str, float]:
        """The model fields of `Cases`."""
        mla = self.kv_lora > 0
        return {
            "layers": float(self.layers),
            "hidden": float(self.hidden),
            "heads": float(self.heads),
            "kv_heads": float(self.kv_heads),
            "head_dim": float(self.head_dim),
            "ffn": float(self.ffn),
            "vocab": float(self.vocab),
            "gated": float(self.gated),
            "tied": float(self.tied),
            "experts": float(self.experts),
            "topk": float(self.topk),
            "expert_ffn": float(self.expert_ffn),
            "shared_ffn": float(self.shared_ffn),
            "dense_layers": float(self.dense_layers),
            "mla": float(mla),
            "q_lora": float(self.q_lora),
            "kv_lora": float(self.kv_lora),
            "rope_dim": float(self.rope_dim),
            "value_dim": float(self.value_dim),
            "parallel_block": float(self.parallel_block),
            "window": float(self.window),
            "window_share": float(self.window_share),
        }
