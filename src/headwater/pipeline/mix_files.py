"""Mixing files: rows in, as many of each domain and language as a plan wants out, repeated where it says so.

In: JSON Lines or Parquet. Out, in a folder: `kept.jsonl.zst` (rows unchanged; pass after pass over the inputs, each in
their order), `removed.jsonl.zst` and `report.json`. Amounts are units, or tokens of a tokenizer. Which rows of a cell
(domain and language) are taken depends on their ids and the seed alone.

    mix_files([Path("corpora")], Path("mixed"), MixOptions(weights={"web": 0.6, "books": 0.4}, max_repeats={"": 4}))
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headwater.core.artifacts import fingerprint
from headwater.core.errors import InputError, RecipeError, UserError
from headwater.core.progress import SILENT, Reporter
from headwater.core.units import count_units
from headwater.curate.dedup.files import refuse_overwriting
from headwater.curate.dedup.rows import (
    KEPT,
    REMOVED,
    BadRow,
    Fields,
    Row,
    RowSource,
    RowWriter,
    empty_files,
    find_files,
    row_counts,
)
from headwater.curate.dedup.workplace import begun, workplace
from headwater.curate.results import commit, contents, finished, write_report
from headwater.dataset.mix_config import MixingConfig
from headwater.dataset.mix_plan import MixPlan, Stretch, language_targets, plan_mixture
from headwater.tokenizer import Tokenizer

RULE, VERSION = "mix.quota", 1
_ROUNDS = 200
_NEAR = 0.005
"""How far a share may be from what is wanted before it counts as missed."""
_BATCH = 512


@dataclass(frozen=True)
class MixOptions:
    """What is wanted. `weights` of domains ({}: as large as each is), `total` amount (0: as much as the caps allow),
    `max_repeats` by domain ("" for all others, which is 1 where nothing is said), the rest as in `train.mixing`."""

    weights: dict[str, float] = field(default_factory=dict)
    total: int = 0
    max_repeats: dict[str, float] = field(default_factory=dict)
    fill: bool = False
    priority: tuple[str, ...] = ()
    languages: dict[str, float] = field(default_factory=dict)
    language_temperature: float | None = None
    seed: int = 0
    text_field: str = "text"
    id_field: str = "id"
    domain_field: str = "domain"

    def __post_init__(self) -> None:
        for name in ("weights", "max_repeats", "languages"):
            for key, value in getattr(self, name).items():
                least = "above 0" if name == "max_repeats" else "0 or more"
                good = 0 < value < inf if name == "max_repeats" else 0 <= value < inf  # nan is neither
                whose = f" of {key}" if key else ""
                _check(good, f"{name}{whose} is {value:g}", name, f"give a number, {least}")
        for name in ("weights", "languages"):
            shares = getattr(self, name)
            _check(not shares or any(shares.values()), f"{name} are all 0", name, "give one of them a share")
        _check(self.total >= 0, f"total is {self.total}", "total", "give 0 or more")
        heat = self.language_temperature
        _check(heat is None or 0 < heat < inf, f"language_temperature is {heat}", "language_temperature", "above 0")
        _check(
            heat is None or not self.languages, "languages and language_temperature are given", "languages", "give one"
        )
        _check(self.fill or not self.priority, "priority says who fills a shortfall", "priority", "give fill, too")


def _check(good: bool, what: str, where: str, mend: str) -> None:
    if not good:
        raise UserError(what, where=where, mend=mend)


@dataclass
class _Rows:
    """What was read: for each row its cell, amount and place in the cell's order."""

    cells: dict[tuple[str, str], int]
    cell: NDArray[np.uint32]
    amount: NDArray[np.int64]
    order: NDArray[np.uint64]

    def sizes(self) -> dict[tuple[str, str], int]:
        sums = np.bincount(self.cell, weights=self.amount, minlength=len(self.cells))
        return {cell: int(sums[number]) for cell, number in self.cells.items()}


def mix_files(
    inputs: Sequence[Path],
    out: Path,
    options: MixOptions,
    *,
    tokenizer: Tokenizer | None = None,
    plan_only: bool = False,
    reporter: Reporter = SILENT,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Plan, say the plan, and mix; returns what `report.json` holds. With `plan_only` nothing is written; what was done
    before is not done again.

    Raises InputError for inputs that cannot be read or hold no row, RecipeError with the numbers for shares that cannot
    be had, UserError for an `out` with another result, without `overwrite`.
    """
    files = find_files(list(inputs))
    refuse_overwriting(files, out)
    made_from = contents(files)
    said = {"options": asdict(options), "inputs": [str(path) for path in files]}
    vocabulary = {} if tokenizer is None else {"tokenizer": tokenizer.sha256}
    key = fingerprint("mix", VERSION, said, {**made_from, **vocabulary})
    if not plan_only and (report := finished(out, key, overwrite=overwrite, begun=begun(out, key))) is not None:
        return report
    fields = Fields(options.text_field, options.id_field, options.domain_field)
    sources = [RowSource(path, fields) for path in files]
    rows = _read(sources, options.seed, tokenizer, reporter)
    if not len(rows.cell):
        raise InputError(
            f"no row of the inputs has a text ({row_counts(sources)['unusable']:,} rows could not be used)",
            where=", ".join(map(str, inputs)),
            mend="check the files and text_field",
        )
    unit = "units" if tokenizer is None else "tokens"
    plan, config = _plan(rows.sizes(), options, unit)
    for line in plan.lines(unit):
        reporter.info(line)
    copies = _copies(rows, plan)
    report = {"verb": "mix", "version": VERSION, "unit": unit, **said, "contents": made_from}
    report |= _report(rows, plan, copies, sources, config)
    if plan_only:
        return report
    with workplace(out, key) as place:
        _write(out, place, sources, copies, [row for source in sources for row in source.bad])
        return write_report(out, key, report)


def _read(sources: Sequence[RowSource], seed: int, tokenizer: Tokenizer | None, reporter: Reporter) -> _Rows:
    cells: dict[tuple[str, str], int] = {}
    cell, amount, order = array("I"), array("q"), array("Q")
    with reporter.progress("measure", unit="rows") as bar:
        for number, source in enumerate(sources):
            for batch in _batches(source.rows()):
                texts = [row.text.decode("utf-8", "surrogatepass") for row in batch]
                if tokenizer is None:
                    amounts = [count_units(text) for text in texts]
                else:
                    amounts = [len(tokens) + 1 for tokens in tokenizer.encode_batch(texts)]  # and the end token
                for row, size in zip(batch, amounts, strict=True):
                    cell.append(cells.setdefault((row.domain or "other", row.lang), len(cells)))
                    amount.append(size)
                    key = f"{seed}\0{row.id or f'{number}:{row.line}'}".encode("utf-8", "surrogatepass")
                    order.append(xxhash.xxh3_64_intdigest(key))
                bar.advance(len(batch))
    return _Rows(cells, np.array(cell, np.uint32), np.array(amount, np.int64), np.array(order, np.uint64))


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _name(cell: tuple[str, str]) -> str:
    """DOMAIN/LANGUAGE, or DOMAIN; a slash within either is written %2F, so that no two cells have one name."""
    domain, lang = (part.replace("%", "%25").replace("/", "%2F") for part in cell)
    return f"{domain}/{lang}" if lang else domain


def _plan(sizes: dict[tuple[str, str], int], options: MixOptions, unit: str) -> tuple[MixPlan, MixingConfig]:
    """Cells as the planner's domains; their caps and priorities are those of their domain."""
    domains: dict[str, dict[str, int]] = {}
    for (domain, lang), amount in sizes.items():
        domains.setdefault(domain, {})[lang] = amount
    named = {*options.weights, *options.priority, *(name for name in options.max_repeats if name)}
    if missing := sorted(named - set(domains)):
        raise RecipeError(
            f"there is no domain {missing[0]!r} in the inputs", where="mix",
            mend="the domains are " + ", ".join(sorted(domains)),
        )  # fmt: skip
    if missing := sorted(set(options.languages) - {lang for _, lang in sizes}):
        raise RecipeError(
            f"there is no text in language {missing[0]!r} in the inputs", where="mix",
            mend="each row names its own in `lang`; the languages are "
            + ", ".join(sorted({lang or "(none)" for _, lang in sizes})),
        )  # fmt: skip
    asked = MixingConfig(languages=options.languages, language_temperature=options.language_temperature)
    target = language_targets(domains, asked)
    fitted = _fit(sizes, options.weights, target)
    _check_fit(fitted, options, target)
    cells = {_name(cell): share for cell, share in fitted.items() if share > 0}
    other = options.max_repeats.get("", 1.0)
    caps = {_name(cell): options.max_repeats.get(cell[0], other) for cell in sizes}
    config = MixingConfig(
        max_repeats=caps,
        shortfall="fill" if options.fill else "refuse",
        priority=tuple(_name(cell) for name in options.priority for cell in sorted(sizes) if cell[0] == name),
    )
    amounts = {_name(cell): amount for cell, amount in sizes.items()}
    total = options.total or int(min(caps[name] * amounts[name] / weight for name, weight in cells.items()))
    by_cell = {_name(cell): {cell[1]: amount} for cell, amount in sizes.items()}
    try:
        (plan,) = plan_mixture(by_cell, [Stretch(total, 1, cells)], config, unit=unit)
    except RecipeError as error:  # its advice is for a run
        mend = "lower --total or their --weights, raise --max-repeats, add text, or let others give with --fill"
        raise RecipeError(error.what, where="mix", mend=mend) from error
    return plan, config


def _fit(
    sizes: dict[tuple[str, str], int], weights: dict[str, float], target: dict[str, float]
) -> dict[tuple[str, str], float]:
    """Shares of cells with the domains' weights and the languages' shares as sums: iterative proportional fitting from
    what there is, domains last. Without weights the languages alone count, without both what there is."""
    total = sum(weights.values())
    cells = {cell: float(size) for cell, size in sizes.items() if size and (not weights or weights.get(cell[0], 0) > 0)}
    for _ in range(_ROUNDS if target and weights else 1):
        if target:
            sums = _sums(cells, 1)
            cells = {cell: value * target.get(cell[1], 0.0) / (sums[cell[1]] or 1) for cell, value in cells.items()}
        if weights:
            sums = _sums(cells, 0)
            cells = {cell: value * weights[cell[0]] / total / (sums[cell[0]] or 1) for cell, value in cells.items()}
    whole = sum(cells.values()) or 1
    return {cell: value / whole for cell, value in cells.items()}


def _sums(cells: dict[tuple[str, str], float], part: int) -> dict[str, float]:
    """Sums of cells by domain (0) or language (1)."""
    sums: dict[str, float] = {}
    for cell, value in cells.items():
        sums[cell[part]] = sums.get(cell[part], 0.0) + value
    return sums


def _check_fit(cells: dict[tuple[str, str], float], options: MixOptions, target: dict[str, float]) -> None:
    """Raises RecipeError for shares of domains and languages that cannot both be had, unless others may fill them."""
    total = sum(options.weights.values()) or 1
    wanted = ({name: weight / total for name, weight in options.weights.items()}, target)
    off = [
        f"{name or '(no language)'} would have {have:.1%} of the {share:.1%} wanted"
        for part in (0, 1)
        for name, share in wanted[part].items()
        if abs((have := _sums(cells, part).get(name, 0.0)) - share) > _NEAR
    ]
    if not any(cells.values()) or (off and not options.fill):
        raise RecipeError(
            "the inputs cannot give these shares: " + ("; ".join(off) or "no row has anything in it"),
            where="mix",
            mend="change --weights or --languages, or take what comes nearest with --fill",
        )


def _copies(rows: _Rows, plan: MixPlan) -> NDArray[np.uint16]:
    """How often each row is taken, uint16 [rows]: whole passes, and for the rest rows in the order of their hash while
    they fit, so that no quota and no cap is passed."""
    copies = np.zeros(len(rows.cell), np.uint16)
    for cell, number in rows.cells.items():
        wanted, passes = plan.rows.get(_name(cell), (0.0, 0.0))
        mine = np.flatnonzero(rows.cell == number)
        size = int(rows.amount[mine].sum())
        if not size or wanted <= 0:
            continue
        if passes > np.iinfo(np.uint16).max:
            raise RecipeError(f"{_name(cell)} would be repeated {passes:,.0f} times", where="mix", mend="lower --total")
        whole, rest = divmod(wanted + 1e-6, size)
        copies[mine] = int(whole)
        inside = mine[np.lexsort((mine, rows.order[mine]))]
        copies[inside[np.cumsum(rows.amount[inside]) <= rest]] += 1
    return copies


def _write(
    out: Path, place: Path, sources: Sequence[RowSource], copies: NDArray[np.uint16], bad: Sequence[BadRow]
) -> None:
    with RowWriter(out / KEPT, place) as kept, RowWriter(out / REMOVED, place) as removed:
        for number in range(max(1, int(copies.max()))):
            row = 0
            for source in sources:
                for item in source.rows() if not number else source.again():
                    data = item.data if isinstance(item, Row) else item[1]
                    if copies[row] > number:
                        kept.write(data)
                    elif isinstance(item, Row):
                        removed.write_object(
                            {"id": item.id, "rule": RULE, "version": VERSION, "score": 0.0, "kept_id": "", "spans": [],
                             "file": str(source.path), "line": item.line}
                        )  # fmt: skip
                    row += 1
        commit(kept, removed, bad, out)


def _report(
    rows: _Rows,
    plan: MixPlan,
    copies: NDArray[np.uint16],
    sources: Sequence[RowSource],
    config: MixingConfig,
) -> dict[str, Any]:
    cells = []
    for cell, number in sorted(rows.cells.items()):
        mine = rows.cell == number
        wanted, _ = plan.rows.get(_name(cell), (0.0, 0.0))
        taken = int((rows.amount[mine] * copies[mine]).sum())
        size = int(rows.amount[mine].sum())
        cells.append(
            {
                "domain": cell[0],
                "lang": cell[1],
                "rows": int(mine.sum()),
                "amount": size,
                "planned": round(wanted),
                "taken": taken,
                "rows_taken": int(copies[mine].sum()),
                "passes": round(taken / size, 4) if size else 0.0,
                "max_repeats": config.max_repeats[_name(cell)],
            }
        )
    return {
        "rows": {
            **row_counts(sources),
            "documents": len(rows.cell),
            "kept": int(copies.sum()),
            "removed": int((copies == 0).sum()),
        },
        "planned": round(sum(read for read, _ in plan.rows.values())),
        "taken": int((rows.amount * copies).sum()),
        "languages": {name: round(share, 6) for name, share in sorted(plan.languages.items())},
        "moved": plan.moved,
        "empty_files": empty_files(sources),
        "cells": cells,
    }
