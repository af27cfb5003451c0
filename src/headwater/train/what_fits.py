"""What a run has found to fit into memory, kept in its folder (`micro_batch.json`) for whoever goes on with it.

In: a run, the device and layout it trains in. Out: the micro-batch that fits, and whether attention heads can be looked
at beside training. Any rank may find less to fit; the least counts, also where ranks find it out at the same moment.

    memory = WhatFits(run, {"device": "cuda", "layout": "1 rank"}, reporter); memory.known().micro_batch
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headwater.core.files import atomic_write
from headwater.core.jsonl import parse_json, pretty_json
from headwater.core.locks import guard
from headwater.core.progress import Reporter
from headwater.train.run_folder import RunFolder

REMEMBERED = "micro_batch.json"


@dataclass(frozen=True, slots=True)
class Fits:
    """`micro_batch`: None where any that was tried did. `heads`: whether a look at attention heads did."""

    micro_batch: int | None = None
    heads: bool = True


class WhatFits:
    """See the module. `place`: what it depends on; what was found elsewhere counts for nothing."""

    def __init__(self, run: RunFolder, place: dict[str, Any], reporter: Reporter) -> None:
        self._run, self._place, self._reporter = run, place, reporter

    def known(self) -> Fits:
        """What has been found so far; of a file that cannot be read, nothing."""
        try:
            known = parse_json((self._run.path / REMEMBERED).read_bytes())
            rows, heads = known["micro_batch"], known.get("heads", True)
            if known["facts"] == self._place and isinstance(rows, int | None) and isinstance(heads, bool):
                return Fits(rows, heads)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        return Fits()

    def remember(self, found: Fits) -> None:
        with guard(self._run.path.parent):
            known = self.known()
            rows = [size for size in (known.micro_batch, found.micro_batch) if size is not None]
            kept = {"micro_batch": min(rows, default=None), "heads": known.heads and found.heads, "facts": self._place}
            atomic_write(self._run.path / REMEMBERED, pretty_json(kept))

    def smaller(self, step: int, before: int, now: int, reason: str) -> None:
        """A step did not fit into this rank's memory, and is done in smaller pieces from now on."""
        self.remember(Fits(now))
        self._run.event("out_of_memory", step=step, micro_batch=now, before=before, reason=reason)
        self._reporter.warn(f"step {step:,}: no memory for a micro-batch of {before}; {now} from here on ({reason})")

    def no_heads(self, step: int, reason: str) -> None:
        """A look at attention heads did not fit beside training, and is not taken any more."""
        self.remember(Fits(heads=False))
        message = f"step {step:,}: no memory to look at attention heads; without their figures from here on ({reason})"
        self._run.event("warning", step=step, message=message)
        self._reporter.warn(message)
