"""JSON schemas as values: changed everywhere at once, and moved into others so that their
references hold."""

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
    """Return a copy of a schema in which it and every schema in it is changed; None leaves one as
    it is.

    Raises:
        RecursionError: it is nested too deeply.
    """
    if isinstance(schema, list):
        return [mapped(one, change) for one in schema]
    if isinstance(schema, Mapping):
        changed = change(schema)
    else:
        changed = None
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
    """Return a schema as it must be at a place (a JSON pointer) of another one: references to its
    root lead there.

    Args:
        root: what it refers to; itself by default.
    """
    if root is None:
        root = schema
    if isinstance(root, Mapping):
        own_id = root.get("$id")
    else:
        own_id = None
    if isinstance(own_id, str):
        own_id = own_id.removesuffix("#")
    else:
        own_id = ""

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
    """Return what a schema refers to, if that is in the root; the schema itself where it refers to
    nothing there."""
    for _ in range(_MOST_HOPS):
        if isinstance(schema, Mapping):
            reference = schema.get("$ref")
        else:
            reference = None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        target = root
        for step in reference[2:].split("/"):
            if isinstance(target, Mapping):
                target = target.get(step.replace("~1", "/").replace("~0", "~"))
            else:
                target = None
        if not isinstance(target, Mapping):
            break
        schema = target
    if isinstance(schema, Mapping):
        return schema
    return {}


def lifted(schema: Any, root: Any) -> Any:
    """Return a schema from inside the root as a complete one, with all that it refers to."""
    found = moved(schema, _WHOLE, root)
    if found == schema:
        return schema
    return {"allOf": [found], "$defs": {"whole": moved(root, _WHOLE)}}
