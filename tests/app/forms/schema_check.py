"""Check whether a text is JSON that a schema allows.

The check is independent of the program and uses exact numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

_KINDS: dict[str, Any] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, Fraction) and value.denominator == 1,
    "number": lambda value: isinstance(value, Fraction),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def exact_json(text: str) -> Any:
    """Return the value of a JSON text, with fractions as numbers.

    Raises:
        ValueError: The text is not JSON.
    """
    return json.loads(text, parse_int=Fraction, parse_float=Fraction)


def exact(value: Any) -> Any:
    """Return a Python value with the same numbers as ``exact_json``."""
    return exact_json(json.dumps(value))


def describes(schema: Any, value: Any, root: Any = None) -> bool:
    """Whether a schema allows a value from ``exact_json``.

    Args:
        root: Schema that references refer to; the schema itself by default.
    """
    root = schema if root is None else root
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and not describes(_target(schema["$ref"], root), value, root):
        return False
    types = schema.get("type", list(_KINDS))
    if not any(
        _KINDS[type_name](value) for type_name in ([types] if isinstance(types, str) else types)
    ):
        return False
    if "const" in schema and not _is_same(exact(schema["const"]), value):
        return False
    if "enum" in schema and not any(_is_same(exact(choice), value) for choice in schema["enum"]):
        return False
    if not all(describes(subschema, value, root) for subschema in schema.get("allOf", ())):
        return False
    if "anyOf" in schema and not any(
        describes(subschema, value, root) for subschema in schema["anyOf"]
    ):
        return False
    if (
        "oneOf" in schema
        and sum(describes(subschema, value, root) for subschema in schema["oneOf"]) != 1
    ):
        return False
    if "not" in schema and describes(schema["not"], value, root):
        return False
    if isinstance(value, Fraction):
        return _describes_number(schema, value)
    if isinstance(value, str):
        return (
            _is_within(schema, "Length", len(value))
            and re.search(schema.get("pattern", ""), value) is not None
        )
    if isinstance(value, list):
        return _describes_list(schema, value, root)
    return _describes_object(schema, value, root) if isinstance(value, dict) else True


def _target(reference: str, root: Any) -> Any:
    target = root
    for step in reference[2:].split("/") if reference != "#" else ():
        target = target[step]
    return target


def _is_same(first: Any, second: Any) -> bool:
    return type(first) is type(second) and bool(first == second)


def _is_within(schema: Mapping[str, Any], keyword: str, n: int) -> bool:
    return bool(schema.get(f"min{keyword}", n) <= n <= schema.get(f"max{keyword}", n))


def _describes_number(schema: Mapping[str, Any], value: Fraction) -> bool:
    bounds = {key: exact(schema[key]) for key in schema if key.endswith(("inimum", "aximum"))}
    multiple = exact(schema["multipleOf"]) if "multipleOf" in schema else Fraction(0)
    return (
        bounds.get("minimum", value) <= value <= bounds.get("maximum", value)
        and bounds.get("exclusiveMinimum", value - 1)
        < value
        < bounds.get("exclusiveMaximum", value + 1)
        and (not multiple or value % multiple == 0)
    )


def _describes_list(schema: Mapping[str, Any], value: list[Any], root: Any) -> bool:
    first = schema.get("prefixItems", [])
    rest_schema = schema.get("items", True)
    schemas = [*first, *[rest_schema] * len(value)]
    is_unique = not schema.get("uniqueItems") or len({repr(item) for item in value}) == len(value)
    fits = all(
        describes(item_schema, item, root)
        for item_schema, item in zip(schemas, value, strict=False)
    )
    return fits and is_unique and _is_within(schema, "Items", len(value))


def _describes_object(schema: Mapping[str, Any], value: dict[str, Any], root: Any) -> bool:
    properties = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    if not set(schema.get("required", ())) <= set(value) or not _is_within(
        schema, "Properties", len(value)
    ):
        return False
    for name, item in value.items():
        schemas = [properties[name]] if name in properties else []
        schemas += [
            subschema for pattern, subschema in patterns.items() if re.search(pattern, name)
        ]
        schemas = schemas or [
            schema.get("additionalProperties", schema.get("unevaluatedProperties", True))
        ]
        if not all(describes(subschema, item, root) for subschema in schemas):
            return False
        if not describes(schema.get("propertyNames", True), name, root):
            return False
    return True
