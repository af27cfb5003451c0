"""What a field of the recipe means, in words; and the same for all of them as a reference page.

In: the schema. Out: entries for `headwater recipe explain`, and `docs/reference/recipe.md`.

    explain("lr")[0].path           # "train.optimizer.lr"
    python -m headwater.pipeline.explain > docs/reference/recipe.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headwater.core.config import Section
from headwater.core.errors import UserError
from headwater.core.recipe_schema import FieldDoc, field_docs, flat_aliases, nearest


@dataclass(frozen=True, slots=True)
class Entry:
    """A field with everything there is to say about it. `aliases` are names accepted in its own block, `flat` the
    names accepted further out, by their full path; `used` says which stages read it."""

    path: str
    doc: str
    type: str
    unit: str
    default: str
    kind: str
    aliases: tuple[str, ...]
    flat: tuple[str, ...]
    used: str
    section: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def entries(schema: type[Section], uses: dict[str, str]) -> list[Entry]:
    """All fields of a schema. `uses` maps a top-level section to what reads it."""
    flat = flat_aliases(schema)
    operational: set[str] = set()
    result: list[Entry] = []
    for doc in field_docs(schema):
        # A field inside an operational block is operational whatever it says of itself.
        if doc.kind == "operational" or any(doc.path.startswith((f"{path}.", f"{path}[")) for path in operational):
            operational.add(doc.path)
        result.append(_entry(doc, doc.path in operational, flat, uses))
    return result


def _entry(doc: FieldDoc, operational: bool, flat: dict[str, list[str]], uses: dict[str, str]) -> Entry:
    top = re.split(r"[.\[]", doc.path, maxsplit=1)[0]
    outer = [name for name in flat.get(doc.path, []) if name.rpartition(".")[0] != doc.path.rpartition(".")[0]]
    effect = "a change makes nothing stale" if operational else "a change makes what was made with it stale"
    return Entry(
        path=doc.path,
        doc=doc.doc,
        type=doc.type,
        unit=doc.unit,
        default=doc.default_text(),
        kind="operational" if operational else "identity",
        aliases=doc.aliases,
        flat=tuple(dict.fromkeys(outer)),
        used=f"{uses.get(top, 'the recipe itself')}; {effect}",
        section=doc.section,
    )


def find_entries(query: str, all_entries: Sequence[Entry]) -> list[Entry]:
    """The fields a query means: a full path (aliases allowed on the way), a block with all in it, or a bare name.

    Raises UserError with the nearest names if there is none.
    """
    wanted = _canonical(re.sub(r"\[\d+\]|\.\d+(?=\.|$)", "[]", query.strip().strip(".")), all_entries)
    exact = [entry for entry in all_entries if entry.path == wanted] or [
        entry for entry in all_entries if wanted in entry.flat
    ]
    if exact:
        inside = [entry for entry in all_entries for block in exact if _inside(entry, block)]
        return [*exact, *inside]
    by_name = [
        entry
        for entry in all_entries
        if wanted == _last(entry.path) or wanted in entry.aliases or wanted in map(_last, entry.flat)
    ]
    if by_name:
        return by_name
    names = {name: entry.path for entry in all_entries for name in (entry.path, _last(entry.path), *entry.aliases)}
    near = nearest(_last(wanted), list(names))
    raise UserError(
        f"no field of the recipe is called {query!r}",
        mend=f"did you mean {names[near]}?" if near else "`headwater recipe explain` lists all fields",
    )


def _last(path: str) -> str:
    return path.rpartition(".")[2].removesuffix("[]")


def _inside(entry: Entry, block: Entry) -> bool:
    return entry.path.startswith((f"{block.path}.", f"{block.path}[]", f"{block.path}.*"))


def _canonical(path: str, all_entries: Sequence[Entry]) -> str:
    """A path with the aliases of the blocks on the way, and of the field itself, resolved as far as they are known."""
    names = {entry.path: entry.path for entry in all_entries}
    for entry in all_entries:
        block = entry.path.rpartition(".")[0]
        names.update({f"{block}.{alias}" if block else alias: entry.path for alias in entry.aliases})
    walked = ""
    for element in path.split("."):
        whole = f"{walked}.{element}" if walked else element
        item = "[]" if whole.endswith("[]") else ""
        walked = names.get(whole.removesuffix("[]"), whole.removesuffix("[]")) + item
    return walked


def describe_entry(entry: Entry) -> str:
    """One field, for the terminal."""
    lines = [entry.path, f"  {entry.doc}" if entry.doc else ""]
    facts = [("type", entry.type), ("unit", entry.unit), ("default", entry.default), ("kind", entry.kind)]
    if entry.aliases:
        facts.append(("also called", ", ".join(entry.aliases)))
    if entry.flat:
        facts.append(("also as", ", ".join(entry.flat)))
    facts.append(("read by", entry.used))
    lines += [f"  {name + ':':<13}{value}" for name, value in facts if value]
    return "\n".join(line for line in lines if line)


def list_entries(all_entries: Sequence[Entry]) -> str:
    """All fields, one line each, with the first sentence of what they mean."""
    lines = []
    for entry in all_entries:
        first = re.split(r"(?<=[.:;]) ", entry.doc, maxsplit=1)[0].rstrip(".:;")
        default = "" if entry.section else f" [{entry.default}]"
        lines.append(f"{entry.path}{default}  {first}")
    return "\n".join(lines)


def reference(all_entries: Sequence[Entry]) -> str:
    """The reference page, in Markdown."""
    lines = [
        "# Recipe reference",
        "",
        "Every field of a recipe, generated from the schema (`python -m headwater.pipeline.explain`). A field of kind",
        "*identity* changes the result: what was made with another value is stale. An *operational* field (workers,",
        "paths, cadence, layout) changes nothing but how the work is done. `--set FIELD=VALUE` overrides any of them;",
        "`headwater recipe explain FIELD` prints the same in the terminal.",
        "",
    ]
    for entry in all_entries:
        depth = entry.path.count(".") + entry.path.count("[]")
        if entry.section or entry.type.startswith(("list of blocks", "block")):
            lines += [f"{'#' * min(2 + depth, 4)} `{entry.path}`", "", _facts(entry), "", entry.doc, ""]
            continue
        if depth == 0:
            lines += [f"## `{entry.path}`", "", _facts(entry), "", entry.doc, ""]
            continue
        lines += [f"- **`{entry.path}`**: {_facts(entry)}  ", f"  {entry.doc}" if entry.doc else "", ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _facts(entry: Entry) -> str:
    parts = [entry.type.replace("block", "a block", 1) if entry.section else entry.type]
    if entry.unit:
        parts.append(entry.unit)
    if not entry.section:
        parts.append("required" if entry.default == "required" else f"default `{entry.default}`")
    parts.append(entry.kind)
    names = [*entry.aliases, *entry.flat]
    if names:
        parts.append("also " + ", ".join(f"`{name}`" for name in names))
    return " · ".join(parts)


if __name__ == "__main__":
    from headwater.pipeline.schema import Recipe
    from headwater.pipeline.stages import section_uses

    sys.stdout.write(reference(entries(Recipe, section_uses())))
