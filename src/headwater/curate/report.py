"""The report of a curation: what came in, what went out, and why the rest did not, by language and by domain.

documents, bytes and units in = out + dropped (as they came in) + edited, exactly. `edited` is what cleaning took from
the documents that stay; it is negative where cleaning made text longer (an ASCII comma has one byte, ， three).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwater.curate.clean import VERSIONS
from headwater.curate.counts import FIELDS, Tally, as_json
from headwater.curate.exact import RULE, VERSION
from headwater.curate.language import identifier_version


def curation_report(decided: Sequence[dict[str, Any]], placed: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The report from the facts of `attributes/clean` and `attributes/exact` of all shards."""
    dropped, kept_in, kept_out = Tally(), Tally(), Tally()
    for facts in decided:
        dropped.merge(facts["dropped"])
    for facts in placed:
        dropped.merge(facts["dropped"])
        kept_in.merge(facts["kept_in"])
        kept_out.merge(facts["kept_out"])
    sums = [tally.total() for tally in (dropped, kept_in, kept_out)]
    came_in = [lost + stayed for lost, stayed in zip(sums[0], sums[1], strict=True)]
    edited = [before - after for before, after in zip(sums[1], sums[2], strict=True)]
    return {
        "in": as_json(came_in),
        "out": as_json(sums[2]),
        "edited": {"bytes": edited[1], "units": edited[2]},
        "dropped": dropped.by(0),
        "by_language": _by(dropped, kept_in, kept_out, 0),
        "by_domain": _by(dropped, kept_in, kept_out, 1),
        "rules": {**VERSIONS, RULE: VERSION},
        "language_identifier": identifier_version(),
    }


def _by(dropped: Tally, kept_in: Tally, kept_out: Tally, place: int) -> dict[str, Any]:
    """Per language (place 0) or domain (place 1): in, out, and dropped by rule."""
    out, before = kept_out.by(place), kept_in.by(place)
    lost = dropped.by(place + 1, 0)
    rows: dict[str, Any] = {}
    for key in sorted({*before, *(key.split("|")[0] for key in lost)}):
        reasons = {name.split("|")[1]: counts for name, counts in lost.items() if name.split("|")[0] == key}
        nothing = dict.fromkeys(FIELDS, 0)
        came_in = dict(before.get(key, nothing))
        for counts in reasons.values():
            for field in FIELDS:
                came_in[field] += counts[field]
        rows[key] = {"in": came_in, "out": out.get(key, nothing), "dropped": reasons}
    return rows


def split_table(written: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Split -> domain -> documents, bytes, units, from the facts of the output shards."""
    kept = Tally()
    for facts in written:
        kept.merge(facts["kept"])
    table: dict[str, Any] = {}
    for key, counts in kept.by(0, 1).items():
        split, domain = key.split("|")
        table.setdefault(split, {})[domain] = counts
    return table
