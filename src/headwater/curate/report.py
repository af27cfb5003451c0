"""The report of a curation: what came in, what went out, and why the rest did not, by language and by domain.

documents, bytes and units in = out + dropped (as they came in) + edited + cut, exactly. `edited` is what cleaning took
from the documents that stay; it is negative where cleaning made text longer (an ASCII comma has one byte, ， three).
`cut` is what repeated passages and lines of sites took from them, its documents those that lost some; `edits` counts
what cleaning changed by kind: mojibake, boilerplate lines, personal data masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwater.curate.clean import VERSIONS
from headwater.curate.counts import FIELDS, Tally, as_json
from headwater.curate.decisions import Outcome
from headwater.curate.dedup.settings import VERSION
from headwater.curate.exact import RULE
from headwater.curate.exact import VERSION as EXACT_VERSION
from headwater.curate.language import identifier_version
from headwater.curate.near import RULE_NAMES
from headwater.curate.place import TAKEDOWN
from headwater.curate.site_lines import RULE as SITE_RULE
from headwater.curate.site_lines import VERSION as SITE_VERSION


def curation_report(outcome: Outcome) -> dict[str, Any]:
    """The report from the facts of `attributes/clean` and `attributes/corpus` of all shards."""
    dropped, cut = Tally(), Tally()
    kept = {name: Tally() for name in ("kept_in", "kept_clean", "kept_out")}
    for facts in outcome.decided:
        dropped.merge(facts["dropped"])
    for facts in outcome.placed:
        dropped.merge(facts["dropped"])
        cut.merge(facts["cut"])
        for name, tally in kept.items():
            tally.merge(facts[name])
    edits: dict[str, list[int]] = {}
    for facts in outcome.decided:
        for kind, (documents, number) in facts["edits"].items():
            row = edits.setdefault(kind, [0, 0])
            row[0] += documents
            row[1] += number
    lost, (before, clean, after) = dropped.total(), (tally.total() for tally in kept.values())
    came_in = [gone + stayed for gone, stayed in zip(lost, before, strict=True)]
    return {
        "in": as_json(came_in),
        "out": as_json(after),
        "edited": {"bytes": before[1] - clean[1], "units": before[2] - clean[2]},
        "edits": {kind: {"documents": row[0], "number": row[1]} for kind, row in sorted(edits.items())},
        "cut": cut.by(0),
        "dropped": dropped.by(0),
        "by_language": _by(dropped, kept["kept_in"], kept["kept_out"], 0),
        "by_domain": _by(dropped, kept["kept_in"], kept["kept_out"], 1),
        "compared": outcome.compared,
        "rules": {
            **VERSIONS,
            **_quality_rules(outcome),
            RULE: EXACT_VERSION,
            **dict.fromkeys(RULE_NAMES[1:], VERSION),
            SITE_RULE: SITE_VERSION,
            TAKEDOWN: 1,
        },
        "language_identifier": identifier_version(),
    }


def _quality_rules(outcome: Outcome) -> dict[str, int]:
    """Quality rules that were asked, with their versions."""
    return {rule: version for facts in outcome.decided for rule, version in facts["quality"].items()}


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
