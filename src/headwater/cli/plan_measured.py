"""`headwater plan calibrate` and `headwater plan compare RUN`: the planner and this machine.

The measuring is done by `headwater.simulate`; its file is a cluster file, for any `--cluster`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headwater.cli.common import finish, make_reporter
from headwater.core.errors import UserError

MEASURED = ("fp32", "tf32", "bf16", "fp16", "fp8")
"""Precisions that a machine can be calibrated in."""


def calibrate(precision: str | None, output: Path | None, *, as_json: bool, quiet: bool) -> None:
    """Measure the machine and write, or print, its file."""
    from headwater.parallel.precision import choose_precision
    from headwater.simulate.calibrate import as_yaml
    from headwater.simulate.calibrate import calibrate as measure
    from headwater.train.devices import choose_device

    if precision is not None and precision not in MEASURED:
        raise UserError(
            f"{precision!r} is not measured", where="--precision", mend=f"one of {', '.join(MEASURED)}, or leave it out"
        )
    device = choose_device("auto")
    chosen, why = choose_precision(precision or "auto", device, 256)
    make_reporter(quiet=quiet).info(f"measuring {device} in {chosen} ({why}); best while nothing else runs")
    machine = measure(chosen, device, (output or Path("machine.yaml")).resolve().parent)
    text = as_yaml(machine)
    if output is not None:
        output.write_text(text, encoding="utf-8")
        text = f"{output}: {machine['notes']}"
    finish(machine, text.rstrip("\n"), as_json=as_json)


def compare(runs: Sequence[Path], cluster: str | None, *, as_json: bool) -> None:
    """Predicted beside measured for a run."""
    from headwater.plan import parse_cluster
    from headwater.simulate.runs import compare_run

    if len(runs) != 1:
        raise UserError(f"{len(runs)} runs are given", where="headwater plan compare", mend="name one run's folder")
    if cluster is None:
        raise UserError(
            "no machine is named", where="--cluster", mend="measure it: headwater plan calibrate --output machine.yaml"
        )
    beside = compare_run(runs[0], parse_cluster(cluster))
    finish(beside.values(), beside.text(), as_json=as_json)
