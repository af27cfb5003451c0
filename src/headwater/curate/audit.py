"""Replaying removals: draw some at random, decide each anew from the source text, count those that do not hold.

In: a corpus (the folder of a finished curate stage, its documents in the same workspace), or a folder that a verb on
files wrote, its inputs where they were. Out: for each drawn removal
whether its rule holds, with the score computed again by other code (`evidence`); over all, the false-removal rate with
its 95 % interval. What a rule means is for people to judge: `samples` holds both texts to read and to label, and labels
give a second rate.

    audit(Path("workspace/curate/0123456789abcdef"), sample=200)["false_rate"]
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import xxhash

from headwater.core.errors import InputError, UserError
from headwater.curate.dedup.benchmark_files import benchmark_files
from headwater.curate.dedup.benchmarks import Item
from headwater.curate.evidence import clopper_pearson, covered, overlap, wilson, words
from headwater.curate.questions import settings_of
from headwater.curate.removals import Removals, removals_in
from headwater.curate.site_lines import RULE as SITE_LINE
from headwater.curate.site_lines import site_of

TOLERANCE = 1e-6
_COMPARED = ("dedup.exact", "dedup.short", "dedup.minhash", "dedup.simhash", "split.near-held-out")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`holds` is None for a removal that cannot be decided anew; `score` is what was computed."""

    holds: bool | None
    why: str = ""
    score: float | None = None


def audit(
    folder: Path, *, sample: int = 200, seed: int = 0, rules: Sequence[str] = (), labels: Path | None = None
) -> dict[str, Any]:
    """Replay removals of a corpus or of files. `rules` narrows to some; `labels` is a file of samples with a person's
    `false`.

    Raises InputError for a folder that is neither, or whose documents are no longer there; UserError for a rule that
    removed nothing.
    """
    removals = removals_in(folder)
    _check_rules(removals, rules)
    samples = _replayed(removals, list(draw(removals.rows(), sample, seed, rules)))
    decided = [one for one in samples if one["holds"] is not None]
    by_rule = {
        rule: _rate([one for one in decided if one["rule"] == rule])
        for rule in sorted({one["rule"] for one in decided})
    }
    return {
        "corpus": removals.name,
        "removals": removals.count,
        "drawn": len(samples),
        "not_replayed": len(samples) - len(decided),
        **_rate(decided),
        "by_rule": by_rule,
        "labelled": _labelled(labels) if labels is not None else None,
        "samples": samples,
    }


def _check_rules(removals: Removals, rules: Sequence[str]) -> None:
    if not rules:
        return
    known = sorted({row["rule"] for row in removals.rows()})
    for rule in rules:
        if rule not in known:
            raise UserError(
                f"nothing was removed by {rule!r}", where="--rule", mend=f"removals are by {', '.join(known) or 'none'}"
            )


def some_of_each_rule(folder: Path, most: int) -> list[dict[str, Any]]:
    """Up to `most` removals of every rule, drawn at random, with both texts."""
    removals = removals_in(folder)
    rows = list(draw(removals.rows(), most, 0, of_each_rule=True))
    return _replayed(removals, rows) if rows else []


def _replayed(removals: Removals, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drawn rows with both texts and a verdict each. The documents are read once for all of them."""
    wanted = {row["id"] for row in rows} | {row["kept_id"] for row in rows if row["kept_id"]}
    replay = _Replay(removals, wanted)
    samples = []
    for row in rows:
        verdict = replay.decide(row)
        samples.append(
            {
                **{key: row[key] for key in ("action", "rule", "version", "score", "spans", "detail")},
                "id": row.get("shown_id", row["id"]),
                "kept_id": row.get("shown_kept_id", row["kept_id"]),
                "holds": verdict.holds,
                "why": verdict.why,
                "score_again": verdict.score,
                "text": replay.text(row["id"]),
                "kept_text": replay.text(row["kept_id"]),
                "false": None,
            }
        )
    return samples


def _rate(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    false = sum(not one["holds"] for one in samples)
    return {"replayed": len(samples), "false": false, **interval(false, len(samples))}


def interval(hits: int, trials: int) -> dict[str, Any]:
    """A share with both of its 95 % intervals."""
    return {
        "false_rate": round(hits / trials, 6) if trials else None,
        "wilson_95": [round(edge, 6) for edge in wilson(hits, trials)],
        "clopper_pearson_95": [round(edge, 6) for edge in clopper_pearson(hits, trials)],
    }


def _labelled(path: Path) -> dict[str, Any]:
    """The rate by people: rows of a samples file whose `false` is true or false."""
    try:
        rows = [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
        said = [row["false"] for row in rows if isinstance(row["false"], bool)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"cannot read the labels: {error}", where=str(path), mend="give a file that --samples wrote"
        ) from error
    return {"labelled": len(said), "false": sum(said), **interval(sum(said), len(said))}


def draw(
    removed: Iterable[dict[str, Any]],
    sample: int,
    seed: int,
    rules: Sequence[str] = (),
    *,
    of_each_rule: bool = False,
) -> Iterator[dict[str, Any]]:
    """A random sample of removals, or `of_each_rule` one after the other, by a hash of seed and row: the same for the
    same seed."""
    drawn: dict[str, list[tuple[int, int, dict[str, Any]]]] = {}
    for number, row in enumerate(removed):
        if rules and row["rule"] not in rules:
            continue
        key = -xxhash.xxh3_64_intdigest(f"{seed}\0{row['id']}\0{number}".encode())
        best = drawn.setdefault(row["rule"] if of_each_rule else "", [])
        if len(best) < sample:
            heapq.heappush(best, (key, number, row))
        elif best and key > best[0][0]:
            heapq.heapreplace(best, (key, number, row))
    for _, best in sorted(drawn.items()):
        yield from (row for _, _, row in sorted(best, key=lambda entry: entry[1]))


class _Replay:
    """Decides removals anew."""

    def __init__(self, removals: Removals, wanted: set[str]) -> None:
        self.config = removals.config
        self._documents = removals.documents(wanted)
        self._gone = {
            row["id"]
            for row in removals.rows()
            if row["action"] == "remove" and row["id"] in wanted and row["rule"] != "takedown.id"
        }
        self._cleaned: dict[str, Any] = {}
        self._items: dict[str, str] | None = None

    def text(self, identifier: str) -> str | None:
        """The cleaned text, or the raw one of a document that cleaning dropped."""
        if identifier not in self._documents:
            return None
        cleaned = self._clean(identifier)
        return cleaned.text if cleaned.text is not None else self._documents[identifier]["text"]

    def _clean(self, identifier: str) -> Any:
        if identifier not in self._cleaned:
            from headwater.curate.sift import sift

            row = self._documents[identifier]
            document = tuple(row[name] for name in ("id", "text", "lang", "domain", "meta"))
            self._cleaned[identifier] = sift([document], self.config).cleaned[0]
        return self._cleaned[identifier]

    def decide(self, row: dict[str, Any]) -> Verdict:
        """Whether one removal holds."""
        rule = row["rule"]
        if rule == "takedown.id":
            return Verdict(None, "asked for by id")
        if row["id"] not in self._documents:
            return Verdict(None, "its document is no longer there")
        if rule in _COMPARED:
            return self._compared(row)
        if rule.startswith("dedup.ngram"):
            return self._passage(row)
        if rule == SITE_LINE:
            mine, theirs = (site_of(self._documents.get(row[key], {}).get("url") or "") for key in ("id", "kept_id"))
            return (
                self._passage(row) if mine and mine == theirs else Verdict(False, "the other page is of another site")
            )
        if rule == "decontaminate.question":
            return self._question(row)
        return self._alone(row)

    def _compared(self, row: dict[str, Any]) -> Verdict:
        if row["kept_id"] in self._gone:
            return Verdict(False, "the document it was removed for does not stay")
        mine, theirs = self._clean(row["id"]).text, self._clean(row["kept_id"]).text
        if mine is None or theirs is None:
            return Verdict(False, "cleaning drops one of the two")
        if row["rule"] == "dedup.exact":
            return Verdict(mine == theirs, "" if mine == theirs else "the texts differ", float(mine == theirs))
        dedup = self.config.dedup
        score = overlap(mine, theirs, width=dedup.width, measure=dedup.measure, simplify=dedup.fold_traditional)
        if score < dedup.threshold:
            return Verdict(False, f"scores {score:.4f}, under {dedup.threshold}", score)
        if abs(score - row["score"]) > TOLERANCE:
            return Verdict(False, f"scores {score:.6f}, not {row['score']:.6f}", score)
        return Verdict(True, score=score)

    def _passage(self, row: dict[str, Any]) -> Verdict:
        mine, theirs = self._clean(row["id"]).text, self._clean(row["kept_id"]).text
        if mine is None or theirs is None or not row["spans"]:
            return Verdict(False, "cleaning drops one of the two")
        simplify = self.config.dedup.fold_traditional
        for start, end, kept_start, kept_end in row["spans"]:
            if words(mine[start:end], simplify) != words(theirs[kept_start:kept_end], simplify):
                return Verdict(False, "the passage is not that of the kept document")
        return Verdict(True)

    def _question(self, row: dict[str, Any]) -> Verdict:
        question = self._questions().get(row["kept_id"])
        if question is None:
            return Verdict(None, "the benchmark is no longer there")
        config = self.config.decontaminate
        (start, end), text = row["spans"][0], self._documents[row["id"]]["text"]
        cleaned = self._clean(row["id"]).text
        part = (cleaned if cleaned is not None else text)[start:end]
        score = covered(question, part, width=config.width, simplify=config.fold_traditional)
        if score < config.threshold:
            return Verdict(False, f"{score:.4f} of the question is there, under {config.threshold}", score)
        return Verdict(True, score=score)

    def _questions(self) -> dict[str, str]:
        if self._items is None:
            from headwater.curate.dedup.decontaminate import read_items

            config = self.config.decontaminate
            try:
                items: list[Item] = read_items(benchmark_files(config.paths), settings_of(config))[0]
            except InputError:
                items = []
            self._items = {item.name: item.question for item in items}
        return self._items

    def _alone(self, row: dict[str, Any]) -> Verdict:
        cleaned = self._clean(row["id"])
        if cleaned.text is not None:
            return Verdict(False, "no rule takes it now")
        if cleaned.rule != row["rule"] or cleaned.version != row["version"]:
            return Verdict(False, f"{cleaned.rule} version {cleaned.version} takes it now", cleaned.score)
        if abs(float(cleaned.score) - row["score"]) > TOLERANCE * max(1.0, abs(row["score"])):
            return Verdict(False, f"scores {cleaned.score:g}, not {row['score']:g}", float(cleaned.score))
        return Verdict(True, score=float(cleaned.score))
