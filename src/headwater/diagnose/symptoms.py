"""Symptoms in plain words: what usually causes each, and the change of the recipe that helps.

In: the name of a symptom and what is known of the run's settings. Out: a `Finding`.

    finding("loss_spike", alerts, {"lr": 3e-4})
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from headwater.monitor.detectors import Alert

Settings = Mapping[str, Any]
"""Of the run, where known: `lr`, `warmup_steps`, `global_batch`; `model` and `train`, sections of its recipe; `saved`,
whether it has a checkpoint to go on from."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do; `sets` are `--set` overrides of the recipe."""

    text: str
    sets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One symptom: `evidence` with steps and numbers, `causes` the most likely first."""

    symptom: str
    title: str
    severity: Literal["warning", "critical"]
    first_step: int
    last_step: int
    evidence: tuple[str, ...]
    causes: tuple[str, ...]
    remedies: tuple[Remedy, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Symptom:
    title: str
    detectors: tuple[str, ...]
    causes: tuple[str, ...]
    remedies: Callable[[Settings], tuple[Remedy, ...]]


def _calmer(settings: Settings) -> Remedy:
    warmup = max(100, 2 * int(settings.get("warmup_steps") or 0))
    return Remedy(
        "halve the learning rate and warm up longer",
        (f"train.optimizer.lr={float(settings.get('lr') or 3e-4) / 2:g}", f"train.schedule.warmup_steps={warmup}"),
    )


def _steadier() -> Remedy:
    return Remedy("keep logits small", ("train.z_loss=1e-4", "model.qk_norm=true"))


def _clip(settings: Settings) -> tuple[Remedy, ...]:
    limit = (settings.get("train") or {}).get("clip_grad_norm")
    tight = isinstance(limit, int | float) and limit <= 1
    return () if tight else (Remedy("clip gradients", ("train.clip_grad_norm=1.0",)),)


def _again(settings: Settings) -> Remedy:
    if settings.get("saved") is False:
        return Remedy("run the same command again: it begins anew, as no checkpoint had been written")
    return Remedy("run the same command again: it goes on from the last checkpoint")


def _look(step_text: str = "the step") -> Remedy:
    return Remedy(f"read the documents of {step_text}: `headwater trace RUN --step N`")


def _memory(_: Settings) -> tuple[Remedy, ...]:
    return (
        Remedy("smaller pieces of the same batch (the result is the same)", ("parallel.micro_batch=1",)),
        Remedy("recompute activations in the backward pass", ("train.activation_checkpointing=full",)),
    )


SYMPTOMS: dict[str, Symptom] = {
    "non_finite": Symptom(
        "NaN or infinity in loss or gradient",
        ("non_finite",),
        ("the learning rate is too high", "a batch with broken text", "overflow in fp16", "a hardware fault"),
        lambda s: (_calmer(s), _steadier(), Remedy("a wider range of numbers", ("train.precision=bf16",)), _look()),
    ),
    "stopped": Symptom(
        "the run stopped itself",
        ("stopped",),
        ("a fault that skipping, going back and a lower rate did not mend",),
        lambda s: (_calmer(s), _steadier(), Remedy("ask what the step does: `headwater doctor RUN --step N`")),
    ),
    "hardware": Symptom(
        "weights that change by themselves",
        ("changed_weights",),
        ("memory that flips bits: a hardware fault", "code beside the trainer that writes into weights"),
        lambda s: (
            Remedy("go back behind the first such step, and replace the machine or device that had it"),
            Remedy("keep more states to go back to", ("train.checkpoint.keep=5",)),
        ),
    ),
    "out_of_memory": Symptom(
        "out of memory", ("out_of_memory",), ("micro-batches or sequences are too large for the device",), _memory
    ),
    "disk": Symptom(
        "the disk is full, or nearly",
        ("disk_full", "disk_near_full"),
        ("checkpoints of this run or of others", "what else is written to the same disk"),
        lambda s: (Remedy("keep fewer checkpoints", ("train.checkpoint.keep=1",)),),
    ),
    "overflow": Symptom(
        "fp16 overflows step after step",
        ("overflow",),
        ("activations or logits have grown", "a loss scale that begins or grows too high"),
        lambda s: (
            Remedy("a wider range of numbers", ("train.precision=bf16",)),
            Remedy("a lower scale to begin with", ("train.scaler.init_scale=4096",)),
            _steadier(),
        ),
    ),
    "loss_spike": Symptom(
        "loss spike",
        ("loss_spike", "moving_average"),
        ("a bad batch", "the learning rate is too high for this point", "attention logits have grown"),
        lambda s: (_look("the steps above"), _calmer(s), _steadier()),
    ),
    "gradient_explosion": Symptom(
        "exploding gradients",
        ("gradient_explosion",),
        ("a bad batch", "the learning rate is too high", "no clipping, or too loose"),
        lambda s: (*_clip(s), _calmer(s), _look("the steps above")),
    ),
    "gradient_vanishing": Symptom(
        "vanishing gradients",
        ("gradient_vanishing", "tensor_gradients"),
        ("the loss scale of fp16 is too small", "logits are saturated", "the batch asks for nothing (masked targets)"),
        lambda s: (Remedy("train without a loss scale", ("train.precision=bf16",)), _steadier()),
    ),
    "not_converging": Symptom(
        "not converging",
        ("no_convergence", "divergence"),
        (
            "the learning rate is far too high or too low",
            "data in which nothing can be learned (shuffled targets, noise, the wrong tokenizer)",
            "no warm-up",
        ),
        lambda s: (
            _calmer(s),
            Remedy("or, if it was very low, a common rate", ("train.optimizer.lr=3e-4",)),
            _look("a few steps"),
        ),
    ),
    "no_updates": Symptom(
        "weights stand still",
        ("no_updates",),
        ("the learning rate is 0, or has been lowered far too much", "updates too small for the weights' precision"),
        lambda s: (
            Remedy("a floor for the learning rate", ("train.schedule.min_ratio=0.1",)),
            Remedy("a common rate", (f"train.optimizer.lr={float(s.get('lr') or 3e-4):g}",)),
        ),
    ),
    "plateau": Symptom(
        "no more progress",
        ("plateau",),
        ("the model has learned what it can from this data", "the learning rate is too high to settle, or has ended"),
        lambda s: (
            Remedy("let the learning rate fall", ("train.schedule.name=cosine",)),
            Remedy("more or other data, or a larger model"),
        ),
    ),
    "oscillation": Symptom(
        "oscillating loss",
        ("oscillation",),
        ("the learning rate is too high", "the batch is too small", "AdamW's second moment is too slow"),
        lambda s: (
            _calmer(s),
            Remedy("a larger batch", (f"train.global_batch={2 * int(s.get('global_batch') or 32)}",)),
            Remedy("a faster second moment", ("train.optimizer.beta2=0.95",)),
        ),
    ),
    "memory": Symptom(
        "memory grows or nears its limit",
        ("memory_creep", "memory_near_limit"),
        ("something keeps references", "sequences that grow", "fragmentation"),
        _memory,
    ),
    "slow_data": Symptom(
        "training waits for data",
        ("slow_data",),
        ("slow or remote storage", "processors that others use", "steps that are very short"),
        lambda s: (Remedy("copy shards to a local disk ahead of training", ("dataset.cache_dir=cache",)),),
    ),
    "slow_steps": Symptom(
        "steps have become slower",
        ("slow_steps", "slow_rank"),
        ("other work on the machine", "a device that throttles (heat, power)", "a slow network or rank"),
        lambda s: (
            Remedy("measure the machines: `headwater check cluster`"),
            Remedy("make steps cheaper where the machine stays as it is", ("train.compile=true",)),
        ),
    ),
    "old_checkpoint": Symptom(
        "checkpoints do not come as often as asked",
        ("old_checkpoint",),
        ("storage too slow for their size", "saves that fail or hang"),
        lambda s: (
            Remedy("save beside the training", ("train.checkpoint.async_save=true",)),
            Remedy("save at fixed steps, less often", ("train.checkpoint.every=1000",)),
        ),
    ),
    "low_gpu_utilisation": Symptom(
        "the GPU is idle much of the time",
        ("low_gpu_utilisation",),
        ("micro-batches too small to fill it", "many small kernels", "waiting for data or for other ranks"),
        lambda s: (
            Remedy("fused kernels", ("train.compile=true",)),
            Remedy("larger pieces of the batch (the result is the same)", ("parallel.micro_batch=8",)),
        ),
    ),
    "heads": Symptom(
        "attention heads that do nothing", ("dead_heads",), ("attention logits have grown",), lambda s: (_steadier(),)
    ),
    "stalled": Symptom(
        "stalled",
        ("stalled", "hang"),
        ("a rank that hangs or died", "storage that does not answer", "a process that was stopped"),
        lambda s: (
            Remedy("end the process and run the same command again: it goes on from the last checkpoint"),
            Remedy("notice it sooner on several ranks", ("parallel.timeout_seconds=120",)),
        ),
    ),
    "died": Symptom(
        "the process ended before the run did",
        ("died",),
        ("it was killed (memory of the machine, time limit, power)", "an error, printed where it ran"),
        lambda s: (_again(s),),
    ),
}
"""By name, in the order in which they are told."""


def symptom_of(alert: Alert) -> str:
    """The symptom an alert belongs to; its detector's name for one that is not known here."""
    if alert.detector == "tensor_gradients" and alert.evidence.get("large"):  # it finds both ends
        return "gradient_explosion"
    return next((name for name, symptom in SYMPTOMS.items() if alert.detector in symptom.detectors), alert.detector)


def finding(name: str, alerts: Sequence[Alert], settings: Settings) -> Finding:
    """What to tell of a symptom with these alerts, in order of steps, at least one."""
    symptom = SYMPTOMS.get(name) or Symptom(name.replace("_", " "), (name,), (), lambda s: ())
    shown = [f"step {alert.step:,}: {alert.message}" for alert in alerts[:5]]
    if len(alerts) > 5:
        shown.append(f"and {len(alerts) - 5:,} more, the last at step {alerts[-1].step:,}")
    return Finding(
        name,
        symptom.title,
        "critical" if any(alert.severity == "critical" for alert in alerts) else "warning",
        alerts[0].step,
        alerts[-1].step,
        tuple(shown),
        symptom.causes,
        tuple(new for remedy in symptom.remedies(settings) if (new := _unless_so(remedy, settings)) is not None),
    )


def _unless_so(remedy: Remedy, settings: Settings) -> Remedy | None:
    """A remedy without what the run has already; None if that is all of it."""
    sets = tuple(one for one in remedy.sets if not _is_so(one, settings))
    return Remedy(remedy.text, sets) if sets or not remedy.sets else None


def _is_so(override: str, settings: Settings) -> bool:
    key, _, text = override.partition("=")
    value: Any = settings
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    try:
        return bool(value == json.loads(text))
    except ValueError:  # a word
        return bool(value == text)
