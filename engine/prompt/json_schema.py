"""JSON schemas as values: changed everywhere at once, and moved into others so that their references hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Change = Callable[[Mapping[str, Any]], "Mapping[str, Any] | None"]
_DATA = frozenset(("const", "enum", "default", "example", "examples"))
"""Keywords whose values are no schemas, whatever they look like."""
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
"""Keywords whose values are schemas by name."""
_MOST_HOPS = 32
"""Limit on references that lead to references."""
_WHOLE = "/$defs/whole"


def mapped(schema: Any, change: Change) -> Any:
    """Return a copy of a schema in which it and every schema in it is changed; None leaves one as it is.

    Raises:
        RecursionError: it is nested too deeply.
    """
    if isinstance(schema, list):
        return [mapped(one, change) for one in schema]
    changed = change(schema) if isinstance(schema, Mapping) else None
    if changed is None:
        return schema
    return {key: _mapped_value(key, value, change) for key, value in changed.items()}


def _mapped_value(key: str, value: Any, change: Change) -> Any:
    if key in _DATA:
        return value
    if key in _NAMED and isinstance(value, Mapping):
        return {name: mapped(one, change) for name, one in value.items()}
    return mapped(value, change)


def moved(schema: Any, place: str, root: Any = None) -> Any:
    """Return a schema as it must be at a place (a JSON pointer) of another one: references to its root lead there.

    Args:
        root: what it refers to; itself by default.
    """
    root = schema if root is None else root
    own_id = root.get("$id") if isinstance(root, Mapping) else None
    own_id = own_id.removesuffix("#") if isinstance(own_id, str) else ""

    def change(one: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if isinstance(one.get("$id"), str):
            if one is not root:
                return None  # the root of its own references
            one = {key: value for key, value in one.items() if key != "$id"}
        reference = one.get("$ref")
        if isinstance(reference, str):
            reference = reference.removeprefix(own_id) or "#"
            if reference == "#" or reference.startswith("#/"):
                return {**one, "$ref": f"#{place}{reference[1:]}"}
        return one

    return mapped(schema, change)


def resolved(schema: Any, root: Any) -> Mapping[str, Any]:
    """Return what a schema refers to, if that is in the root; the schema itself where it refers to nothing there."""
    for _ in range(_MOST_HOPS):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        target = root
        for step in reference[2:].split("/"):
            target = (
                target.get(step.replace("~1", "/").replace("~0", "~"))
                if isinstance(target, Mapping)
                else None
            )
        if not isinstance(target, Mapping):
            break
        schema = target
    return schema if isinstance(schema, Mapping) else {}


def lifted(schema: Any, root: Any) -> Any:
    """Return a schema from inside the root as a complete one, with all that it refers to."""
    found = moved(schema, _WHOLE, root)
    return (
        schema if found == schema else {"allOf": [found], "$defs": {"whole": moved(root, _WHOLE)}}
    )
