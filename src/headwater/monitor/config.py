"""The `monitor:` section of a recipe: where figures of a run go. All of it operational.

MonitorConfig(prometheus={"enabled": True, "port": 8000})
"""

from __future__ import annotations

from typing import Literal

from headwater.core.config import Section, field

Sampled = Literal["gradients", "updates", "heads"]


class PrometheusConfig(Section):
    """A `/metrics` endpoint for Prometheus while a run trains."""

    enabled: bool = field(False, kind="operational")
    """Serve the endpoint."""

    port: int = field(8000, kind="operational", ge=1, le=65535)
    """Port; a busy one moves to the next free one, with a warning, and `endpoints.json` says which."""

    host: str = field("127.0.0.1", kind="operational")
    """Address to listen on; `0.0.0.0` lets another machine read it."""

    targets: str | None = field(None, kind="operational")
    """Folder of target files, which Prometheus watches (`file_sd_configs`) and several runs share; default
    `prometheus-targets` beside the run's folder."""


class WandbConfig(Section):
    """Figures to Weights & Biases as well; needs its package (`pip install 'headwater[wandb]'`)."""

    enabled: bool = field(False, kind="operational")
    """Send them."""

    mode: Literal["online", "offline"] = field("online", kind="operational")
    """`offline` writes into `wandb/` in the run's folder, to be sent later with `wandb sync`."""

    project: str = field("headwater", kind="operational")
    """Project there."""

    entity: str | None = field(None, kind="operational")
    """Team or person there; by default who is logged in."""


class DetectorsConfig(Section):
    """What is looked for in the figures of every step, and from where on it is said."""

    enabled: bool = field(True, kind="operational")
    """Look; what is found is warned of and written into `events.jsonl`. It never changes the training."""

    spike_score: float = field(6.0, kind="operational", gt=0)
    """Loss spike: robust standard deviations (and 0.1 nats) above the level of the last 16 steps."""

    moving_average_factor: float = field(1.5, kind="operational", gt=1)
    """Loss above this many times its average over the last 100 accepted steps (and 0.1 nats)."""

    grad_norm_high: float = field(1e5, kind="operational", gt=0)
    """Gradient norms above this explode, whatever they were before."""

    grad_norm_low: float = field(1e-7, kind="operational", ge=0)
    """Gradient norms below this for 20 steps vanish."""

    no_convergence_steps: int = field(180, kind="operational", ge=41, unit="steps")
    """After so many steps at half the peak learning rate or above, the loss must be 2 % below where it began, and below
    what token frequencies alone explain or still falling."""

    data_wait_share: float = field(0.3, kind="operational", gt=0, le=1, unit="ratio")
    """Data is slow when steps wait for it longer than this share of their time."""

    slow_step_ratio: float = field(1.5, kind="operational", gt=1, unit="ratio")
    """Steps are slow when they take so many times their usual time, in the median of 20 and for 20 seconds."""

    check_weights: bool = field(True, kind="operational")
    """Sum up the bits of all weights after an update and before the next: a bit that flips between is found, whichever
    it is. Two passes over the weights a step, about a third of what an AdamW update costs."""

    hang_seconds: float = field(60.0, kind="operational", gt=0, unit="seconds")
    """A step hangs when nothing goes on for so long, and for ten usual steps; all stacks are written then. Nothing is
    ended: that is what `parallel.timeout_seconds` does, with several ranks."""


class CollectConfig(Section):
    """Figures of every parameter and attention head, sampled, as each takes a pass over the weights. They are written
    to `tensors/` in the run's folder and never change the training."""

    every: int = field(50, kind="operational", ge=0, unit="steps")
    """Steps between samples, the first step being one; 0 takes none."""

    which: tuple[Sampled, ...] = field(("gradients", "updates", "heads"), kind="operational")
    """What is sampled: norms of gradients and weights; how far an update moves each parameter, which takes a copy of
    the weights (2 GiB at once at most); entropy, sink, largest logit and activity of heads, which take a forward pass
    of one window."""

    extremes: int = field(5, kind="operational", ge=1)
    """The largest and the smallest so many of each figure are in the record and in Prometheus."""


class MonitorConfig(Section):
    """Metrics of a run. The record, `metrics.jsonl`, is always written."""

    every: int = field(
        1, kind="operational", aliases=("log_every", "log_interval", "logging_steps"), ge=1, unit="steps"
    )
    """Steps between lines of the record and updates of the sinks; the last step always counts."""

    console: bool = field(True, kind="operational")
    """One live line on a terminal, a plain line now and then elsewhere."""

    console_seconds: float = field(10.0, kind="operational", gt=0, unit="seconds")
    """Without a terminal: at most one line in this time."""

    smoothing: int = field(100, kind="operational", ge=1, unit="steps")
    """Window of the simple moving average of the loss, `loss_sma`; at most a tenth of the run."""

    prometheus: PrometheusConfig = field(default_factory=PrometheusConfig, kind="operational")
    """Live view."""

    tensorboard: bool = field(False, kind="operational")
    """Event files for TensorBoard in `tensorboard/` in the run's folder."""

    wandb: WandbConfig = field(default_factory=WandbConfig, kind="operational")
    """Weights & Biases."""

    collect: CollectConfig = field(default_factory=CollectConfig, kind="operational")
    """Figures of single parameters and attention heads."""

    detectors: DetectorsConfig = field(default_factory=DetectorsConfig, kind="operational")
    """Detectors of spikes, divergence, slow steps and the like."""
