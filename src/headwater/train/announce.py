"""What a run says before its first step: what it will do, with which settings, and why.

In: plan, model, choices, order. Out: lines on the reporter, and the dry run's figures. Nothing here decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from headwater.core.artifacts import Artifact
from headwater.core.errors import HeadwaterError
from headwater.core.files import space
from headwater.core.progress import Reporter
from headwater.dataset import StepOrder, check_epochs, describe_use
from headwater.model import ModelConfig
from headwater.monitor.console import duration
from headwater.parallel.config import ParallelConfig
from headwater.parallel.precision import Precision
from headwater.tokenizer import Tokenizer
from headwater.train import devices, estimate
from headwater.train.config import CheckpointConfig, TrainConfig
from headwater.train.optimizers import adamw_lr
from headwater.train.phases import RunPlan
from headwater.train.train_module import TrainModule

WARM_SECONDS = 2.0


@dataclass(frozen=True)
class Choices:
    """What was left to the machine."""

    device: torch.device
    precision: Precision
    precision_why: str
    micro_batch: int
    micro_batch_why: str
    parallel: ParallelConfig = field(default_factory=ParallelConfig)


def many(count: float) -> str:
    """A count for people: `3.1 M`, `70 B`."""
    for limit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            return f"{count / limit:.3g} {name}"
    return f"{count:.0f}"


def tokenizer_key(tokenizer: Tokenizer) -> str:
    """What names the tokenizer in the run's record: its artifact's fingerprint, else the start of its hash."""
    try:
        return Artifact.open(tokenizer.path).fingerprint
    except HeadwaterError:
        return tokenizer.sha256[:16]


def describe(
    reporter: Reporter,
    config: TrainConfig,
    model: ModelConfig,
    plan: RunPlan,
    choices: Choices,
    order: StepOrder,
) -> None:
    """Say what will be trained on what and how. RecipeError if a domain would be read more than `max_epochs` times."""
    first = plan.segments[0]
    count = model.parameter_count()
    flops = model.flops_per_token(first.seq_len, scored=config.objective.scored_ratio)
    total = flops * plan.tokens
    reporter.decide(
        f"model of {many(count.total)} parameters ({many(count.without_embedding)} without embeddings)",
        f"{many(flops)} FLOPs a token, {total:.2e} FLOPs in all",
    )
    batches = sorted({(segment.global_batch, segment.seq_len) for segment in plan.segments})
    shapes = ", ".join(f"{batch} x {seq_len:,}" for batch, seq_len in batches)
    ratio = plan.tokens / count.total
    reporter.decide(
        f"{plan.steps:,} steps of {shapes} tokens: {plan.tokens:,} tokens",
        f"{ratio:,.1f} tokens a parameter; about 20 is compute-optimal (Hoffmann et al. 2022)",
    )
    reporter.decide(_rate(config), _schedule(config))
    if config.objective.name != "causal":
        reporter.decide(*_objective(config))
    use = order.use(plan.steps)
    for line in describe_use(use):
        reporter.info(line)
    for warning in check_epochs(use, config.max_epochs):
        reporter.warn(warning)
    reporter.decide(
        f"{choices.device.type}, {choices.precision}, {torch.get_num_threads()} threads", choices.precision_why
    )
    parallel = choices.parallel
    if parallel.ranks > 1:
        reporter.decide(parallel.describe(), f"each data-parallel rank reads 1/{parallel.data_parallel} of every batch")
    reporter.decide(f"micro-batch of {choices.micro_batch} samples", choices.micro_batch_why)
    for limit in devices.device_limits(choices.device, config):
        reporter.warn(limit)
    state = estimate.rank_state_size(model, config, parallel, choices.precision)
    tokens = choices.micro_batch * max(segment.seq_len for segment in plan.segments)
    activations = (
        tokens
        * estimate.activation_bytes_per_token(
            model, config, choices.precision, max(segment.seq_len for segment in plan.segments), choices.device.type
        )
        // (parallel.tp * parallel.cp)
    )
    each = " a rank" if parallel.ranks > 1 else ""
    reporter.decide(
        f"memory of about {space(state.total + activations)}{each} besides the program",
        f"weights {space(state.weights)}, gradients {space(state.gradients)}, optimizer {space(state.optimizer)}, "
        f"{'averages ' + space(state.averages) + ', ' if state.averages else ''}activations {space(activations)}",
    )


def facts(config: TrainConfig, model: ModelConfig, plan: RunPlan) -> dict[str, str]:
    """The run in a few words, for its report."""
    count = model.parameter_count()
    shapes = ", ".join(f"{b} x {s:,}" for b, s in sorted({(x.global_batch, x.seq_len) for x in plan.segments}))
    return {
        "model": f"{count.total:,} parameters: {model.num_hidden_layers} layers, {model.hidden_size} wide, vocabulary "
        f"{model.true_vocab_size:,}",
        "plan": f"{plan.steps:,} steps of {shapes} tokens, {plan.tokens:,} tokens",
        "optimizer": _rate(config),
        "schedule": _schedule(config),
    }


def saving(checkpoint_bytes: float, config: CheckpointConfig) -> tuple[str, str]:
    """How large checkpoints are, and how often they are written."""
    how_often = f"every {config.every:,} steps" if config.every else "about every two minutes"
    return f"checkpoints of {space(checkpoint_bytes)}", f"{how_often}, the last {config.keep} kept"


def _objective(config: TrainConfig) -> tuple[str, str]:
    asked = config.objective
    if asked.name == "mlm":
        kept = 1 - asked.mask_token_rate - asked.random_token_rate
        return (
            f"masked {'words' if asked.whole_word else 'tokens'}: {asked.mask_rate:.0%} of the text is predicted",
            f"{asked.mask_token_rate:.0%} of it masked, {asked.random_token_rate:.0%} random, {kept:.0%} as it is",
        )
    return (
        f"fill in the middle: {asked.fim_rate:.0%} of the documents of {', '.join(asked.fim_domains)} are rearranged",
        f"{asked.spm_rate:.0%} of these with the suffix first",
    )


def _rate(config: TrainConfig) -> str:
    optimizer = config.optimizer
    if optimizer.name == "adamw":
        return f"AdamW, learning rate {optimizer.lr:g}, weight decay {optimizer.weight_decay:g}"
    return (
        f"Muon, learning rate {optimizer.lr:g} for matrices, AdamW {adamw_lr(optimizer):g} for the rest, "
        f"weight decay {optimizer.weight_decay:g}"
    )


def _schedule(config: TrainConfig) -> str:
    schedule = config.schedule
    floor = f"{schedule.min_ratio:g} of it" if schedule.min_lr is None else f"{schedule.min_lr:g}"
    tail = {
        "constant": "constant",
        "cosine": f"cosine to {floor}",
        "linear": f"linear to {floor}",
        "wsd": f"stable, then {schedule.decay_shape} over the last {schedule.decay_ratio:.0%} to {floor}",
    }[schedule.name]
    return f"warm-up of {schedule.warmup_steps:,} steps, {tail}"


def dry_run(module: TrainModule, plan: RunPlan) -> float:
    """Run the largest shape of the plan once, forward and backward; seconds a token."""
    longest = max(segment.seq_len for segment in plan.segments)
    seconds = module.dry_run(longest)
    if seconds < WARM_SECONDS:  # cheap enough to run again, without what only the first call costs
        seconds = module.dry_run(longest)
    return seconds / (module.micro_batch * longest)


def expect(reporter: Reporter, module: TrainModule, plan: RunPlan, done_steps: int, seconds_per_token: float) -> None:
    """Say how long it will take and what the memory held at the dry run's end."""
    left = plan.tokens - plan.tokens_after(done_steps)
    facts: dict[str, Any] = {"memory": space(devices.used_memory_bytes(module.device))}
    reporter.decide(
        f"about {duration(left * seconds_per_token)} for {left:,} tokens",
        f"a dry run of one micro-batch made {1 / seconds_per_token:,.0f} tokens a second; {facts['memory']} in use",
    )
