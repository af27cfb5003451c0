"""From wanted shares to the shares of a run: language targets, caps on repetition, who fills what is missing.

In: tokens by domain and language, the wanted weights, how much will be read. Out: a `MixPlan` a stretch, with weights
and the lines that say what it comes to. Pure functions; nothing is applied here.

    plans = plan_mixture({"web": {"en": 10**9}, "books": {"en": 10**8}}, [Stretch(10**9, 1024, {"web": 1, "books": 1})],
                         MixingConfig(shortfall="fill"), max_epochs=4)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headwater.core.errors import RecipeError
from headwater.dataset.mix_config import MixingConfig
from headwater.dataset.mixture import FINEST

_ROUNDS = 500
_NEAR = 1e-9

Sizes = Mapping[str, Mapping[str, int]]
"""domain -> language -> tokens."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a run: tokens read, in samples of `seq_len` (1: no samples), with wanted weights; None: as large as
    each domain is."""

    tokens: int
    seq_len: int
    weights: Mapping[str, float] | None


@dataclass(frozen=True)
class MixPlan:
    """What one stretch reads. `weights` None: as wanted, each domain as large as it is. `rows`: domain -> (tokens read,
    passes over it); `languages`: language -> share reached; `wanted_languages` likewise; `moved`: tokens that capped
    domains could not give."""

    weights: dict[str, float] | None
    rows: dict[str, tuple[float, float]]
    languages: dict[str, float]
    wanted_languages: dict[str, float]
    moved: int

    def lines(self, unit: str = "tokens") -> list[str]:
        """For people, before anything is applied."""
        total = sum(read for read, _ in self.rows.values()) or 1.0
        lines = [
            f"{name}: {read / total:.1%}, {round(read):,} {unit}, {passes:.2f} passes"
            for name, (read, passes) in self.rows.items()
        ]
        if self.wanted_languages:
            shares = ", ".join(
                f"{name} {self.languages.get(name, 0.0):.1%} of {share:.1%} wanted"
                for name, share in sorted(self.wanted_languages.items(), key=lambda item: -item[1])
            )
            lines.append(f"languages: {shares}")
        if self.moved:
            lines.append(f"{self.moved:,} {unit} that capped domains lack come from others")
        return lines


def plan_mixture(
    sizes: Sizes,
    stretches: Sequence[Stretch],
    config: MixingConfig,
    *,
    max_epochs: float | None = None,
    unit: str = "tokens",
) -> list[MixPlan]:
    """Plan all stretches of a run in order; caps hold over the whole run. `unit` is what sizes are counted in.

    Raises RecipeError, with the numbers of every domain concerned, for shares that cannot be had.
    """
    _check_names(sizes, config)
    used = dict.fromkeys(sizes, 0.0)  # passes
    plans = []
    for stretch in stretches:
        weights = _wanted(sizes, stretch)
        target = language_targets(sizes, config)
        fitted = fit_languages(sizes, weights, target) if target else weights
        wanted = {name: weight * stretch.tokens for name, weight in fitted.items()}
        room = {name: _room(sizes, name, stretch, config, max_epochs, used[name]) for name in wanted}
        got = _allocate(sizes, wanted, room, config, used, max_epochs, unit)
        moved = round(sum(max(0.0, wanted[name] - got[name]) for name in wanted))
        same = not target and not moved
        final = dict(stretch.weights) if same and stretch.weights else None if same else _parts(got, wanted)
        windows = {name: _windows(sizes, name, stretch.seq_len) * stretch.seq_len for name in got}
        rows = {name: (read, used[name] + read / max(1, windows[name])) for name, read in sorted(got.items())}
        used.update({name: passes for name, (_, passes) in rows.items()})
        plans.append(MixPlan(final, rows, language_shares(sizes, got), target, moved))
    return plans


def _check_names(sizes: Sizes, config: MixingConfig) -> None:
    for field, names in (("max_repeats", config.max_repeats), ("priority", config.priority)):
        for name in names:
            if name not in sizes:
                raise RecipeError(
                    f"there is no domain {name!r}", where=f"train.mixing.{field}",
                    mend="use the names " + ", ".join(sorted(sizes)),
                )  # fmt: skip
    have = {language for languages in sizes.values() for language in languages}
    for language in config.languages:
        if language not in have:
            raise RecipeError(
                f"there is no text in language {language!r}",
                where="train.mixing.languages",
                mend="the languages are " + ", ".join(sorted(name or "(none)" for name in have)),
            )


def _windows(sizes: Sizes, name: str, seq_len: int) -> int:
    tokens = sum(sizes[name].values())
    return tokens if seq_len == 1 else max(0, tokens - 1) // seq_len


def _wanted(sizes: Sizes, stretch: Stretch) -> dict[str, float]:
    weights = stretch.weights
    if weights is None:
        weights = {name: float(sum(sizes[name].values())) for name in sizes if _windows(sizes, name, stretch.seq_len)}
    if missing := [name for name, weight in weights.items() if weight > 0 and name not in sizes]:
        raise RecipeError(
            f"the mixture gives weight to {missing[0]!r}, but there is no such domain",
            where="mixture",
            mend="use the names " + ", ".join(sorted(sizes)),
        )
    total = sum(weights.values())
    if total <= 0:
        raise RecipeError("no domain has any weight", where="mixture", mend="give at least one a positive weight")
    return {name: weight / total for name, weight in weights.items() if weight > 0}


def language_targets(sizes: Sizes, config: MixingConfig) -> dict[str, float]:
    """Wanted shares of languages, adding up to 1; {} if none are wanted."""
    if config.languages:
        total = sum(config.languages.values())
        return {name: share / total for name, share in config.languages.items() if share > 0}
    if config.language_temperature is None:
        return {}
    tokens: dict[str, int] = {}
    for languages in sizes.values():
        for name, count in languages.items():
            tokens[name] = tokens.get(name, 0) + count
    powers = {name: count ** (1 / config.language_temperature) for name, count in tokens.items() if count}
    total = sum(powers.values())
    return {name: power / total for name, power in sorted(powers.items())}


def fit_languages(sizes: Sizes, weights: Mapping[str, float], target: Mapping[str, float]) -> dict[str, float]:
    """Weights of domains whose languages come nearest to the target, beginning with `weights`: expectation-maximisation
    of sum(target * log(share)), which reaches the target exactly where the domains can give it."""
    contents = {
        name: {language: count / total for language, count in sizes[name].items()}
        for name in weights
        if (total := sum(sizes[name].values()))
    }
    fitted = {name: weights[name] for name in contents}
    for _ in range(_ROUNDS):
        shares = {
            language: sum(weight * contents[name].get(language, 0.0) for name, weight in fitted.items())
            for language in target
        }
        ratios = {language: target[language] / share for language, share in shares.items() if share > 0}
        moved = {
            name: weight * sum(contents[name].get(language, 0.0) * ratio for language, ratio in ratios.items())
            for name, weight in fitted.items()
        }
        whole = sum(moved.values())
        moved = {name: weight / whole for name, weight in moved.items()}
        change = max(abs(moved[name] - fitted[name]) for name in fitted)
        fitted = moved
        if change < _NEAR:
            break
    return {name: weight for name, weight in fitted.items() if weight > 1 / FINEST}


def language_shares(sizes: Sizes, read: Mapping[str, float]) -> dict[str, float]:
    """Share of each language in what is read."""
    found: dict[str, float] = {}
    total = sum(read.values()) or 1.0
    for name, tokens in read.items():
        size = sum(sizes[name].values()) or 1
        for language, count in sizes[name].items():
            found[language] = found.get(language, 0.0) + tokens * count / size / total
    return found


def _cap(name: str, config: MixingConfig, max_epochs: float | None) -> float:
    return config.max_repeats.get(name, max_epochs if max_epochs is not None else float("inf"))


def _room(
    sizes: Sizes, name: str, stretch: Stretch, config: MixingConfig, max_epochs: float | None, used: float
) -> float:
    """Tokens a domain may still give; one sample less than the cap, as quotas are met to within a sample."""
    whole = _windows(sizes, name, stretch.seq_len) * stretch.seq_len
    spare = stretch.seq_len if stretch.seq_len > 1 else 0
    return max(0.0, (_cap(name, config, max_epochs) - used) * whole - spare)


def _allocate(
    sizes: Sizes,
    wanted: Mapping[str, float],
    room: Mapping[str, float],
    config: MixingConfig,
    used: Mapping[str, float],
    max_epochs: float | None,
    unit: str,
) -> dict[str, float]:
    short = [name for name in wanted if wanted[name] > room[name] * (1 + 1e-9)]
    if not short:
        return dict(wanted)
    if config.shortfall == "refuse":
        raise RecipeError(
            "; ".join(
                _numbers(sizes, name, wanted[name], room[name], config, used, max_epochs, unit) for name in short
            ),
            where="train.mixing",
            mend="lower their weights, raise max_repeats, train on fewer tokens, add text, or set shortfall: fill",
        )
    got = {name: min(wanted[name], room[name]) for name in wanted}
    missing = sum(wanted.values()) - sum(got.values())
    for name in config.priority:
        if name in got and missing > 0:
            more = min(missing, room[name] - got[name])
            got[name] += more
            missing -= more
    while missing > 0.5:
        free = [name for name in got if room[name] - got[name] > 0.5]
        if not free:
            have = ", ".join(f"{name} {room[name]:,.0f}" for name in sorted(room))
            raise RecipeError(
                f"{sum(wanted.values()):,.0f} {unit} are wanted, and all domains together may give "
                f"{sum(room.values()):,.0f} ({have})",
                where="train.mixing",
                mend="train on fewer tokens, add text, or raise max_repeats",
            )
        total = sum(wanted[name] for name in free)
        given = {name: min(missing * wanted[name] / total, room[name] - got[name]) for name in free}
        for name, more in given.items():
            got[name] += more
        missing -= sum(given.values())
    return got


def _numbers(
    sizes: Sizes,
    name: str,
    wanted: float,
    room: float,
    config: MixingConfig,
    used: Mapping[str, float],
    max_epochs: float | None,
    unit: str,
) -> str:
    before = f", {used[name]:.2f} of them in earlier phases" if used[name] else ""
    return (
        f"domain {name!r} would give {wanted:,.0f} {unit}, but has {sum(sizes[name].values()):,} and may be read "
        f"{_cap(name, config, max_epochs):g} times{before}: {room:,.0f} at most"
    )


def _parts(got: Mapping[str, float], wanted: Mapping[str, float]) -> dict[str, float]:
    """Whole weights with the total `FINEST`; capped domains are rounded down, so that no cap is passed."""
    total = sum(got.values())
    ideal = {name: tokens * FINEST / total for name, tokens in got.items()}
    parts = {name: int(value) for name, value in ideal.items()}
    free = [name for name in got if got[name] >= wanted[name]] or list(got)
    by_remainder = sorted(free, key=lambda name: (parts[name] - ideal[name], name))
    for number in range(FINEST - sum(parts.values())):
        parts[by_remainder[number % len(by_remainder)]] += 1
    return {name: float(part) for name, part in parts.items() if part}
