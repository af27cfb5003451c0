"""Faults that take several ranks: one is killed, one hangs, one is slow. Two gloo ranks of this machine, real ones.

In: a world, a seed. Out: a record as `chaos_trials.trial` gives it; `seconds` from the fault to the verdict.

    rank_trial(world, out, "killed rank", seed=3)
"""

from __future__ import annotations

import json
import random
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos_trials import LANGUAGES, Ends, Enough, alerts
from chaos_world import World, start

from headwater.core.errors import HeadwaterError
from headwater.diagnose.faults import Fault
from headwater.diagnose.faults_machine import Hang, KilledRank, SlowSteps
from headwater.parallel.environment import World as Ranks
from headwater.parallel.local_ranks import run_local_ranks
from headwater.parallel.rank_process import watched_rank
from headwater.train import RunFolder

TIMEOUT = 3.0
"""`parallel.timeout_seconds` of these runs."""
RANKS = {"killed rank": 5, "rank that hangs": 5, "slow rank": 60}
"""Windows in steps."""


def rank_trial(world: World, out: Path, name: str, seed: int) -> dict[str, Any]:
    """Run it on two ranks. The folder is gone afterwards."""
    folder = out / "rank-trial"
    shutil.rmtree(folder, ignore_errors=True)
    draw = random.Random(f"{name}/{seed}")
    at, victim = draw.randrange(12, 24), draw.randrange(2)
    ended = ""
    try:
        run_local_ranks(2, _rank, world, folder, name, at, victim, seed, timeout=90.0)
    except HeadwaterError as error:  # ranks that die are what is looked for
        ended = str(error)
    run = RunFolder.open(folder)
    if name == "slow rank":
        said = [(alert["detector"], alert["step"] - at) for alert in alerts(run, at)]
        right = [
            alert["step"] - at
            for alert in alerts(run, at)
            if alert["detector"] == "slow_rank" and alert["evidence"]["rank"] == victim
        ]
        found, seconds = (min(right) if right else None), None
    else:
        verdict, seconds = (ended, None) if name == "killed rank" else _verdict(folder)
        step = max((row["step"] for row in run.metrics()), default=0)
        named = re.search(rf"rank {victim}: (died|at step {at}, .*faults_machine)", verdict)
        found, said = (step - at + 1 if named else None), [("verdict", step - at + 1)]
    shutil.rmtree(folder)
    return {"case": name, "seed": seed, "found": found, "said": said, "seconds": seconds, "peers": {}}


def _rank(world: World, folder: Path, name: str, at: int, victim: int, seed: int) -> None:
    faults: dict[str, Fault] = {
        "killed rank": KilledRank(at, rank=victim),
        "rank that hangs": Hang(at, rank=victim),
        "slow rank": SlowSteps(at, seconds=0.4, rank=victim),
    }
    ends = Ends(at + RANKS[name], at, ("slow_rank",))
    with watched_rank(folder / "logs", Ranks.from_env(), timeout_seconds=TIMEOUT):
        with suppress(Enough):
            start(
                world,
                folder,
                dataset=LANGUAGES[seed % 3],
                seed=seed,
                callbacks=[faults[name], ends],
                config={"steps": 200, "checkpoint": {"every": 10_000}},
                monitor={"collect": {"every": 0}},
                parallel={"dp_replicate": 2, "micro_batch": 4},
            )


def _verdict(folder: Path) -> tuple[str, float | None]:
    """(what was said, seconds from the last sign of life of any rank to it)."""
    ranks = folder / "logs" / "ranks"
    path = ranks / "verdict.json"
    if not path.exists():
        return "", None
    beats = [file.stat().st_mtime for file in ranks.glob("0000?.json")]
    return json.loads(path.read_text())["what"], path.stat().st_mtime - max(beats)
