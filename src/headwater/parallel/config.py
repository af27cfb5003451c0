"""The layout of a training run: how ranks share data, layers, matrices and sequences.

In: the `parallel` section. Out: a checked layout that can describe itself. Everything here is operational: the same
recipe trained in another layout is the same run.

    ParallelConfig(dp_replicate=64, tp=8, pp=8).ranks == 4096
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from headwater.core.config import Section, field

Schedule = Literal["gpipe", "1f1b", "interleaved_1f1b", "interleaved_zero_bubble", "zbv", "dualpipev"]

ContextMethod = Literal["auto", "ulysses", "all_gather"]

INTERLEAVED: tuple[str, ...] = ("interleaved_1f1b", "interleaved_zero_bubble")
V_SHAPED: tuple[str, ...] = ("zbv", "dualpipev")


class ParallelConfig(Section):
    """Ranks = dp_replicate x dp_shard x cp x tp x pp. The defaults are one process."""

    dp_replicate: int = field(1, kind="operational", unit="ranks", ge=1, aliases=("data_parallel_replicate_degree",))
    """Copies of the (sharded) model, each on its own part of every batch; gradients are averaged over them."""
    dp_shard: int = field(
        1,
        kind="operational",
        unit="ranks",
        ge=1,
        aliases=("hybrid_zero_degree", "data_parallel_shard_degree", "fsdp_degree"),
    )
    """Ranks that share one copy of parameters, gradients and optimizer state (see `zero_stage`), each with its
    own part of every batch."""
    tp: int = field(
        1,
        kind="operational",
        unit="ranks",
        ge=1,
        aliases=("tensor_parallel_size", "tensor_model_parallel_size", "tensor_parallel_degree"),
    )
    """Tensor parallelism: ranks that share every matrix. All-reduces activations twice a layer and pass, so keep
    it inside one machine's fast links. Divides attention heads, key-value heads and the feed-forward width."""
    pp: int = field(
        1,
        kind="operational",
        unit="ranks",
        ge=1,
        aliases=(
            "pipeline_size",
            "pipeline_parallel_size",
            "pipeline_model_parallel_size",
            "pipeline_parallel_degree",
        ),
    )
    """Pipeline parallelism: consecutive groups of layers, each on its own ranks; only activations cross."""
    cp: int = field(
        1, kind="operational", unit="ranks", ge=1, aliases=("context_parallel_size", "context_parallel_degree")
    )
    """Context parallelism: ranks that share each sequence. Divides `train.seq_len`."""
    cp_method: ContextMethod = field("auto", kind="operational", aliases=("context_parallel_method",))
    """How ranks that share a sequence attend over all of it. ulysses: they exchange columns for heads; query and
    key-value heads (of a tensor-parallel rank) divide by `cp`. all_gather: keys and values come to every rank; 2 x cp
    divides `train.seq_len`. auto: ulysses where the heads divide. With `cp: 1` it has no effect."""
    zero_stage: int | None = field(None, kind="operational", ge=0, le=3, aliases=("zero_optimization.stage",))
    """What `dp_shard` ranks share: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters. Null means 3
    where `dp_shard` is above 1, and 0 otherwise."""
    gradient_reduction: Literal["step", "micro_batch"] | None = field(None, kind="operational")
    """When data-parallel ranks add up their gradients. step: once, in the last micro-batch of an optimizer step; until
    then each rank keeps whole gradients of its layers. micro_batch: in every one, so that each of the `dp_shard` ranks
    keeps its share only. Null means what the ZeRO stage promises: micro_batch at 2 and 3, step at 0, 1 and in
    pipelines."""
    schedule: Schedule = field("1f1b", kind="operational", aliases=("pipeline_schedule",))
    """Order of forward and backward passes in a pipeline; with `pp: 1` it has no effect."""
    virtual_stages: int = field(
        1,
        kind="operational",
        unit="stages per rank",
        ge=1,
        aliases=("virtual_pipeline_stages", "num_virtual_stages"),
    )
    """Groups of layers on each pipeline rank; more of them shrink the pipeline's idle share. Interleaved
    schedules need at least 2, the V-shaped ones exactly 2, the others exactly 1."""
    layers_per_virtual_stage: int | None = field(
        None, kind="operational", unit="layers", ge=1, aliases=("num_layers_per_virtual_pipeline_stage",)
    )
    """Another way to give `virtual_stages` in a recipe, Megatron-LM's: layers of the model / (pp x this). More than one
    stage a rank then means schedule interleaved_1f1b, unless another is given."""
    micro_batch: int | None = field(
        None, kind="operational", unit="samples", ge=1, aliases=("micro_batch_size", "train_micro_batch_size_per_gpu")
    )
    """Samples in one forward pass of one data-parallel rank; the rest of the batch is accumulated. Null lets the
    trainer choose."""

    timeout_seconds: float = field(
        600.0, kind="operational", unit="seconds", gt=0, aliases=("distributed_timeout_seconds", "ddp_timeout")
    )
    """How long a rank may go without progress (a step, a window of validation, a checkpoint) before the run ends with a
    message that says which rank is where. Longer than the longest of these takes."""
    max_restarts: int = field(3, kind="operational", ge=0, unit="restarts")
    """How often all ranks of this machine are started again from the newest checkpoint after one was killed or stood
    still. Under another launcher (torchrun, Slurm) that one's own setting counts."""

    @property
    def ranks(self) -> int:
        """Processes (one per GPU) of the layout."""
        return self.data_parallel * self.cp * self.tp * self.pp

    @property
    def zero(self) -> int:
        """`zero_stage` with its default resolved."""
        return self.zero_stage if self.zero_stage is not None else 3 if self.dp_shard > 1 else 0

    @property
    def reduces_every_micro_batch(self) -> bool:
        """`gradient_reduction` with its default resolved."""
        if self.gradient_reduction is not None:
            return self.gradient_reduction == "micro_batch"
        return self.zero >= 2 and self.pp == 1

    @property
    def data_parallel(self) -> int:
        """Ranks that see different samples: dp_replicate x dp_shard."""
        return self.dp_replicate * self.dp_shard

    @property
    def axes(self) -> dict[str, Any]:
        """The fields that say how ranks share the work, as a run's events have them; `model_validate` takes them."""
        kept = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "zero_stage", "schedule", "virtual_stages")
        return self.model_dump(mode="json", include=set(kept))

    def describe(self) -> str:
        """`4,096 ranks = dp 64 (replicate 64 x shard 1) x cp 1 x tp 8 x pp 8, ZeRO 1, 1f1b`."""
        if self.ranks == 1:
            return "1 rank (one process)"
        dp = f"dp {self.data_parallel} (replicate {self.dp_replicate} x shard {self.dp_shard})"
        text = f"{self.ranks:,} ranks = {dp} x cp {self.cp} x tp {self.tp} x pp {self.pp}, ZeRO {self.zero}"
        if self.pp > 1:
            text += f", {self.schedule}" + (
                f" with {self.virtual_stages} stages a rank" if self.virtual_stages > 1 else ""
            )
        return text

    def accumulation(self, global_batch: int) -> int | None:
        """Micro-batches a rank runs for one optimizer step; None while `micro_batch` is left to the trainer.

        Raises `ValueError` if global batch = data-parallel ranks x micro-batches x micro-batch has no solution.
        """
        if global_batch % self.data_parallel:
            raise ValueError(
                f"global batch {global_batch:,} does not divide over {self.data_parallel:,} data-parallel ranks"
                f"\n  mend: use a multiple of {self.data_parallel:,}"
            )
        if self.micro_batch is None:
            return None
        per_rank = global_batch // self.data_parallel
        if per_rank % self.micro_batch:
            raise ValueError(
                f"each of {self.data_parallel:,} data-parallel ranks has {per_rank:,} samples a step, which is not a "
                f"multiple of micro_batch {self.micro_batch:,}\n  mend: choose a divisor of {per_rank:,}"
            )
        return per_rank // self.micro_batch

    def bubble_ratio(self, micro_batches: int) -> float:
        """Idle share of a pipeline step, (pp - 1) / (v m + pp - 1), for GPipe, 1F1B and interleaved 1F1B with v virtual
        stages and m micro-batches (Narayanan et al. 2021, arXiv 2104.04473, section 2.2, as a share of the whole
        step). Zero-bubble schedules are below it."""
        return (self.pp - 1) / (self.virtual_stages * micro_batches + self.pp - 1)

    @model_validator(mode="after")
    def _check_schedule(self) -> ParallelConfig:
        if (layers := self.layers_per_virtual_stage) is not None:  # what a recipe could not turn into virtual_stages
            raise ValueError(
                f"layers_per_virtual_stage {layers} gives no whole number of stages: it takes a pipeline, and a model "
                f"whose layers divide by pp x this, {self.pp * layers}\n  mend: give virtual_stages, without this"
            )
        if self.schedule in INTERLEAVED and self.pp > 1 and self.virtual_stages < 2:
            raise ValueError(f"schedule {self.schedule} needs virtual_stages of at least 2, not {self.virtual_stages}")
        if self.schedule in V_SHAPED and self.pp > 1 and self.virtual_stages != 2:
            raise ValueError(f"schedule {self.schedule} places exactly 2 stages on a rank, not {self.virtual_stages}")
        if self.schedule in ("gpipe", "1f1b") and self.virtual_stages != 1:
            raise ValueError(
                f"schedule {self.schedule} has one stage on a rank, not {self.virtual_stages}"
                "\n  mend: use schedule: interleaved_1f1b, or virtual_stages: 1"
            )
        if self.zero_stage and self.dp_shard == 1 and self.ranks > 1:
            raise ValueError(
                f"zero_stage {self.zero_stage} shares state over dp_shard ranks, and dp_shard is 1"
                "\n  mend: name the data-parallel ranks under dp_shard, or use zero_stage: 0"
            )
        if self.gradient_reduction == "micro_batch" and self.pp > 1:
            raise ValueError(
                "a pipeline adds up its micro-batches' gradients before it reduces them"
                "\n  mend: remove gradient_reduction, or set it to step"
            )
        if self.zero_stage == 0 and self.dp_shard > 1:
            raise ValueError(
                f"dp_shard {self.dp_shard} shares nothing at zero_stage 0"
                "\n  mend: use dp_replicate for plain data parallelism, or zero_stage 1, 2 or 3"
            )
        return self


def with_virtual_stages(parallel: dict[str, Any], layers: int) -> dict[str, Any]:
    """The values of a `parallel` section with `layers_per_virtual_stage` put in terms of `virtual_stages`, for a model
    of `layers` layers; unchanged where that gives no whole number."""
    each, pp = parallel.get("layers_per_virtual_stage"), parallel.get("pp", 1)
    whole = isinstance(each, int) and isinstance(pp, int) and each > 0 and pp > 1 and layers % (each * pp) == 0
    if not whole or "virtual_stages" in parallel:
        return parallel
    rest = {name: value for name, value in parallel.items() if name != "layers_per_virtual_stage"}
    stages = layers // (each * pp)
    interleaved = {"schedule": "interleaved_1f1b"} if stages > 1 else {}
    return {**interleaved, **rest, "virtual_stages": stages}
