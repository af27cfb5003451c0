"""One trial: a healthy run is stopped, goes on with a fault in it, and ends when it is found or its time is up.

In: a case, a seed. Out: a record (JSON values): at which step after the fault which detector spoke, and which rules of
other trainers would have, on the same losses and norms.

    trial(world, out, "poisoned batch", CASES["poisoned batch"], seed=3)
"""

from __future__ import annotations

import math
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos_cases import PREFIX, Case
from chaos_peers import PEERS
from chaos_world import World, start

from headwater.train import RunFolder
from headwater.train.callbacks import Callback
from headwater.train.non_finite import NonFiniteError
from headwater.train.trainer import Interrupted, Trainer

PREFIXES = 8
"""Different healthy runs that trials go on from."""
LANGUAGES = ("mixed", "en", "zh")
STEPS = 2_000
"""The length the runs believe they have."""


class Enough(Exception):
    """The trial is over."""


class Ends(Callback):
    """Ends the run once one of the detectors has spoken, or after the last step of the window: before the next step, so
    that the record has this one."""

    name = "ends"

    def __init__(self, last: int, first: int, detectors: tuple[str, ...]) -> None:
        self._last, self._first, self._detectors, self._size = last, first, detectors, 0
        self._over = False

    def before_step(self, trainer: Trainer, step: int) -> None:
        if self._over:
            raise Enough

    def after_step(self, trainer: Trainer, outcome: object) -> None:
        path = trainer.run.path / "events.jsonl"
        if (size := path.stat().st_size) != self._size:
            self._size = size
            said = alerts(trainer.run, self._first)
            self._over = any(alert["detector"] in self._detectors for alert in said)
        self._over = self._over or trainer.step >= self._last


class StopsAt(Callback):
    """Asks the run to stop after a step, as a batch system would."""

    name = "stops"

    def __init__(self, step: int) -> None:
        self._step = step

    def after_step(self, trainer: Trainer, outcome: object) -> None:
        if trainer.step == self._step:
            os.kill(os.getpid(), signal.SIGTERM)


def alerts(run: RunFolder, first: int) -> list[dict[str, Any]]:
    """What detectors have said about steps from `first` on."""
    return [event for event in run.events() if event["event"] == "alert" and event["step"] >= first]


def _prefix(world: World, out: Path, case: Case, seed: int) -> Path:
    """A healthy run that was stopped after PREFIX steps; made once for each kind of settings."""
    kind = "-".join(f"{key}" for key in sorted(case.settings)) or "usual"
    folder = out / "prefix" / f"{kind}-{seed % PREFIXES}"
    if not (folder / "stopped").exists():
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(Interrupted):
            _start(world, folder, case, seed % PREFIXES, [StopsAt(PREFIX)])
        (folder / "stopped").touch()
    return folder


def _start(world: World, folder: Path, case: Case, seed: int, callbacks: list[Callback]) -> None:
    config = {"steps": STEPS, "checkpoint": {"every": 100}, **case.settings}
    language = LANGUAGES[seed % len(LANGUAGES)]
    start(world, folder, dataset=language, seed=seed, callbacks=callbacks, config=config, monitor=case.monitor)


def trial(world: World, out: Path, name: str, case: Case, seed: int) -> dict[str, Any]:
    """Run it. The folder is gone afterwards."""
    folder = out / "trial"
    shutil.rmtree(folder, ignore_errors=True)
    first = 1 if case.fresh else PREFIX + case.after
    if not case.fresh:
        shutil.copytree(_prefix(world, out, case, seed), folder)
    failed: Exception | None = None
    fault = case.fault(first, seed)
    ends = Ends(first + case.window, first, case.detectors)
    try:
        _start(world, folder, case, seed % PREFIXES, [fault, ends])
    except Enough:
        pass
    except (NonFiniteError, OSError) as error:
        failed = error
    run = RunFolder.open(folder)
    rows = [(row["step"], _number(row["loss"]), _number(row["grad_norm"])) for row in run.metrics()]
    if isinstance(failed, NonFiniteError):
        rows.append((rows[-1][0] + 1 if rows else 1, failed.loss, failed.grad_norm))
    said = [(alert["detector"], alert["step"] - first) for alert in alerts(run, first)]
    right = [age for detector, age in said if detector in case.detectors]
    shutil.rmtree(folder)
    return {
        "case": name,
        "seed": seed,
        "found": min(right) if right and min(right) <= case.window else None,
        "said": said,
        "ended": type(failed).__name__ if failed else None,
        "fault": getattr(fault, "flipped", ""),
        "peers": {peer: [_peer(peer, rows, first, case, resumes) for resumes in (False, True)] for peer in PEERS},
    }


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float | str) else math.nan


def _peer(name: str, rows: list[tuple[int, float, float]], first: int, case: Case, resumes: bool) -> int | None:
    """Steps after the fault at which a rule spoke first, had the run never stopped or with what it loses then."""
    rule = PEERS[name]()
    for step, loss, norm in rows:
        if step == PREFIX + 1 and resumes and not case.fresh:
            rule.resume()
        if rule.speaks(loss, norm) and first <= step <= first + case.window:
            return step - first
    return None
