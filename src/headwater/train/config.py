"""The `train:` section of a recipe: how long, how big, how fast, in which phases, and what is kept.

In: plain values from a recipe or from Python. Out: one frozen `TrainConfig`. No torch is imported.

    TrainConfig(tokens=20_000_000, global_batch=32, seq_len=256, optimizer={"name": "muon", "lr": 0.02})

`PATH_ALIASES` lifts flat names of other trainers (`adam_beta2`, `weight_decay`, `lr`, `warmup_steps`, `min_lr` ...)
to their nested place. Fields marked *operational* never change which weights come out, up to the rounding of a
different but equivalent order of sums (micro-batches, compilation, checkpointed activations).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator

from headwater.core.config import Section, field
from headwater.dataset.mix_config import MixingConfig
from headwater.parallel.step_config import Float8Config, LossScaleConfig, RecomputeConfig
from headwater.train.aliases import (
    PRECISION_ALIASES,
    RECOMPUTE_ALIASES,
    RECOMPUTE_PATHS,
    SCALER_PATHS,
    Translation,
)
from headwater.train.objective import OBJECTIVE_PATHS, ObjectiveConfig
from headwater.train.recovery_config import RecoveryConfig
from headwater.train.update_config import OptimizerConfig, ScheduleConfig


class PhaseConfig(Section):
    """A stretch of the run with its own data mixture, sequence length, batch or schedule.

    Exactly one of `share`, `tokens` and `steps` says how long it is, the same one in every phase.
    """

    name: str = field(...)
    """What the phase is called in the log and the ledger."""

    share: float | None = field(None, gt=0, le=1, unit="ratio")
    """Share of the run's tokens (or steps, if the run is given in steps); shares add up to 1."""

    tokens: int | None = field(None, gt=0, unit="tokens")
    """Length in tokens, rounded up to whole steps."""

    steps: int | None = field(None, gt=0, unit="steps")
    """Length in optimizer steps."""

    mixture: dict[str, float] | None = field(None)
    """Weights of the domains in this phase; default: the run's."""

    seq_len: int | None = field(None, aliases=("max_seq_len",), gt=0, unit="tokens")
    """Sequence length in this phase; default: the run's."""

    global_batch: int | None = field(None, aliases=("batch_size",), gt=0, unit="samples")
    """Samples per optimizer step in this phase; default: the run's, scaled so that a step has as many tokens."""

    rope_theta: float | None = field(None, gt=0)
    """Base of the rotary embedding from this phase on (long context); default: unchanged."""

    schedule: ScheduleConfig | None = field(None)
    """A learning-rate schedule of the phase's own, counted from its first step. Phases without one share the run's
    schedule, which then counts only their steps."""

    lr_ratio: float = field(1.0, gt=0, unit="ratio")
    """The phase's peak as a share of `optimizer.lr`."""


class BatchRampConfig(Section):
    """The batch grows at the start of the run (GPT-3's and Megatron's batch ramp)."""

    start: int = field(..., gt=0, unit="samples")
    """Samples per step at the first step."""

    increment: int = field(..., gt=0, unit="samples")
    """Samples added at each rise, until `global_batch`."""

    steps: int = field(..., gt=0, unit="steps")
    """Steps over which the rises are spread evenly."""


class AveragingConfig(Section):
    """Averages of the weights along the way, evaluated and exported in place of the last weights."""

    name: Literal["none", "ema", "lawa"] = field("none")
    """`ema`: exponential moving average; `lawa`: mean of the latest few snapshots (Kaddour 2022)."""

    decay: float = field(0.999, gt=0, lt=1)
    """`ema`: share of the average kept at each update."""

    last: int = field(5, ge=1, unit="snapshots")
    """`lawa`: how many snapshots are averaged; each costs a copy of the weights in memory."""

    every: int = field(10, ge=1, unit="steps")
    """Steps between updates of the average."""

    start: int = field(0, ge=0, unit="steps")
    """No updates before this step; the average begins as the weights of the first update."""


class CheckpointConfig(Section):
    """When checkpoints are written and which are kept."""

    every: int | None = field(
        None, kind="operational", aliases=("save_interval", "save_steps", "save_every"), ge=1, unit="steps"
    )
    """Steps between checkpoints; default: about every two minutes of training, as measured on the way."""

    keep: int = field(2, kind="operational", aliases=("save_total_limit", "keep_latest_k"), ge=1, unit="checkpoints")
    """How many of the latest are kept; two, so that a damaged one has one before it."""

    permanent_every: int | None = field(None, kind="operational", ge=1, unit="steps")
    """Checkpoints at multiples of this are never deleted."""

    async_save: bool = field(True, kind="operational")
    """Write in a thread: training waits only for the copy in memory."""

    ephemeral_dir: str | None = field(None, kind="operational")
    """A folder on fast storage (NVMe, a RAM disk) for a second tier of checkpoints, of which only the newest is kept:
    frequent, and lost with the machine. All ranks must see it. Null: one tier."""

    ephemeral_every: int | None = field(None, kind="operational", ge=1, unit="steps")
    """Steps between checkpoints in `ephemeral_dir`; those of `every` come in addition, into the run's folder."""

    @model_validator(mode="after")
    def _check_tiers(self) -> CheckpointConfig:
        if (self.ephemeral_dir is None) != (self.ephemeral_every is None):
            raise ValueError(
                "ephemeral_dir and ephemeral_every belong together"
                "\n  mend: give the folder and the number of steps, or neither"
            )
        return self


class ValidationConfig(Section):
    """Loss and bits per byte on held-out windows of each domain, during the run."""

    every: int | None = field(None, kind="operational", aliases=("eval_interval", "eval_steps"), ge=0, unit="steps")
    """Steps between validations; 0: only at the end; default: ten over the run."""

    windows_per_domain: int = field(64, kind="operational", ge=1, unit="windows")
    """Windows of each domain, the same ones every time, spread evenly over it."""


class SamplingConfig(Section):
    """Text generated while training, written to `samples.jsonl`."""

    every: int | None = field(None, kind="operational", ge=0, unit="steps")
    """Steps between samples; 0: only at the end; default: five times over the run."""

    prompts: tuple[str, ...] = field(("",), kind="operational")
    """What is continued; an empty prompt starts a document."""

    max_tokens: int = field(64, kind="operational", ge=1, unit="tokens")
    """Tokens generated for each prompt."""


class TrainConfig(Section):
    """How the model is trained. One of `tokens`, `steps` or `phases` with lengths of their own says for how long."""

    PATH_ALIASES: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("lr", "learning_rate", "max_lr", "peak_lr"), "optimizer.lr"),
        **dict.fromkeys(("weight_decay", "wd"), "optimizer.weight_decay"),
        **dict.fromkeys(("beta1", "adam_beta1"), "optimizer.beta1"),
        **dict.fromkeys(("beta2", "adam_beta2"), "optimizer.beta2"),
        **dict.fromkeys(("adam_eps", "adam_epsilon", "eps"), "optimizer.eps"),
        "muon_momentum": "optimizer.momentum",
        **dict.fromkeys(
            ("warmup_steps", "num_warmup_steps", "lr_warmup_iters", "warmup_iters", "lr_warmup_steps"),
            "schedule.warmup_steps",
        ),
        "min_lr": "schedule.min_lr",
        "min_lr_ratio": "schedule.min_ratio",
        "lr_scheduler_type": "schedule.name",
        "lr_decay_style": "schedule.name",
        **dict.fromkeys(("save_interval", "save_steps", "save_every", "checkpoint_every"), "checkpoint.every"),
        "save_total_limit": "checkpoint.keep",
        **dict.fromkeys(("eval_interval", "eval_steps"), "validation.every"),
        **OBJECTIVE_PATHS,
        **SCALER_PATHS,
        **RECOMPUTE_PATHS,
    }
    VALUE_ALIASES: ClassVar[dict[str, Translation]] = {**PRECISION_ALIASES, **RECOMPUTE_ALIASES}

    tokens: int | None = field(None, aliases=("total_tokens", "max_tokens", "train_tokens"), gt=0, unit="tokens")
    """Tokens to train on, rounded up to whole steps."""

    steps: int | None = field(
        None, aliases=("max_steps", "train_iters", "num_steps", "total_steps", "max_iters"), gt=0, unit="steps"
    )
    """Optimizer steps to train for; give this or `tokens`."""

    global_batch: int = field(32, aliases=("batch_size", "global_batch_size", "train_batch_size"), gt=0, unit="samples")
    """Samples per optimizer step, over all micro-batches and devices."""

    seq_len: int = field(
        1024, aliases=("max_seq_len", "seq_length", "sequence_length", "block_size", "context_length"), gt=0,
        unit="tokens",
    )  # fmt: skip
    """Tokens in one sample."""

    mixture: dict[str, float] | None = field(None)
    """Weights of the domains in tokens, any positive scale; default: each domain as large as it is."""

    mixing: MixingConfig | None = field(None)
    """Caps, priorities and language shares that make a plan of `mixture`, given what the dataset has."""

    max_epochs: float | None = field(None, aliases=("max_repetition_factor",), gt=0)
    """Refuse to start when a domain would be seen more often than this."""

    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """What the model is asked; `objective: mlm` is short for `objective: {name: mlm}`."""

    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """The update rule."""

    schedule: ScheduleConfig = field(default_factory=ScheduleConfig, aliases=("lr_schedule", "scheduler"))
    """Learning rate over steps."""

    phases: tuple[PhaseConfig, ...] = field(())
    """Stretches with their own mixture, sequence length, batch or schedule, in order."""

    batch_ramp: BatchRampConfig | None = field(None)
    """A batch that grows at the start of the run."""

    clip_grad_norm: float | None = field(
        1.0, aliases=("max_grad_norm", "clip_grad", "gradient_clipping", "grad_clip"), gt=0
    )
    """Largest global gradient norm; larger gradients are scaled down to it. null: no clipping."""

    z_loss: float = field(0.0, aliases=("z_loss_weight", "z_loss_coef"), ge=0)
    """Weight of log(Z)^2, which keeps logits from drifting (PaLM: 1e-4)."""

    document_mask: bool = field(True, aliases=("reset_attention_mask",))
    """Attention stays inside a document and positions restart with each; off: a window is one text."""

    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "fp8"] = field("auto", aliases=("mixed_precision",))
    """Arithmetic of matrix products; weights, gradients and optimizer state are fp32. `bf16` and `fp16` by autocast,
    `fp16` with a dynamic loss scale (`scaler`), `fp8` in the blocks' projections with bf16 around them (`float8`),
    `tf32` on NVIDIA's tensor cores. `auto`: bf16 where the device has it (and, on a CPU, the model is at least 128
    wide), else fp16 on a GPU with tensor cores, else fp32. What the device lacks is refused. `fp16: true` and the like
    mean the same."""

    scaler: LossScaleConfig = field(default_factory=LossScaleConfig, aliases=("grad_scaler", "loss_scaler"))
    """The loss scale of `precision: fp16`."""

    float8: Float8Config = field(default_factory=Float8Config)
    """Scaling of `precision: fp8`."""

    averaging: AveragingConfig = field(default_factory=AveragingConfig)
    """Weight averaging."""

    device: Literal["auto", "cpu", "cuda", "mps"] = field("auto", kind="operational")
    """Where to train; `auto`: CUDA, else MPS, else CPU."""

    deterministic: bool = field(True, kind="operational")
    """Use deterministic kernels, so that a resumed run is bitwise the undisturbed one."""

    compile: bool = field(False, kind="operational", aliases=("torch_compile",))
    """Compile the model with torch.compile (needs a C++ compiler; the first step takes up to a minute)."""

    activation_checkpointing: Literal["none", "selective", "full"] = field(
        "none", kind="operational",
        aliases=("gradient_checkpointing", "recompute_granularity", "activations_checkpoint_granularity"),
    )  # fmt: skip
    """Memory against time in the backward pass: `full` recomputes each layer, `selective` part of it (`recompute`
    says which part, and of which layers)."""

    recompute: RecomputeConfig = field(default_factory=RecomputeConfig, kind="operational")
    """Which layers `activation_checkpointing` applies to, what of them, and where the rest waits."""

    dry_run: bool = field(True, kind="operational")
    """Before step one, run forward and backward once at the largest shape, so that too little memory shows at once."""

    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig, kind="operational")
    """Checkpoints."""

    recovery: RecoveryConfig = field(default_factory=RecoveryConfig, kind="operational")
    """What the run does by itself when a step goes wrong."""

    validation: ValidationConfig = field(default_factory=ValidationConfig, kind="operational", aliases=("eval",))
    """Validation during the run."""

    sampling: SamplingConfig = field(default_factory=SamplingConfig, kind="operational")
    """Samples during the run."""

    @model_validator(mode="before")
    @classmethod
    def _accept_other_words(cls, data: object) -> object:
        """From Python too, `activation_checkpointing=True` and `precision="bf16-mixed"` are understood."""
        if isinstance(data, dict):
            for name in ("precision", "activation_checkpointing"):
                if name in data:
                    data = {**data, name: cls.VALUE_ALIASES[name][1](data[name])}
        return data

    @model_validator(mode="after")
    def _check_recompute(self) -> TrainConfig:
        if self.activation_checkpointing == "none" and self.recompute.chooses:
            raise ValueError(
                "recompute says which layers are computed again, but activation_checkpointing is none"
                "\n  mend: set activation_checkpointing to selective or full"
            )
        return self

    @model_validator(mode="after")
    def _check_length(self) -> TrainConfig:
        if self.tokens is not None and self.steps is not None:
            raise ValueError("give tokens or steps, not both: each follows from the other")
        if not self.phases:
            return self
        units = {unit for phase in self.phases for unit in ("share", "tokens", "steps") if getattr(phase, unit)}
        counted = [sum(getattr(p, u) is not None for u in ("share", "tokens", "steps")) for p in self.phases]
        if len(units) != 1 or counted != [1] * len(self.phases):
            raise ValueError("every phase gives its length as exactly one of share, tokens, steps, and all in the same")
        unit = units.pop()
        names = [phase.name for phase in self.phases]
        if len(set(names)) != len(names):
            raise ValueError(f"two phases have the same name: {names}")
        if unit == "share":
            total = sum(phase.share or 0 for phase in self.phases)
            if abs(total - 1) > 1e-6:
                raise ValueError(f"the shares of the phases add up to {total:g}, not 1")
        else:
            given = getattr(self, unit)
            summed = sum(getattr(phase, unit) for phase in self.phases)
            if given is not None and given != summed:
                raise ValueError(f"train.{unit} is {given:,} but the phases add up to {summed:,}; leave one out")
            other = "steps" if unit == "tokens" else "tokens"
            if getattr(self, other) is not None:
                raise ValueError(f"phases are given in {unit} and the run in {other}; use one unit")
        return self

    @model_validator(mode="after")
    def _check_values(self) -> TrainConfig:
        weights = [self.mixture, *(phase.mixture for phase in self.phases)]
        for mixture in weights:
            if mixture is not None and (not mixture or min(mixture.values()) < 0 or sum(mixture.values()) <= 0):
                raise ValueError(f"mixture weights must be positive numbers, at least one of them: {mixture}")
        floor, peak = self.schedule.min_lr, self.optimizer.lr
        if floor is not None and floor > peak:
            raise ValueError(f"schedule.min_lr {floor:g} is above optimizer.lr {peak:g}")
        if self.batch_ramp is not None and self.batch_ramp.start > self.global_batch:
            raise ValueError(
                f"batch_ramp.start {self.batch_ramp.start} is above global_batch {self.global_batch}: a ramp only rises"
            )
        return self
