"""A user's model and training, made small enough to run a layout's real steps on this machine.

In: the model, the training and the layout of a recipe. Out: a `Case`: the same structure in small. What a layout could
get wrong stays: the ratio of query to key-value heads, tied embeddings, norms and biases, rotary scaling, vocabulary
padding, uneven layers, checkpointed activations, optimizer, clipping, losses. What only makes it slow shrinks: widths,
layers, vocabulary, window. Every size still divides by the layout, and the context-parallel method is the full model's.

    case = small_case(recipe.sized_model, recipe.train, recipe.parallel, precision="fp32", seed=recipe.seed)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from headwater.core.errors import RecipeError
from headwater.model import ModelConfig
from headwater.model.loss import IGNORE
from headwater.parallel.config import INTERLEAVED, ParallelConfig
from headwater.parallel.context_method import method_of
from headwater.parallel.stages import least_micro_batches
from headwater.train.batch import Batch
from headwater.train.config import TrainConfig

STEPS = 3
LEAST_WINDOW = 48
LARGEST_VOCABULARY = 500
MASK_RATE = 0.15
LEAST_EPS = 1e-6
"""AdamW's first steps divide a gradient by its own size: where it is not far from `eps`, rounding alone turns it."""


@dataclass(frozen=True)
class Case:
    """What is run, in a layout and in one process."""

    model: ModelConfig
    train: TrainConfig
    parallel: ParallelConfig
    precision: str
    seed: int
    micro_batch: int

    @property
    def rows(self) -> int:
        """Samples of a step over all ranks."""
        return self.train.global_batch

    @property
    def leak_unknown(self) -> str:
        """Why the probe for leaks says nothing in this case; "" if it does."""
        if self.precision == "fp8" and self.train.float8.scaling == "tensor":
            return "fp8 with one scale a tensor lets every token move the rounding of all others"
        return ""

    def batch(self, step: int) -> Batch:
        """All rows of a step: random tokens in packed documents of uneven lengths, one row mostly not predicted, so
        that no two ranks have as many tokens to predict; for an encoder, tokens to guess. Steps count from 1."""
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + step)
        shape = (self.rows, self.train.seq_len)
        tokens = torch.randint(self.model.true_vocab_size, (shape[0], shape[1] + 1), generator=generator)
        borders = torch.rand(shape[0], shape[1] + 1, generator=generator) < 3 / shape[1]
        borders[1::3] = False  # every third row is one document
        documents = borders.cumsum(-1).to(torch.int32)
        if self.model.architecture == "encoder":
            targets = tokens[:, :-1].masked_fill(torch.rand(shape, generator=generator) > MASK_RATE, IGNORE)
        else:
            targets = torch.where(documents[:, 1:] == documents[:, :-1], tokens[:, 1:], IGNORE)
        targets[0, shape[1] // 4 :] = IGNORE
        documents = documents[:, :-1]
        places = torch.arange(shape[1]).expand(shape)
        first = torch.where(torch.nn.functional.pad(documents.diff(dim=-1), (1, 0)) != 0, places, 0).cummax(-1).values
        masked = self.train.document_mask
        return Batch(
            tokens[:, :-1].contiguous(),
            targets,
            positions=(places - first).to(torch.int32) if masked else None,
            documents=documents.contiguous() if masked else None,
        )


def small_case(model: ModelConfig, train: TrainConfig, parallel: ParallelConfig, *, precision: str, seed: int) -> Case:
    """The case of a recipe. RecipeError where the full model does not divide by the layout."""
    unit = 16 if precision == "fp8" else 8
    small, method = small_model(model, parallel, unit)
    window = small_window(parallel)
    small = small.model_copy(update={"max_position_embeddings": max(window, model.max_position_embeddings)})
    micro_batch = min(parallel.micro_batch or 2, 2)
    micro_batches = max(2, least_micro_batches(parallel))
    if parallel.pp > 1 and parallel.schedule in INTERLEAVED:
        micro_batches = math.ceil(micro_batches / parallel.pp) * parallel.pp
    rows = parallel.data_parallel * micro_batches * micro_batch
    optimizer = train.optimizer.model_copy(update={"eps": max(train.optimizer.eps, LEAST_EPS)})
    shortened: dict[str, Any] = {
        "tokens": None,
        "steps": STEPS,
        "phases": (),
        "batch_ramp": None,
        "mixture": None,
        "global_batch": rows,
        "seq_len": window,
        "optimizer": optimizer,
        "compile": False,
        "device": "cpu",
    }
    layout = parallel.model_copy(update={"micro_batch": micro_batch, "cp_method": method})
    return Case(small, train.model_copy(update=shortened), layout, precision, seed, micro_batch)


def small_window(parallel: ParallelConfig) -> int:
    """Tokens of a sample: pieces for every context- and tensor-parallel rank, and at least 48."""
    pieces = 2 * parallel.cp * parallel.tp
    return pieces * math.ceil(LEAST_WINDOW / pieces)


def small_model(model: ModelConfig, parallel: ParallelConfig, unit: int) -> tuple[ModelConfig, str]:
    """(the model in small, the full model's context-parallel method). Widths are multiples of `unit`."""
    heads, kv_heads = model.num_attention_heads, model.num_key_value_heads
    method: str = "auto"
    if parallel.cp > 1:
        try:
            method, _ = method_of(parallel, model)
        except ValueError as error:
            what, _, mend = str(error).partition("\n  mend: ")
            raise RecipeError(what, where="parallel.cp_method", mend=mend) from error
    share = heads // kv_heads
    small_kv = parallel.tp * (parallel.cp if method == "ulysses" else 1)
    if small_kv <= 2 and kv_heads >= 2 * small_kv:
        small_kv *= 2  # several heads on a rank, so that their order matters
    small_heads = small_kv * share
    head_dim = unit
    width_step = math.lcm(unit, small_heads) if "head_dim" not in model.model_fields_set or not model.qk_norm else unit
    width = _rounded(small_heads * head_dim * model.hidden_size / (heads * model.head_dim), width_step)
    if width % small_heads == 0 and model.hidden_size == heads * model.head_dim:
        head_dim = width // small_heads
    stages = parallel.pp * parallel.virtual_stages if parallel.pp > 1 else 1
    least = 2
    if model.encoder is not None:
        least = model.encoder.global_attn_every_n_layers + 1  # layers of both kinds
    layers = min(max(least, stages + bool(model.num_hidden_layers % stages)), model.num_hidden_layers)
    changes: dict[str, Any] = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": small_heads,
        "num_key_value_heads": small_kv,
        "head_dim": head_dim,
        "intermediate_size": _rounded(width * model.intermediate_size / model.hidden_size, unit * parallel.tp),
        "vocab_size": min(model.true_vocab_size, LARGEST_VOCABULARY),
    }
    if model.encoder is not None:
        reach = min(model.encoder.local_attention, LEAST_WINDOW // 4)
        changes["encoder"] = {**model.encoder.model_dump(), "local_attention": reach}
    return ModelConfig.model_validate({**model.model_dump(), **changes}), method


def _rounded(size: float, step: int) -> int:
    """The multiple of `step` next to `size`, at least one."""
    return max(1, round(size / step)) * step
