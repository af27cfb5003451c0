"""The `train.recovery` section: what a run does by itself when a step goes wrong, rung by rung.

    RecoveryConfig(skip={"times": 5}, rewind={"times": 0})

All of it is operational: the policy may change in the middle of a run, as what it did is in the run ledger, entry by
entry, and whoever goes on from there honours that.
"""

from __future__ import annotations

from typing import Literal

from headwater.core.config import Section, field

Trouble = Literal["non_finite", "changed_weights", "loss_spike", "moving_average", "gradient_explosion"]


class SkipConfig(Section):
    """First rung: the step's update is not made; weights, optimizer, averages and loss scale stay as they are."""

    times: int = field(3, kind="operational", ge=0, unit="steps")
    """Steps skipped within `within` before the next rung; 0 leaves the rung out."""

    within: int = field(50, kind="operational", ge=1, unit="steps")
    """What counts as recent."""


class RewindConfig(Section):
    """Second rung: back to the newest checkpoint from before the trouble, and on without the samples that made it."""

    times: int = field(2, kind="operational", ge=0)
    """Rewinds within `within` before the next rung; each for the same trouble goes back one checkpoint further, as far
    as there are any. 0 leaves the rung out."""

    within: int = field(1000, kind="operational", ge=1, unit="steps")
    """What counts as recent."""


class LowerLrConfig(Section):
    """Third rung: a rewind as above, and a lower learning rate for a while."""

    times: int = field(2, kind="operational", ge=0)
    """Times within `within` before the run stops; they multiply. 0 leaves the rung out."""

    within: int = field(5000, kind="operational", ge=1, unit="steps")
    """What counts as recent."""

    factor: float = field(0.5, kind="operational", gt=0, lt=1, unit="ratio")
    """What the learning rate is multiplied with."""

    steps: int = field(500, kind="operational", ge=1, unit="steps")
    """For so many steps beyond the one that went wrong."""


class RecoveryConfig(Section):
    """What a run does by itself when a step goes wrong: skip it, go back, slow down, and at last stop with a report.

    Each rung is used up before the next one. Every action is an entry of the run ledger.
    """

    enabled: bool = field(True, kind="operational")
    """Act; otherwise what is found is only said, and NaN ends the run."""

    on: tuple[Trouble, ...] = field(
        ("non_finite", "changed_weights", "loss_spike", "gradient_explosion"), kind="operational"
    )
    """Detectors that are acted upon (`monitor.detectors`). In the first 32 steps after the data or its length change as
    planned a loss or gradient that jumps is expected, and left alone. Weights that change by themselves are not skipped
    over: the run goes back at once, and reads the same samples again."""

    skip: SkipConfig = field(default_factory=SkipConfig, kind="operational")
    """Skip the step."""

    rewind: RewindConfig = field(default_factory=RewindConfig, kind="operational")
    """Go back, and skip the samples."""

    lower_lr: LowerLrConfig = field(default_factory=LowerLrConfig, kind="operational")
    """Go back, skip the samples, and slow down."""
