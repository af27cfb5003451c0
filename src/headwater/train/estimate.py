"""What a run will take, before its first step: memory, disk, micro-batch, and the words that say so.

In: model, plan, configuration, free memory. Out: a micro-batch with its reason, sizes in bytes. Activations are
counted as Korthikanti et al. do (2022, arXiv 2205.05198), for a SwiGLU block without dropout.

    choose_micro_batch(None, model, plan, config, free_bytes=8 << 30, device_type="cpu", precision="fp32")
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.core.errors import RecipeError
from headwater.core.files import space
from headwater.model import ModelConfig
from headwater.parallel.config import ParallelConfig
from headwater.parallel.stages import choose_for_pipeline, micro_batch_problem
from headwater.train.config import TrainConfig
from headwater.train.phases import RunPlan

MEMORY_SHARE = 0.6
"""Share of the free memory a run may plan with; the rest is for fragmentation, buffers and neighbours."""

LARGEST_SHARE = {"cpu": MEMORY_SHARE, "cuda": 0.9}
"""Above this a run is refused rather than tried. A GPU has no neighbours, and the planner's plans go further."""

CPU_TOKENS = 8192
"""Tokens of a micro-batch on a CPU: enough for full speed of the matrix products; larger ones fall out of cache."""

GPU_TOKENS = 65536

HALF_PRECISIONS = ("bf16", "fp16", "fp8")
"""Activations are kept in two bytes an element; fp8 keeps what it can in one, which is not counted on."""


@dataclass(frozen=True, slots=True)
class StateSize:
    """Bytes held all through a run: weights, gradients, optimizer state, averages."""

    weights: int
    gradients: int
    optimizer: int
    averages: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.averages

    @property
    def checkpoint(self) -> int:
        """Bytes of one checkpoint."""
        copies = self.weights + self.optimizer + self.averages
        return copies + copies // 50 + (1 << 20)


def state_size(model: ModelConfig, config: TrainConfig) -> StateSize:
    """Exact but for optimizer scalars: everything is kept in fp32."""
    count = model.parameter_count(padded=True)
    weights = 4 * count.total
    moments = 2 * weights
    if config.optimizer.name == "muon":  # one moment instead of two for the matrices
        moments -= 4 * count.layers
    copies = {"none": 0, "ema": 1, "lawa": config.averaging.last + 1}[config.averaging.name]
    return StateSize(weights, weights, moments, copies * weights)


def rank_state_size(
    model: ModelConfig, config: TrainConfig, parallel: ParallelConfig, precision: str = "fp32"
) -> StateSize:
    """The most that one rank holds all through a step, exactly but for unevenness: see `headwater.parallel.data`.

    A pipeline's edge stage has an embedding or head beside its layers. Gathered parameters, and gradients that are
    reduced once a step, are whole for the rank's layers; layers are gathered in `precision`, edges in fp32.
    """
    whole = state_size(model, config)
    count = model.parameter_count(padded=True)
    edges = count.embedding + count.head if parallel.pp == 1 else max(count.embedding, count.head)
    share = (count.layers / parallel.pp + edges + count.final_norm) / count.total / parallel.tp
    sharing = parallel.dp_shard * parallel.cp
    gradients = share * whole.gradients / (sharing if parallel.reduces_every_micro_batch else 1)
    weights = share * whole.weights / sharing
    if sharing > 1:  # and what is gathered: all of the rank's layers, or two of them at a time
        layers = 2 * count.per_layer if parallel.zero == 3 and parallel.pp == 1 else count.layers / parallel.pp
        weights += ((2 if precision in HALF_PRECISIONS else 4) * layers + 4 * edges) / parallel.tp
    moments, averages = (share * size / sharing for size in (whole.optimizer, whole.averages))
    return StateSize(int(weights), int(gradients), int(moments), int(averages))


def activation_bytes_per_token(
    model: ModelConfig, config: TrainConfig, precision: str, seq_len: int, device_type: str = "cpu"
) -> int:
    """Bytes kept per token of a micro-batch for its backward pass, logits apart (they come in chunks)."""
    width, ffn, layers = model.hidden_size, model.intermediate_size, model.num_hidden_layers
    kv = model.num_key_value_heads / model.num_attention_heads
    recompute, mode = config.recompute, config.activation_checkpointing
    alone = mode == "selective" and recompute.selective == "attention"
    probabilities = _kept_probabilities(model, seq_len)
    whole = 12 * width + 4 * width * kv + 6 * ffn + 4 * model.num_attention_heads + probabilities
    kept = {
        "full": 2 * width,
        "selective": whole - probabilities if alone else 8 * width + 4 * width * kv + 4 * ffn + probabilities,
        "none": whole,
    }[mode]
    chosen = -(-layers // recompute.every)
    if recompute.num_layers is not None:  # of each pipeline stage: at least as many of the whole model
        chosen = min(chosen, recompute.num_layers)
    if recompute.offload and device_type == "cuda" and (alone or mode != "selective"):
        layers, chosen = 1, min(1, chosen)  # the others' wait in host memory
    size = 1 if precision in HALF_PRECISIONS else 2
    working = 2 * (12 * width + 6 * ffn) if mode == "full" else 0
    return int((chosen * kept + (layers - chosen) * whole) * size + working + 12 * width)


def _kept_probabilities(model: ModelConfig, seq_len: int) -> int:
    """Bytes of attention probabilities a token and layer keeps at 2 bytes each; long sequences compute them again."""
    if model.encoder is None:
        return model.num_attention_heads * seq_len if seq_len <= 1024 else 0  # half of them are hidden
    near = min(seq_len, 128 + model.encoder.local_attention)  # keys of a block of queries in a local layer
    spans = [seq_len if model.encoder.is_global(layer) else near for layer in range(model.num_hidden_layers)]
    return 2 * model.num_attention_heads * sum(span for span in spans if span <= 512) // model.num_hidden_layers


def _check_batches(parallel: ParallelConfig, plan: RunPlan) -> None:
    """Every data-parallel rank has equally many samples in every step: an uneven share would leave ranks waiting."""
    for segment in plan.segments:
        if segment.global_batch % parallel.data_parallel:
            raise RecipeError(
                f"the batch of {segment.global_batch:,} samples (from step {segment.first_step:,} on) "
                f"does not divide over {parallel.data_parallel:,} data-parallel ranks",
                where="train.global_batch",
                mend=f"use multiples of {parallel.data_parallel:,} (train.batch_ramp and phases included)",
            )


def _for_pipeline(parallel: ParallelConfig, plan: RunPlan, most: int) -> tuple[int, str]:
    """A micro-batch that cuts every step of the plan as the schedule asks; the recipe's, if it does."""
    rows = sorted({segment.global_batch // parallel.data_parallel for segment in plan.segments})
    wish = parallel.micro_batch
    if wish is None:
        try:
            return choose_for_pipeline(parallel, rows, most)
        except ValueError as error:
            what, _, mend = str(error).partition("\n  mend: ")
            raise RecipeError(what, where="train.global_batch", mend=mend) from error
    for number in rows:
        if number % wish:
            raise RecipeError(
                f"{number} samples a step and data-parallel rank do not divide into micro-batches of {wish}, and a "
                "pipeline's micro-batches all have one size",
                where="parallel.micro_batch",
                mend=f"use a divisor of {number}",
            )
        if (problem := micro_batch_problem(parallel, number // wish)) is not None:
            raise RecipeError(problem[0], where="parallel.schedule", mend=problem[1])
    return wish, "as the recipe says"


def choose_micro_batch(
    parallel: ParallelConfig,
    model: ModelConfig,
    plan: RunPlan,
    config: TrainConfig,
    *,
    free_bytes: int,
    device_type: str,
    precision: str,
) -> tuple[int, str]:
    """(samples in a forward pass of one rank, why). `free_bytes`: the least any rank has.

    RecipeError if not even the state of the run fits, or a batch does not divide over the ranks.
    """
    longest = max(segment.seq_len for segment in plan.segments)
    _check_batches(parallel, plan)
    wish, ranks = parallel.micro_batch, parallel.data_parallel
    largest = max(segment.global_batch for segment in plan.segments) // ranks
    state = rank_state_size(model, config, parallel, precision).total
    room, most = int(free_bytes * MEMORY_SHARE) - state, free_bytes * LARGEST_SHARE.get(device_type, MEMORY_SHARE)
    # Sequence and context parallelism share the tokens; a pipeline's first stage keeps as many micro-batches in flight
    # as the layers are cut into.
    per_token = activation_bytes_per_token(model, config, precision, longest, device_type)
    per_sample = per_token * longest // parallel.tp // parallel.cp
    if state + per_sample > most:
        raise RecipeError(
            f"the run needs about {space(state + per_sample)} ({space(state)} of weights, gradients and optimizer "
            f"state, {space(per_sample)} for one sample) and may plan with {space(most)} of {space(free_bytes)} free",
            where="model",
            mend="use a smaller model or train.seq_len, train.activation_checkpointing: full, or a larger machine",
        )
    fits = max(1, room // per_sample)
    speed = max(1, (CPU_TOKENS if device_type == "cpu" else GPU_TOKENS) // longest)
    if parallel.pp > 1:
        return _for_pipeline(parallel, plan, min(fits, speed, largest))
    if wish is not None:
        return min(wish, largest), "as the recipe says"
    chosen = min(fits, speed, largest)
    if chosen == largest:
        return chosen, "the whole batch at once" if ranks == 1 else "a rank's whole batch at once"
    # Equal parts: as few as the limit allows.
    parts = -(-largest // chosen)
    chosen = -(-largest // parts)
    limit = "memory" if fits < speed else f"more than {chosen * longest:,} tokens at once are not faster here"
    return chosen, f"{parts} micro-batches a step; {limit}"
