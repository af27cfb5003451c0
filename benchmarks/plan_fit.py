"""Fit the planner's global constants on published runs, cross-validate by family, set the width of its intervals.

    python benchmarks/plan_fit.py                 # fit, cross-validate, print
    python benchmarks/plan_fit.py --write         # and write src/headwater/plan/data/coefficients.yaml

Robust least squares on log tokens/s with the priors of the file as a penalty; a family of n rows weighs n^0.65, so
that none decides alone. Cross-validation leaves one family out, fits the rest, predicts the one. Needs scipy.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.optimize import least_squares, nnls

from headwater.plan import coefficients as constants
from headwater.plan.cases import take
from headwater.plan.coefficients import Coefficients
from headwater.plan.evaluate import evaluate, report
from headwater.plan.intervals import FEATURES
from headwater.plan.published_table import read_table
from headwater.plan.rows import Table, build, choose, predict
from headwater.plan.step import step_time

NAMES = [f.name for f in fields(Coefficients)]
FILE = Path(constants.__file__).parent / "data" / "coefficients.yaml"
NOISE = 0.05  # log residual at which a row starts to count as an outlier
MOE_WEIGHT = 0.3


def make(z: np.ndarray, table: dict[str, Any]) -> Coefficients:
    """Coefficients from log distances to the priors, cut at their limits."""
    values = {name: table[name]["prior"] * float(np.exp(v)) for name, v in zip(NAMES, z, strict=True)}
    return Coefficients(**{name: min(v, table[name].get("limit", np.inf)) for name, v in values.items()})


def fit(rows: Table, mask: np.ndarray, priors: dict[str, Any], z: np.ndarray, evaluations: int) -> np.ndarray:
    """Least squares over the rows in `mask`; variants are chosen again in between."""
    spread = np.array([priors[name]["spread"] for name in NAMES])
    families, index = rows.families, np.where(mask)[0]
    count = {name: int((mask & (families == name)).sum()) for name in set(families)}
    weight = np.array([count[families[i]] ** -0.35 for i in index]) * np.where(rows.moe[index], MOE_WEIGHT, 1.0)
    weight /= np.sqrt((weight**2).mean())
    target = np.log(rows.measured[index])
    for _ in range(3):
        throughput = np.asarray(step_time(rows.cases, make(z, priors)).tokens_per_second_per_gpu(rows.cases))
        chosen = take(rows.cases, choose(rows, throughput)[index])

        def residuals(z: np.ndarray, chosen: Any = chosen) -> np.ndarray:
            value = np.log(step_time(chosen, make(z, priors)).tokens_per_second_per_gpu(chosen))
            r = (value - target) / NOISE * weight
            soft = np.sign(r) * np.sqrt(2.0 * (np.sqrt(1.0 + r * r) - 1.0))
            return np.concatenate([soft, z / spread])

        z = least_squares(residuals, z, max_nfev=evaluations, x_scale=spread).x
    return z


def interval(
    rows: Table, left_out: np.ndarray, halves: np.ndarray, known: np.ndarray, blind: Table, c: Coefficients
) -> dict[str, float]:
    """Weights of the half-width: residuals of left-out families on the features, then scaled.

    Three scales, by what is known of a run's source: what holds 80 % of other rows of families seen, of families never
    seen, and of all rows once nothing is left that names their software.
    """
    use = rows.scored | (rows.moe & np.isfinite(left_out))
    residual = np.abs(np.log(left_out / rows.measured))
    clipped = np.minimum(residual, np.quantile(residual[use], 0.95))
    weights, _ = nnls(known[use], clipped[use])
    weights[0] = max(weights[0], 0.02)
    near = np.abs(np.log(halves / rows.measured))
    guessed = predict(blind, c)
    far = np.abs(np.log(guessed.throughput / blind.measured))
    scales = [
        round(float(np.quantile((r / (x @ weights))[table.scored], 0.8)), 3)
        for r, x, table in ((near, known, rows), (residual, known, rows), (far, guessed.features, blind))
    ]
    out = {name: round(float(w), 4) for name, w in zip(FEATURES, weights, strict=True)}
    return {**out, "seen": scales[0], "named": scales[1], "guessed": scales[2], "share": 0.8}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", help="CSV of published runs; the packaged one when left out")
    parser.add_argument("--write", action="store_true", help="write the constants into the package")
    options = parser.parse_args()
    raw = yaml.safe_load(FILE.read_text())
    priors = raw["coefficients"]
    table = read_table(options.table)
    rows = build(table, table)
    use = rows.scored | (rows.moe & np.isfinite(rows.measured))
    z = fit(rows, use, priors, np.zeros(len(NAMES)), 15)
    c = make(z, priors)
    left_out = np.full(len(rows.rows), np.nan)
    known = np.zeros((len(rows.rows), len(FEATURES)))
    for family in sorted(set(rows.families[use])):
        here = rows.families == family
        predicted = predict(rows, make(fit(rows, use & ~here, priors, z, 5), priors))
        left_out[here], known[here] = predicted.throughput[here], predicted.features[here]
    print("left out, by family")
    error = np.abs(left_out / rows.measured - 1.0)
    medians = []
    for family in sorted(set(rows.families[rows.scored])):
        here = rows.scored & (rows.families == family)
        medians.append(float(np.median(error[here])))
        print(f"  {family:<18}{here.sum():>5}{medians[-1]:>9.1%}")
    print(f"  pooled {np.median(error[rows.scored]):.2%}, mean of families {np.mean(medians):.2%}, ", end="")
    print(f"p90 {np.quantile(error[rows.scored], 0.9):.2%}")
    halves = np.full(len(rows.rows), np.nan)
    for half in (0, 1):
        inside = np.arange(len(rows.rows)) % 2 == half
        halves[inside] = predict(rows, make(fit(rows, use & ~inside, priors, z, 5), priors)).throughput[inside]
    seen = np.abs(halves / rows.measured - 1.0)[rows.scored]
    print(f"half of each family left out: pooled {np.median(seen):.2%}, p90 {np.quantile(seen, 0.9):.2%}")
    nameless = [{**row, "family": "none", "source": "", "source_ref": "", "notes": ""} for row in table]
    raw["interval"] = interval(rows, left_out, halves, known, build(nameless, nameless), c)
    print("interval", raw["interval"])
    for name in NAMES:
        priors[name]["value"] = float(f"{getattr(c, name):.4g}")
        print(f"  {name:<22}{priors[name]['value']:<12.5g} prior {priors[name]['prior']:g}")
    if options.write:
        write(raw)
    constants.raw.cache_clear()
    print(report(evaluate(rows, predict(rows, c))))


def number(value: float) -> str:
    """A number YAML 1.1 reads back as one: its exponent needs a point before it."""
    text = f"{value:g}"
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def write(raw: dict[str, Any]) -> None:
    """Keep the file's comment and one line a constant."""
    comment = "".join(line + "\n" for line in FILE.read_text().splitlines() if line.startswith("#"))
    lines = [comment + "schema: 1\ncoefficients:\n"]
    for name, entry in raw["coefficients"].items():
        inner = ", ".join(
            f"{k}: {number(v)}" if isinstance(v, int | float) else f'{k}: "{v}"' for k, v in entry.items()
        )
        lines.append(f"  {name}: {{{inner}}}\n")
    lines.append("interval: {" + ", ".join(f"{k}: {v:g}" for k, v in raw["interval"].items()) + "}\n")
    FILE.write_text("".join(lines))


if __name__ == "__main__":
    main()
