"""The tables of the chaos suite as a page.

In: records of trials and of healthy runs. Out: Markdown.

    text = report(trials, clean, text="1,299,173 characters of English", versions="torch 2.13.0")
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from chaos_cases import CASES
from chaos_peers import PEERS
from chaos_ranks import RANKS, TIMEOUT

HEAD = """# The chaos suite

Faults put on purpose into real (tiny) training runs, and what finds them: detection rates, steps to detect, false
alarms on healthy steps. Made by:

```text
python benchmarks/chaos.py --corpora FOLDER --report docs/chaos.md
```

{facts}

Faults are in `headwater.diagnose.faults`, `faults_bits` and `faults_machine`; they are callbacks, and anyone can put
them into a run:

```python
from headwater.diagnose.faults import PoisonedBatch
from headwater.diagnose.faults_bits import FlippedWeight

callbacks = [PoisonedBatch(50), FlippedWeight(80, "exponent", seed=3)]  # train(..., callbacks=callbacks)
```

A trial is a healthy run of 300 steps that is stopped and goes on in a new process's state; the fault comes three steps
after that (60 for the usual duration of steps, which is learned anew), so what a detector forgets at a resume shows.
Which batch, weight, bit, rank and step it is, is drawn. Rates have 95 % intervals (Wilson). "Steps" are those after the
first wrong step until the right detector speaks: median and 95th percentile of the trials in which it did.

The columns at the right are the rules of other trainers, written anew from what they do (`benchmarks/chaos_peers.py`)
and asked about the same losses and norms: OLMo-core's skip step (128 steps, six standard deviations of loss or norm),
Megatron-LM (NaN, and ten times the largest of the first 100 losses), Lightning's spike detection (three times the mean
of ten, or NaN), and 1.5 times a moving average of 100. They look at nothing but loss and norm: a dash is where that
cannot say anything. Where it makes a difference there are two figures: for a run that never stopped, and with what the
rule's own trainer loses when a run goes on.

"""

TAIL = """
## What is not found

- **A flipped bit in a gradient** that is not among the highest of its exponent. One element of one step's gradient is
  then wrong by a factor, or has the wrong sign, or is 0; the norm hardly moves and Adam divides by what it has seen
  before. Nothing in a run's figures shows it. It does as little harm, as the step after has a new gradient.
- **A flipped bit in an optimizer's moments**, in activations, or in a weight while the update itself is made: weights
  are compared from the end of an update to the beginning of the next, and nothing else is.
- **A batch that is only somewhat worse than others.** A rise within six deviations of the loss is noise; of a batch
  with few rows poisoned less is seen than of a whole one.
- **A plateau late in a run.** A healthy loss falls like a power of the steps and is flat over any fixed window in the
  end. Within 200 steps a stop is told from that only while the doubling before would have brought more than six
  standard errors; later it takes about as many steps as the run has had. Weights that stand still, or move far less
  than the learning rate asks for, are found at once or within two samples, at any time.
- **The first steps**: a spike before step 16 must be half above the highest loss so far; norms need 32 steps.
- **Slow steps in the first 40 of a process**, or a machine that was slow from the beginning: there is no usual yet.
- **A leak below 3 % of the memory in 120 steps**, and one in the first 40 of a process.
- **A hang of all ranks in a place that beats** (a validation that never ends but goes on from batch to batch).
"""


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """A rate's 95 % interval."""
    z, rate = 1.96, hits / trials
    middle = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    reach = z / (1 + z * z / trials) * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    return max(0.0, middle - reach), min(1.0, middle + reach)


def _rate(hits: int, trials: int) -> str:
    low, high = wilson(hits, trials)
    return f"{hits / trials:.0%} ({low:.0%} to {high:.0%})"


def _steps(found: Sequence[int]) -> str:
    ordered = sorted(found)
    if not ordered:
        return ""
    return f"{median(ordered):g}, {ordered[min(len(ordered) - 1, math.ceil(0.95 * len(ordered)) - 1)]}"


def _rows(trials: list[dict[str, Any]], names: Sequence[str], windows: dict[str, int]) -> list[str]:
    lines = [
        f"| fault | window | trials | found | steps | {' | '.join(PEERS)} |",
        f"|---|---|---|---|---|{'---|' * len(PEERS)}",
    ]
    for name in names:
        own = [trial for trial in trials if trial["case"] == name]
        if not own:
            continue
        found = [trial["found"] for trial in own if trial["found"] is not None]
        case = CASES.get(name)
        peers = []
        for peer in PEERS:
            if case is None or not case.in_figures:
                peers.append("-")
                continue
            hits = [sum(trial["peers"][peer][resumed] is not None for trial in own) / len(own) for resumed in (0, 1)]
            peers.append(f"{hits[0]:.0%}" if hits[0] == hits[1] else f"{hits[0]:.0%}, {hits[1]:.0%} resumed")
        cells = [name, str(windows[name]), str(len(own)), _rate(len(found), len(own)), _steps(found), *peers]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def report(trials: list[dict[str, Any]], clean: list[dict[str, Any]], *, text: str, versions: str) -> str:
    """The page."""
    windows = {name: case.window for name, case in CASES.items()} | RANKS
    order = [*CASES, *RANKS]
    hopeless = [name for name, case in CASES.items() if not case.possible]
    instant = [name for name in order if windows[name] <= 5 and name not in hopeless]
    slow = [name for name in order if windows[name] > 5]
    parts = [HEAD.format(facts=f"{len(trials):,} trials on {text}. {versions}.")]
    parts += ["## Instant faults\n", *_rows(trials, instant, windows)]
    waits = [trial["seconds"] for trial in trials if trial.get("seconds") is not None]
    if waits:
        parts.append(
            "\nA rank that is killed is known to whoever started it at once. One that hangs ends the step for all: the "
            f"verdict that names it and its place came {median(waits):.1f} s after the last sign of life (longest "
            f"{max(waits):.1f} s; `parallel.timeout_seconds` was {TIMEOUT:g} here)."
        )
    parts += ["\n## Slow faults\n", *_rows(trials, slow, windows)]
    parts += ["\n## Faults that leave no trace in any figure\n", *_rows(trials, hopeless, windows)]
    if clean:
        parts += ["\n## False alarms\n", *_clean_rows(clean)]
    return "\n".join(parts) + "\n" + TAIL


def _clean_rows(clean: list[dict[str, Any]]) -> list[str]:
    steps = sum(run["steps"] for run in clean)
    per = steps / 10_000
    ours = sum(len(run["training"]) for run in clean)
    machine = sum(len(run["machine"]) for run in clean)
    lines = [
        f"Alarms in {steps:,} steps of {len(clean)} healthy runs, all detectors on; as many alarms of one rule within "
        "eight steps count once.\n",
        "| rule | alarms | per 10,000 steps |",
        "|---|---|---|",
        f"| Headwater: loss, gradients, weights, heads | {ours} | {ours / per:.2f} |",
        f"| Headwater: time, memory, disk | {machine} | {machine / per:.2f} |",
    ]
    for peer in PEERS:
        alarms = sum(run["peers"][peer] for run in clean)
        lines.append(f"| {peer} | {alarms} | {alarms / per:.2f} |")
    lines += ["\n| healthy run | steps | alarms |", "|---|---|---|"]
    for name in dict.fromkeys(run["name"] for run in clean):
        own = [run for run in clean if run["name"] == name]
        said = [f"{alert[0]} at {alert[1]}" for run in own for alert in (*run["training"], *run["machine"])]
        lines.append(f"| {name} | {sum(run['steps'] for run in own):,} | {', '.join(said) or '0'} |")
    return lines
