"""JSON schemas: changed at all levels, and moved into other schemas with valid references."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Change = Callable[[Mapping[str, Any]], "Mapping[str, Any] | None"]
_DATA_KEYWORDS = frozenset(("const", "enum", "default", "example", "examples"))
"""Keywords whose values are data, even if they look like schemas."""
_MAPPING_KEYWORDS = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
)
"""Keywords whose values map names to schemas."""
_MAX_REFERENCES = 32
"""Limit on a chain of references."""
_ROOT_POINTER = "/$defs/whole"


def mapped(schema: Any, change: Change) -> Any:
    """Return a copy of a schema with a change applied to it and to every schema in it.

    Args:
        change: returns the changed schema, or None to leave a schema unchanged.

    Raises:
        RecursionError: the schema is nested too deeply.
    """
    if isinstance(schema, list):
        return [mapped(member, change) for member in schema]
    changed = change(schema) if isinstance(schema, Mapping) else None
    if changed is None:
        return schema
    return {key: _mapped_value(key, value, change) for key, value in changed.items()}


def _mapped_value(key: str, value: Any, change: Change) -> Any:
    if key in _DATA_KEYWORDS:
        return value
    if key in _MAPPING_KEYWORDS and isinstance(value, Mapping):
        return {name: mapped(member, change) for name, member in value.items()}
    return mapped(value, change)


def moved(schema: Any, pointer: str, root: Any = None) -> Any:
    """Return a schema in the form for a position inside another schema, with its references to the
    root changed.

    Args:
        pointer: JSON pointer of the position.
        root: root that the schema refers to; None for the schema itself.
    """
    if root is None:
        root = schema
    root_id = ""
    if isinstance(root, Mapping) and isinstance(root.get("$id"), str):
        root_id = root["$id"].removesuffix("#")

    def change(subschema: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if isinstance(subschema.get("$id"), str):
            if subschema is not root:
                return None  # its references have their own root
            subschema = {key: value for key, value in subschema.items() if key != "$id"}
        reference = subschema.get("$ref")
        if isinstance(reference, str):
            reference = reference.removeprefix(root_id) or "#"
            if reference == "#" or reference.startswith("#/"):
                return {**subschema, "$ref": f"#{pointer}{reference[1:]}"}
        return subschema

    return mapped(schema, change)


def resolved(schema: Any, root: Any) -> Mapping[str, Any]:
    """Return the schema that a schema refers to, if the root has it, else the schema itself."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
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
    """Return a schema from inside the root as a complete schema with everything that it refers
    to."""
    moved_schema = moved(schema, _ROOT_POINTER, root)
    if moved_schema == schema:
        return schema
    return {"allOf": [moved_schema], "$defs": {"whole": moved(root, _ROOT_POINTER)}}
