"""Typed configuration: the base of every recipe section.

A part describes its parameters as one frozen `Section` subclass, each field with its docstring right below
and made with `field(...)`, which records unit, kind and aliases. `kind` is *identity* when the value changes
the result (it enters fingerprints) or *operational* when it does not (workers, paths, cadence, layout).

    class DedupConfig(Section):
        exact: bool = field(True)
        '''Remove documents whose text is byte-identical to an earlier one.'''

`PATH_ALIASES` of a section maps another project's flat key to a nested field of ours, for example
``{"weight_decay": "optimizer.weight_decay"}``. `VALUE_ALIASES` also translates the value, where others say the same
thing in another way: ``{"fp16": ("precision", lambda on: "fp16" if on else None)}``; None says nothing, and a
`ValueError` is shown at the key's place.

This module imports nothing heavy: recipes load in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

Kind = Literal["identity", "operational"]


class Section(BaseModel):
    """A recipe section: frozen, no unknown keys, documented fields."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
        populate_by_name=True,
        protected_namespaces=(),
    )

    SHORT: ClassVar[str] = ""
    """Field that a plain value in place of the block stands for: `objective: mlm` is `objective: {name: mlm}`."""

    PATH_ALIASES: ClassVar[dict[str, str]] = {}
    VALUE_ALIASES: ClassVar[dict[str, tuple[str, Callable[[Any], Any]]]] = {}


def field(
    default: Any = ...,
    *,
    unit: str = "",
    kind: Kind = "identity",
    aliases: tuple[str, ...] = (),
    default_factory: Any = None,
    **constraints: Any,
) -> Any:
    """Declare a field of a `Section`.

    `unit` is printed by `headwater recipe explain` ("tokens", "samples", "bytes", "steps", "ratio" ...);
    `aliases` are names other projects use for the same thing; `constraints` go to pydantic (ge, le, gt ...).
    """
    extra: Any = {"unit": unit, "kind": kind, "aliases": list(aliases)}
    if default_factory is not None:
        return Field(default_factory=default_factory, json_schema_extra=extra, **constraints)
    return Field(default, json_schema_extra=extra, **constraints)


def _extra(info: FieldInfo, key: str, default: Any) -> Any:
    extra = info.json_schema_extra
    return extra.get(key, default) if isinstance(extra, dict) else default


def field_kind(info: FieldInfo) -> Kind:
    """`identity` unless the field says otherwise."""
    return _extra(info, "kind", "identity")


def field_unit(info: FieldInfo) -> str:
    return _extra(info, "unit", "")


def field_aliases(info: FieldInfo) -> tuple[str, ...]:
    return tuple(_extra(info, "aliases", ()))


def identity(value: Any) -> Any:
    """The part of a configuration that decides the result, as plain JSON values.

    Operational fields are left out at every depth, so two recipes that differ only in workers, paths or
    cadence have equal identities and share artifacts.
    """
    if isinstance(value, Section):
        return {
            name: identity(getattr(value, name))
            for name, info in type(value).model_fields.items()
            if field_kind(info) == "identity"
        }
    if isinstance(value, dict):
        return {str(key): identity(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [identity(item) for item in value]
    return value
