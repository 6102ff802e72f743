"""Simplification of any JSON schema to one that a form can enforce.

llguidance refuses keywords that it does not support, reads numbers as floats of 64 bits, and
crashes on some of them. So a schema is rewritten first: keywords without effect are removed, others
are expressed differently where possible, bounds of numbers move inwards to exact values, and the
names of the remaining unsupported keywords are returned.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, NamedTuple
from urllib.parse import unquote

from engine.prompt.json_schema import mapped

MAX_EXACT_INTEGER = 2**63 - 1024
"""Largest integer that is both a float and an integer of 64 bits."""
MAX_BOUND = 10**15
"""Largest bound of a number with a fraction. All digits of such a float are exact."""
_EXACT_INTEGER = 2**53
_MAX_EXPONENT = 22
"""Largest exponent of numbers that every JSON parser reads exactly: an integer up to 2**53, times a
power of ten up to this one."""
_MAX_COUNT = 1 << 24
"""Upper limits on lengths from this value on have no effect: no reply is as long."""

_FORMATS = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
)
_DRAFT = re.compile(r"https?://json-schema\.org/(draft-0[467]|draft/20(19-09|20-12))/schema#?")
_TYPES = frozenset(["array", "boolean", "integer", "null", "number", "object", "string"])
_LITERAL_NAME = re.compile(r"\^([A-Za-z0-9_ -]+)\$")
_MAY_BE_NULL = frozenset(["const", "default", "example", "examples"])
_COMBINING = (
    "allOf",
    "anyOf",
    "oneOf",
    "$ref",
    "if",
    "then",
    "else",
    "dependentSchemas",
    "$dynamicRef",
)

IsPattern = Callable[[str], bool]
"""Whether a regular expression can be enforced."""


class SimplifiedSchema(NamedTuple):
    """A schema that a form can enforce.

    Attributes:
        schema: Everything that can be enforced.
        dropped: Sorted names of keywords that were dropped; empty if nothing is missing.
    """

    schema: Any
    dropped: tuple[str, ...]


def simplify_schema(schema: Any, is_pattern: IsPattern) -> SimplifiedSchema:
    """Return as much of a schema as can be enforced.

    Every value that the original allows is allowed by the result.

    Raises:
        RecursionError: The schema is nested too deeply.
    """
    simplifier = _Simplifier(schema, is_pattern)
    simplified = mapped(schema, simplifier.simplify)
    return SimplifiedSchema(simplified, tuple(sorted(simplifier.dropped)))


def loosen_schema(schema: Any) -> Any:
    """Return a schema without the combinations of keywords that llguidance may refuse."""

    def loosen(level: Mapping[str, Any]) -> dict[str, Any]:
        loose = dict(level)
        for keyword in ("minProperties", "maxProperties", "multipleOf"):
            loose.pop(keyword, None)
        if loose.pop("patternProperties", None):
            loose.pop("additionalProperties", None)
        choices = loose.pop("oneOf", None)
        if choices is not None and "anyOf" not in loose:
            loose["anyOf"] = choices
        return loose

    return mapped(schema, loosen)


class _Simplifier:
    """Simplifies a schema level by level, from the outside to the inside.

    Attributes:
        dropped: Names of keywords that were dropped.
    """

    def __init__(self, root: Any, is_pattern: IsPattern) -> None:
        self._root = root
        self._is_pattern = is_pattern
        self._ids: set[str] = set()
        mapped(root, self._collect_id)
        self._patterns: dict[str, bool] = {}
        self.dropped: set[str] = set()

    def _collect_id(self, level: Mapping[str, Any]) -> None:
        for name in ("$id", "id"):
            if isinstance(level.get(name), str):
                self._ids.add(level[name].partition("#")[0])

    def simplify(self, level: Mapping[str, Any]) -> dict[str, Any]:
        """Return one level of the schema, simplified."""
        schema = {
            key: value for key, value in level.items() if value is not None or key in _MAY_BE_NULL
        }
        schema.pop("x-guidance", None)  # Options of llguidance are not the client's to set.
        self._clean_annotations(schema)
        self._clean_shapes(schema)
        self._clean_type(schema)
        self._clean_reference(schema)
        self._clean_data(schema)
        self._clean_counts(schema)
        self._clean_bounds(schema)
        self._clean_patterns(schema)
        self._clean_property_names(schema)
        self._clean_unevaluated(schema)
        self._clean_sizes(schema)
        self._drop_unknown_rules(schema)
        return schema

    def _drop(self, schema: dict[str, Any], keyword: str) -> None:
        if keyword in schema:
            del schema[keyword]
            self.dropped.add(keyword)

    def _clean_annotations(self, schema: dict[str, Any]) -> None:
        """Remove unknown formats and drafts: they are only annotations."""
        if "format" in schema and schema["format"] not in _FORMATS:
            del schema["format"]
        if "$schema" in schema and not _DRAFT.fullmatch(str(schema["$schema"])):
            del schema["$schema"]

    def _clean_shapes(self, schema: dict[str, Any]) -> None:
        """Drop keywords whose values have a wrong type."""
        for keyword in ("properties", "patternProperties", "$defs", "definitions"):
            value = schema.get(keyword)
            if value == []:  # PHP's empty object
                del schema[keyword]
            elif value is not None and not isinstance(value, dict):
                self._drop(schema, keyword)
            elif value is not None and not all(_is_schema(inner) for inner in value.values()):
                self.dropped.add(keyword)
                schema[keyword] = {
                    name: inner if _is_schema(inner) else {} for name, inner in value.items()
                }
        for keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
            value = schema.get(keyword)
            if value == [] and keyword in ("allOf", "prefixItems"):
                del schema[keyword]
            elif keyword in schema and not (
                isinstance(value, list) and value and all(map(_is_schema, value))
            ):
                self._drop(schema, keyword)
        for keyword in ("additionalProperties", "additionalItems", "items"):
            value = schema.get(keyword)
            is_list = keyword == "items" and isinstance(value, list) and all(map(_is_schema, value))
            if keyword in schema and not (_is_schema(value) or is_list):
                self._drop(schema, keyword)
        required = schema.get("required")
        if "required" in schema and not (
            isinstance(required, list) and all(isinstance(n, str) for n in required)
        ):
            self._drop(schema, "required")

    def _clean_type(self, schema: dict[str, Any]) -> None:
        if "type" not in schema:
            return
        value = schema["type"]
        names = value if isinstance(value, list) else [value]
        names = [name.lower() if isinstance(name, str) else name for name in names]
        if "any" in names:
            del schema["type"]
        elif names and all(isinstance(name, str) and name in _TYPES for name in names):
            schema["type"] = names if isinstance(value, list) else names[0]
        else:
            self._drop(schema, "type")

    def _clean_reference(self, schema: dict[str, Any]) -> None:
        reference = schema.get("$ref")
        if "$ref" not in schema:
            return
        if not isinstance(reference, str):
            self._drop(schema, "$ref")
        elif not reference.startswith("#"):
            if reference.partition("#")[0] not in self._ids:
                self._drop(schema, "$ref")
        elif not self._ids and not _has_target(reference, self._root):
            self._drop(schema, "$ref")

    def _clean_data(self, schema: dict[str, Any]) -> None:
        """Drop constants with numbers that would change."""
        for keyword in ("const", "enum"):
            if keyword not in schema:
                continue
            try:
                schema[keyword] = _exact_data(schema[keyword])
            except ValueError:
                self._drop(schema, keyword)
        if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
            self._drop(schema, "enum")

    def _clean_counts(self, schema: dict[str, Any]) -> None:
        for keyword in (
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
        ):
            if keyword not in schema:
                continue
            count = _as_integer(schema[keyword])
            if count is None or count < 0:
                self._drop(schema, keyword)
                continue
            if keyword.startswith("min"):
                has_effect = count > 0
            else:
                has_effect = count < _MAX_COUNT
            if not has_effect:
                del schema[keyword]
            else:
                schema[keyword] = count

    def _clean_bounds(self, schema: dict[str, Any]) -> None:
        schema_type = schema.get("type")
        names = schema_type if isinstance(schema_type, list) else [schema_type]
        is_integer = "integer" in names and "number" not in names
        for keyword, inclusive in (
            ("exclusiveMinimum", "minimum"),
            ("exclusiveMaximum", "maximum"),
        ):
            if schema.get(keyword) is True and inclusive in schema:  # drafts up to 4
                schema[keyword] = schema.pop(inclusive)
            elif isinstance(schema.get(keyword), bool):
                del schema[keyword]
        for keyword in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
            if keyword not in schema:
                continue
            value = schema[keyword]
            is_lower = keyword.endswith("inimum")
            is_nan = value != value
            if isinstance(value, bool) or not isinstance(value, (int, float)) or is_nan:
                self._drop(schema, keyword)
            elif value == (-math.inf if is_lower else math.inf):
                del schema[keyword]
            else:
                find_bound = _integer_bound if is_integer else _number_bound
                bound = find_bound(value, is_lower, keyword.startswith("exclusive"))
                if bound is None:
                    self._drop(schema, keyword)
                else:
                    schema[keyword] = bound
        if is_integer:
            _close_large_range(schema)
        multiple: Any = schema.get("multipleOf", 1)
        is_number = isinstance(multiple, (int, float)) and not isinstance(multiple, bool)
        if not (is_number and multiple > 0 and _is_exact(multiple)):
            self._drop(schema, "multipleOf")
        elif "multipleOf" in schema:
            schema["multipleOf"] = _exact_data(multiple)

    def _clean_patterns(self, schema: dict[str, Any]) -> None:
        """Drop expressions that cannot be enforced.

        An expression that matches a single name becomes a property.
        """
        if "pattern" in schema and not self._is_enforceable(schema["pattern"]):
            self._drop(schema, "pattern")
        patterns = schema.get("patternProperties")
        if patterns is None:
            return
        if not all(map(self._is_enforceable, patterns)):
            self._drop(schema, "patternProperties")
            if schema.pop("additionalProperties", True) is not True:
                self.dropped.add("additionalProperties")
            return
        properties = dict(schema.get("properties", {}))
        remaining: dict[str, Any] = {}
        for pattern, value in patterns.items():
            literal = _LITERAL_NAME.fullmatch(pattern)
            if literal is None:
                remaining[pattern] = value
                continue
            name = literal[1]
            if name in properties:
                properties[name] = {"allOf": [properties[name], value]}
            else:
                properties[name] = value
        del schema["patternProperties"]
        if remaining:
            schema["patternProperties"] = remaining
        if properties:
            schema["properties"] = properties

    def _is_enforceable(self, pattern: Any) -> bool:
        if not isinstance(pattern, str):
            return False
        if pattern not in self._patterns:
            self._patterns[pattern] = self._is_pattern(pattern)
        return self._patterns[pattern]

    def _clean_property_names(self, schema: dict[str, Any]) -> None:
        """Express a rule for names as properties, or as patterns of properties."""
        rule = schema.get("propertyNames")
        if "propertyNames" not in schema:
            return
        if rule is True or (isinstance(rule, dict) and _allows_all_names(rule)):
            del schema["propertyNames"]
            return
        value = schema.get("additionalProperties", {})
        names = _allowed_names(rule)
        pattern = self._name_pattern(rule)
        is_open = not schema.get("properties") and not schema.get("patternProperties")
        if is_open and names is not None:
            schema["properties"] = dict.fromkeys(names, value)
        elif is_open and pattern is not None and not schema.get("required"):
            schema["patternProperties"] = {pattern: value}
        else:
            self._drop(schema, "propertyNames")
            return
        schema["additionalProperties"] = False
        del schema["propertyNames"]

    def _name_pattern(self, rule: Any) -> str | None:
        """Return the expression in a rule for names; None if the rule has anything else."""
        if not isinstance(rule, dict):
            return None
        keywords = set(rule) - _ANNOTATIONS
        is_string = rule.get("type") == "string" and keywords <= {"type", "pattern"}
        if not is_string and keywords != {"pattern"}:
            return None
        pattern: str | None = rule.get("pattern")
        if self._is_enforceable(pattern):
            return pattern
        return None

    def _clean_unevaluated(self, schema: dict[str, Any]) -> None:
        """Express rules for further properties or items by older keywords.

        They mean the same within one schema.
        """
        is_alone = not any(keyword in schema for keyword in _COMBINING)
        for keyword, older in (
            ("unevaluatedProperties", "additionalProperties"),
            ("unevaluatedItems", "items"),
        ):
            rule = schema.get(keyword)
            if keyword not in schema:
                continue
            has_older = older in schema and not isinstance(schema[older], list)
            if rule is True or rule == {} or (has_older and is_alone):
                del schema[keyword]
            elif is_alone and older not in schema and "contains" not in schema and _is_schema(rule):
                schema[older] = schema.pop(keyword)
            else:
                self._drop(schema, keyword)

    def _clean_sizes(self, schema: dict[str, Any]) -> None:
        """Remove limits on the number of properties that have no effect.

        Limits that repeated names would break are dropped.
        """
        required = set(schema.get("required", ()))
        is_closed = (
            schema.get("additionalProperties") is False and "patternProperties" not in schema
        )
        min_properties = schema.get("minProperties", 0)
        if min_properties <= len(required):
            schema.pop("minProperties", None)
        elif not is_closed and min_properties > len(required) + 1:
            self._drop(schema, "minProperties")
        if is_closed and schema.get("maxProperties", 0) >= len(schema.get("properties", ())):
            schema.pop("maxProperties", None)

    def _drop_unknown_rules(self, schema: dict[str, Any]) -> None:
        """Drop rules that no form can enforce. Rules without effect are removed."""
        if schema.get("uniqueItems") is False or _as_integer(schema.get("maxItems")) in (0, 1):
            schema.pop("uniqueItems", None)
        if schema.get("not") is False:
            del schema["not"]
        if "if" not in schema or not ("then" in schema or "else" in schema):
            for keyword in ("if", "then", "else"):
                schema.pop(keyword, None)
        if "contains" not in schema:
            schema.pop("minContains", None)
            schema.pop("maxContains", None)
        for keyword in (
            "dependentRequired",
            "dependentSchemas",
            "dependencies",
            "extends",
            "disallow",
        ):
            if schema.get(keyword) in ({}, []):
                del schema[keyword]
        for keyword in _UNSUPPORTED:
            self._drop(schema, keyword)


_UNSUPPORTED = (
    "uniqueItems", "not", "if", "then", "else", "contains", "minContains", "maxContains",
    "dependentRequired", "dependentSchemas", "dependencies", "extends", "disallow", "divisibleBy",
    "$dynamicRef", "$recursiveRef",
)  # fmt: skip
_ANNOTATIONS = frozenset(["title", "description", "$comment", "default", "examples", "deprecated"])


def _is_schema(value: Any) -> bool:
    return isinstance(value, (dict, bool))


def _allows_all_names(rule: Mapping[str, Any]) -> bool:
    """Whether a rule for names allows every name."""
    constraints = {key: value for key, value in rule.items() if key not in _ANNOTATIONS}
    return constraints in ({}, {"type": "string"}, {"type": ["string"]})


def _allowed_names(rule: Any) -> list[str] | None:
    """Return the names in a rule that lists them; None if the rule has anything else."""
    if not isinstance(rule, dict) or set(rule) - _ANNOTATIONS - {"type", "enum", "const"}:
        return None
    has_both = "enum" in rule and "const" in rule
    if rule.get("type", "string") != "string" or has_both:
        return None
    names = rule.get("enum")
    if "const" in rule:
        names = [rule["const"]]
    if not isinstance(names, list):
        return None
    if names and all(isinstance(name, str) for name in names):
        return names
    return None


def _has_target(reference: str, root: Any) -> bool:
    """Whether a reference within the schema has a target. Anchors are not checked."""
    if not reference.startswith("#/"):
        return True
    target = root
    for step in unquote(reference[2:]).split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping) and name in target:
            target = target[name]
        elif isinstance(target, Sequence) and not isinstance(target, str) and name.isdecimal():
            index = int(name) if len(name) < 9 else len(target)
            if index >= len(target):
                return False
            target = target[index]
        else:
            return False
    return _is_schema(target)


def _as_integer(value: Any) -> int | None:
    """Return an integer, also for 4.0; None for other values."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


def _is_exact(number: int | float) -> bool:
    """Whether a number stays the same when llguidance reads and writes it."""
    integer = _as_integer(number)
    if integer is not None:
        return abs(integer) <= _EXACT_INTEGER or (
            abs(integer) <= MAX_EXACT_INTEGER and int(float(integer)) == integer
        )
    if not math.isfinite(number):
        return False
    _, digits, exponent = Decimal(repr(number)).as_tuple()
    assert isinstance(exponent, int)
    return int("".join(map(str, digits))) <= _EXACT_INTEGER and abs(exponent) <= _MAX_EXPONENT


def _exact_data(value: Any) -> Any:
    """Return JSON data with 4.0 written as 4.

    Raises:
        ValueError: A number would change.
    """
    if isinstance(value, dict):
        return {key: _exact_data(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_exact_data(item) for item in value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if not _is_exact(value):
        raise ValueError("a number cannot be enforced exactly")
    integer = _as_integer(value)
    if integer is None:
        return value
    return integer


def _integer_bound(value: int | float, is_lower: bool, is_exclusive: bool) -> int | None:
    """Return an exact bound for integers that allows no more than the original.

    None if such a bound allows nothing.
    """
    if value in (math.inf, -math.inf):
        return None
    if is_lower != is_exclusive:
        bound = math.ceil(value)
    else:
        bound = math.floor(value)
    if abs(bound) > MAX_EXACT_INTEGER:
        is_outwards = (bound < 0) == is_lower
        if is_outwards:
            return -MAX_EXACT_INTEGER if is_lower else MAX_EXACT_INTEGER
        return None
    nearest = float(bound)
    if is_lower and int(nearest) < bound:
        nearest = math.nextafter(nearest, math.inf)
    if not is_lower and int(nearest) > bound:
        nearest = math.nextafter(nearest, -math.inf)
    return int(nearest)


def _number_bound(value: int | float, is_lower: bool, is_exclusive: bool) -> int | float | None:
    """Return an exact bound for numbers that allows no more than the original.

    None if such a bound allows nothing.
    """
    if abs(value) > MAX_BOUND:
        is_outwards = (value < 0) == is_lower
        if is_outwards:
            return -MAX_BOUND if is_lower else MAX_BOUND
        return None
    if _is_exact(value):
        return value
    rounding = ROUND_CEILING if is_lower else ROUND_FLOOR
    rounded = float(Context(prec=15, rounding=rounding).create_decimal(Decimal(repr(value))))
    if _is_exact(rounded):
        return rounded
    return None


def _close_large_range(schema: dict[str, Any]) -> None:
    """Add the missing end to a range of large integers, which llguidance requires."""
    lower = schema.get("minimum", schema.get("exclusiveMinimum"))
    upper = schema.get("maximum", schema.get("exclusiveMaximum"))
    if lower is not None and upper is None and lower > _EXACT_INTEGER:
        schema["maximum"] = MAX_EXACT_INTEGER
    if upper is not None and lower is None and upper < -_EXACT_INTEGER:
        schema["minimum"] = -MAX_EXACT_INTEGER
