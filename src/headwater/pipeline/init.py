"""A first recipe, written from the schema: every field with what it means, defaults commented out.

In: the schema and a few starting values. Out: YAML text that validates as it stands; removing the `# ` before any
line sets that field, to its default until it is edited.

    write_recipe(Path("recipe.yaml"))
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from headwater.core.config import Section, field_unit
from headwater.core.errors import UserError
from headwater.core.files import atomic_write
from headwater.core.recipe_schema import item_type, sections_of, type_text, yaml_inline

WIDTH = 110

WRITTEN = {"schema_version": "schema"}
"""Fields a recipe spells by an alias."""


def recipe_text(config: Section, start: dict[str, Any], heading: str) -> str:
    """A commented recipe. `start` holds the values that are set, by canonical path (a list of blocks is one value);
    `config` is the recipe they make, from which all other values are taken."""
    lines = [f"# {line}" if line else "#" for line in heading.splitlines()]
    for name in type(config).model_fields:
        lines += ["", *_field(config, name, name, start, 0)]
    return "\n".join(lines) + "\n"


def _field(config: Section, name: str, path: str, start: dict[str, Any], indent: int) -> list[str]:
    info, value = type(config).model_fields[name], getattr(config, name)
    lines, pad = _comment(_meaning(type(config), name), indent), " " * indent
    if isinstance(value, Section):
        lines.append(f"{pad}{name}:")
        for inner in type(value).model_fields:
            lines += _field(value, inner, f"{path}.{inner}", start, indent + 2)
        return lines
    if path in start:
        return [*lines, *_value(WRITTEN.get(path, name), start[path], indent)]
    lines.append(f"{pad}# {name}: {yaml_inline(value)}")
    members = sections_of(info.annotation) or sections_of(item_type(info.annotation))
    if members:
        names = ", ".join(members[0].model_fields)
        lines += _comment(f"Fields of one: {names} (see `headwater recipe explain {path}`).", indent)
    return lines


def _meaning(section: type[Section], name: str) -> str:
    info = section.model_fields[name]
    doc = " ".join((info.description or "").split())
    if sections_of(info.annotation) and not info.is_required():
        return doc
    facts = ", ".join(part for part in (type_text(info.annotation, info), field_unit(info)) if part)
    return f"{doc} [{facts}]" if doc else f"[{facts}]"


def _comment(text: str, indent: int) -> list[str]:
    pad = " " * indent
    wrapped = textwrap.wrap(text, WIDTH - indent - 3, break_long_words=False, break_on_hyphens=False)
    return [f"{pad}#: {line}" for line in wrapped]


def _value(name: str, value: Any, indent: int) -> list[str]:
    pad = " " * indent
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        lines = [f"{pad}{name}:"]
        for item in value:
            for position, (key, inner) in enumerate(item.items()):
                lines.append(f"{pad}  {'- ' if position == 0 else '  '}{key}: {yaml_inline(inner)}")
        return lines
    return [f"{pad}{name}: {yaml_inline(value)}"]


def write_recipe(path: Path, text: str, *, force: bool = False) -> None:
    """Write a new recipe. Raises UserError if the file exists, unless `force`."""
    if path.is_dir():
        raise UserError("this is a folder", where=str(path), mend=f"name a file in it: {path / 'recipe.yaml'}")
    if path.exists() and not force:
        raise UserError("this file exists already", where=str(path), mend="name another, or add --force to replace it")
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, text.encode())


START: dict[str, Any] = {
    "schema_version": 1,
    "description": "A first language model of my own text",
    "collect.sources": [
        {"name": "mine", "paths": ["data/**/*.jsonl.zst", "data/**/*.txt"], "domain": "web"},
    ],
    "tokenizer.vocab_size": 8192,
    "model.hidden_size": 256,
    "model.num_hidden_layers": 8,
    "model.num_attention_heads": 4,
    "model.tie_word_embeddings": True,
    "train.tokens": 20_000_000,
    "train.global_batch": 32,
    "train.seq_len": 512,
    "train.optimizer.name": "adamw",
    "train.optimizer.lr": 1e-3,
    "train.schedule.name": "cosine",
    "train.schedule.warmup_steps": 100,
}
"""A small model that trains on a CPU within the hour."""

HEADING = """A recipe: from raw text to a served language model.

Lines that begin with `#:` say what a field means. Lines that begin with `# ` and a name show a field with its default;
remove the `# ` and change the value to set it. `headwater recipe explain FIELD` says more about each.

  headwater recipe validate THIS_FILE      check it
  headwater recipe describe THIS_FILE      parameters, tokens, steps, memory
  headwater run THIS_FILE                  the whole way, resumable"""


def starting_recipe() -> str:
    """The text `headwater init` writes."""
    from headwater.pipeline.schema import loads

    overrides = [f"{path}={yaml_inline(value)}" for path, value in START.items()]
    return recipe_text(loads("schema: 1", overrides).config, START, HEADING)
