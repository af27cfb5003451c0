"""Tasks that ask a model in a way of their own, by the name of their `scorer`.

@asker("stereoset")
def ask(spec, backend, items, tools): yield record_of(items[0], {"acc": 1.0}, {})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.evaluate.tasks.items import Item

Record = dict[str, Any]
Asker = Callable[..., Iterable[Record]]
"""(task, backend, items, tools) to a record of each item, in order."""

ASKERS: dict[str, Asker] = {}


def asker(name: str) -> Callable[[Asker], Asker]:
    """Register an asker under the name a task's `scorer` field has."""

    def register(function: Asker) -> Asker:
        ASKERS[name] = function
        return function

    return register


def record_of(item: Item, metrics: Mapping[str, float], kept: Mapping[str, Any]) -> Record:
    """What is kept of an item."""
    return {
        "id": item.id,
        "group": item.group,
        "context": item.context,
        "choices": list(item.choices),
        "gold": item.gold,
        "metrics": dict(metrics),
        **kept,
    }


def how_scored(scorer: str) -> str:
    """In words, for people: the first line of the asker's docstring."""
    if scorer not in ASKERS:
        return "ln p of each continuation"
    return " ".join((ASKERS[scorer].__doc__ or scorer).split()).rstrip(".")
