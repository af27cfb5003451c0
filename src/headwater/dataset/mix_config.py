"""The `train.mixing` block: caps, priorities and language shares that turn `train.mixture` into a plan.

    MixingConfig(max_repeats={"books": 4}, shortfall="fill", priority=("web",))

Imports nothing heavy.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator, model_validator

from headwater.core.config import Section, field


class MixingConfig(Section):
    """How the wanted shares of domains become the shares of the run, given what there is. The plan is printed before
    it is applied, and written into the run's ledger."""

    max_repeats: dict[str, float] = field(default_factory=dict)
    """Most passes over a domain in the whole run, by domain; others have `train.max_epochs`."""

    shortfall: Literal["refuse", "fill"] = field("refuse")
    """When a domain has too little for its share: `refuse` stops with the numbers, `fill` reads it as often as it may
    be, and gives what is missing to others."""

    priority: tuple[str, ...] = field(())
    """fill: domains that take what is missing, in this order, each up to its own cap; then all others by their
    weights."""

    languages: dict[str, float] = field(default_factory=dict)
    """Wanted shares of languages in tokens, on any scale; domains are reweighed to come as near as their contents
    allow. Languages that are not named get nothing wanted."""

    language_temperature: float | None = field(None, gt=0)
    """In place of `languages`: shares as each language's tokens to the power of 1 / temperature. 1 changes nothing,
    larger values lift small languages."""

    @field_validator("priority", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_values(self) -> MixingConfig:
        if bad := [name for name, value in self.max_repeats.items() if not 0 < value < float("inf")]:
            raise ValueError(f"max_repeats of {bad[0]} is {self.max_repeats[bad[0]]}; give a positive number")
        if any(not 0 <= value < float("inf") for value in self.languages.values()):
            raise ValueError(f"languages must have shares of 0 or more: {self.languages}")
        if self.languages and not any(self.languages.values()):
            raise ValueError("at least one language needs a share")
        if self.languages and self.language_temperature is not None:
            raise ValueError("give languages or language_temperature, not both")
        if self.priority and self.shortfall != "fill":
            raise ValueError("priority says who fills a shortfall; it needs shortfall: fill")
        return self
