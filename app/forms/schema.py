"""Rewriting of a JSON schema from anywhere into one that a form can follow.

llguidance refuses keywords that it does not follow, reads numbers as floats of 64 bits, and ends
the process on some of them. So a schema is rewritten first: what means nothing goes, what can be
put in other words is, bounds of numbers move inwards to values that arrive as they are, and the
names of the other keywords are returned.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, NamedTuple
from urllib.parse import unquote

from engine.prompt.json_schema import mapped

MOST_WHOLE = 2**63 - 1024
"""Largest whole number that is both a float and an integer of 64 bits."""
MOST_BOUND = 10**15
"""Largest bound of a number with a fraction: all digits of such a float are known."""
_EXACT_WHOLE = 2**53
_MOST_EXPONENT = 22
"""Largest exponent of a number that every parser of JSON reads exactly.

The number is a whole one up to 2**53, times a power of ten up to this one.
"""
_MOST_COUNT = 1 << 24
"""Upper limits on lengths from here on limit nothing: no answer is as long."""

_FORMATS = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
)
_DRAFT = re.compile(r"https?://json-schema\.org/(draft-0[467]|draft/20(19-09|20-12))/schema#?")
_TYPES = frozenset(["array", "boolean", "integer", "null", "number", "object", "string"])
_LITERAL_NAME = re.compile(r"\^([A-Za-z0-9_ -]+)\$")
_NULL_IS_MEANT = frozenset(["const", "default", "example", "examples"])
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
"""Whether a regular expression can be followed."""


class FollowedSchema(NamedTuple):
    """A schema that a form can follow.

    Attributes:
        schema: all that can be followed.
        dropped: keywords that say more and are left out, sorted; () where the schema is followed as
            a whole.
    """

    schema: Any
    dropped: tuple[str, ...]


def followed_schema(schema: Any, is_pattern: IsPattern) -> FollowedSchema:
    """Return what can be followed of a schema; every value of the original is one of the result.

    Raises:
        RecursionError: it is nested too deeply.
    """
    rewriting = _Rewriting(schema, is_pattern)
    rewritten = mapped(schema, rewriting.change)
    return FollowedSchema(rewritten, tuple(sorted(rewriting.dropped)))


def loosened_schema(schema: Any) -> Any:
    """Return a schema without the combinations of keywords that a form may fail to follow."""

    def change(part: Mapping[str, Any]) -> dict[str, Any]:
        loose = dict(part)
        for keyword in ("minProperties", "maxProperties", "multipleOf"):
            loose.pop(keyword, None)
        if loose.pop("patternProperties", None):
            loose.pop("additionalProperties", None)
        choices = loose.pop("oneOf", None)
        if choices is not None and "anyOf" not in loose:
            loose["anyOf"] = choices
        return loose

    return mapped(schema, change)


class _Rewriting:
    """Pass over a schema, from the outside to the inside."""

    def __init__(self, root: Any, is_pattern: IsPattern) -> None:
        self._root = root
        self._is_pattern = is_pattern
        self._ids: set[str] = set()
        mapped(root, self._note_id)
        self._patterns: dict[str, bool] = {}
        self.dropped: set[str] = set()

    def _note_id(self, part: Mapping[str, Any]) -> None:
        for name in ("$id", "id"):
            if isinstance(part.get(name), str):
                self._ids.add(part[name].partition("#")[0])

    def change(self, part: Mapping[str, Any]) -> dict[str, Any]:
        """Return one level of the schema, rewritten."""
        schema = {
            key: value for key, value in part.items() if value is not None or key in _NULL_IS_MEANT
        }
        schema.pop("x-guidance", None)  # options of the library, which are not the client's
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
        """Remove formats and drafts that no one knows: they only annotate."""
        if "format" in schema and schema["format"] not in _FORMATS:
            del schema["format"]
        if "$schema" in schema and not _DRAFT.fullmatch(str(schema["$schema"])):
            del schema["$schema"]

    def _clean_shapes(self, schema: dict[str, Any]) -> None:
        """Drop keywords whose values have another type than they must."""
        for keyword in ("properties", "patternProperties", "$defs", "definitions"):
            value = schema.get(keyword)
            if value == []:  # as PHP writes an empty object
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
        given = schema["type"]
        if isinstance(given, list):
            names = given
        else:
            names = [given]
        names = [name.lower() if isinstance(name, str) else name for name in names]
        if "any" in names:
            del schema["type"]
        elif names and all(isinstance(name, str) and name in _TYPES for name in names):
            if isinstance(given, list):
                schema["type"] = names
            else:
                schema["type"] = names[0]
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
        elif not self._ids and not _leads_somewhere(reference, self._root):
            self._drop(schema, "$ref")

    def _clean_data(self, schema: dict[str, Any]) -> None:
        """Drop constants whose numbers would become other ones."""
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
            count = _whole(schema[keyword])
            if count is None or count < 0:
                self._drop(schema, keyword)
            elif count == 0 if keyword.startswith("min") else count >= _MOST_COUNT:
                del schema[keyword]
            else:
                schema[keyword] = count

    def _clean_bounds(self, schema: dict[str, Any]) -> None:
        given = schema.get("type")
        if isinstance(given, list):
            names = given
        else:
            names = [given]
        is_whole = "integer" in names and "number" not in names
        for keyword, inclusive in (
            ("exclusiveMinimum", "minimum"),
            ("exclusiveMaximum", "maximum"),
        ):
            if schema.get(keyword) is True and inclusive in schema:  # as drafts up to 4 write it
                schema[keyword] = schema.pop(inclusive)
            elif isinstance(schema.get(keyword), bool):
                del schema[keyword]
        for keyword in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
            if keyword not in schema:
                continue
            value = schema[keyword]
            is_lower = keyword.endswith("inimum")
            # NaN
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
                self._drop(schema, keyword)
            elif value == (-math.inf if is_lower else math.inf):
                del schema[keyword]
            else:
                find_bound = _whole_bound if is_whole else _number_bound
                bound = find_bound(value, is_lower, keyword.startswith("exclusive"))
                if bound is None:
                    self._drop(schema, keyword)
                else:
                    schema[keyword] = bound
        if is_whole:
            _close_large_range(schema)
        multiple: Any = schema.get("multipleOf", 1)
        is_number = isinstance(multiple, (int, float)) and not isinstance(multiple, bool)
        if not (is_number and multiple > 0 and _is_exact(multiple)):
            self._drop(schema, "multipleOf")
        elif "multipleOf" in schema:
            schema["multipleOf"] = _exact_data(multiple)

    def _clean_patterns(self, schema: dict[str, Any]) -> None:
        """Drop expressions that cannot be followed.

        An expression that names a single property becomes that property.
        """
        if "pattern" in schema and not self._is_followed(schema["pattern"]):
            self._drop(schema, "pattern")
        patterns = schema.get("patternProperties")
        if patterns is None:
            return
        if not all(map(self._is_followed, patterns)):
            self._drop(schema, "patternProperties")
            if schema.pop("additionalProperties", True) is not True:
                self.dropped.add("additionalProperties")
            return
        properties = dict(schema.get("properties", {}))
        others: dict[str, Any] = {}
        for pattern, value in patterns.items():
            literal = _LITERAL_NAME.fullmatch(pattern)
            if literal is None:
                others[pattern] = value
                continue
            name = literal[1]
            if name in properties:
                properties[name] = {"allOf": [properties[name], value]}
            else:
                properties[name] = value
        del schema["patternProperties"]
        if others:
            schema["patternProperties"] = others
        if properties:
            schema["properties"] = properties

    def _is_followed(self, pattern: Any) -> bool:
        if not isinstance(pattern, str):
            return False
        if pattern not in self._patterns:
            self._patterns[pattern] = self._is_pattern(pattern)
        return self._patterns[pattern]

    def _clean_property_names(self, schema: dict[str, Any]) -> None:
        """Write a rule for names as properties, or as patterns of properties."""
        rule = schema.get("propertyNames")
        if "propertyNames" not in schema:
            return
        if rule is True or (isinstance(rule, dict) and _says_nothing(rule)):
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
        """Return the one expression of a rule for names; None where it says anything else."""
        if (
            not isinstance(rule, dict)
            or set(rule) - _ANNOTATING - {"type", "pattern"}
            or rule.get("type") != "string"
        ):
            is_plain = isinstance(rule, dict) and set(rule) - _ANNOTATING == {"pattern"}
            if not is_plain:
                return None
        pattern: str | None = rule.get("pattern")
        if self._is_followed(pattern):
            return pattern
        return None

    def _clean_unevaluated(self, schema: dict[str, Any]) -> None:
        """Write what forbids further properties or items in the older words.

        They mean the same in one schema.
        """
        is_alone = not any(keyword in schema for keyword in _COMBINING)
        for keyword, older in (
            ("unevaluatedProperties", "additionalProperties"),
            ("unevaluatedItems", "items"),
        ):
            rule = schema.get(keyword)
            if keyword not in schema:
                continue
            is_settled = older in schema and not isinstance(schema[older], list)
            if rule is True or rule == {} or (is_settled and is_alone):
                del schema[keyword]
            elif is_alone and older not in schema and "contains" not in schema and _is_schema(rule):
                schema[older] = schema.pop(keyword)
            else:
                self._drop(schema, keyword)

    def _clean_sizes(self, schema: dict[str, Any]) -> None:
        """Remove limits on the number of properties that hold anyway.

        Limits that repeated names would break are dropped.
        """
        required = set(schema.get("required", ()))
        is_closed = (
            schema.get("additionalProperties") is False and "patternProperties" not in schema
        )
        least = schema.get("minProperties", 0)
        if least <= len(required):
            schema.pop("minProperties", None)
        elif not is_closed and least > len(required) + 1:
            self._drop(schema, "minProperties")
        if is_closed and schema.get("maxProperties", 0) >= len(schema.get("properties", ())):
            schema.pop("maxProperties", None)

    def _drop_unknown_rules(self, schema: dict[str, Any]) -> None:
        """Drop rules that no form can follow, unless they forbid nothing."""
        if schema.get("uniqueItems") is False or _whole(schema.get("maxItems")) in (0, 1):
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
        for keyword in _UNFOLLOWED:
            self._drop(schema, keyword)


_UNFOLLOWED = (
    "uniqueItems", "not", "if", "then", "else", "contains", "minContains", "maxContains",
    "dependentRequired", "dependentSchemas", "dependencies", "extends", "disallow", "divisibleBy",
    "$dynamicRef", "$recursiveRef",
)  # fmt: skip
_ANNOTATING = frozenset(["title", "description", "$comment", "default", "examples", "deprecated"])


def _is_schema(value: Any) -> bool:
    return isinstance(value, (dict, bool))


def _says_nothing(rule: Mapping[str, Any]) -> bool:
    """Whether a rule for names allows every name."""
    constraints = {key: value for key, value in rule.items() if key not in _ANNOTATING}
    return constraints in ({}, {"type": "string"}, {"type": ["string"]})


def _allowed_names(rule: Any) -> list[str] | None:
    """Return the names of a rule that lists them; None where it says anything else."""
    if not isinstance(rule, dict) or set(rule) - _ANNOTATING - {"type", "enum", "const"}:
        return None
    names = rule.get("enum", [rule["const"]] if "const" in rule else None)
    if (
        rule.get("type", "string") != "string"
        or not isinstance(names, list)
        or {"enum", "const"} <= set(rule)
    ):
        return None
    if names and all(isinstance(name, str) for name in names):
        return names
    return None


def _leads_somewhere(reference: str, root: Any) -> bool:
    """Whether a reference within the schema has a target; anchors are not looked for."""
    if not reference.startswith("#/"):
        return True
    target = root
    for step in unquote(reference[2:]).split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping) and name in target:
            target = target[name]
        elif isinstance(target, Sequence) and not isinstance(target, str) and name.isdecimal():
            if len(name) < 9:
                index = int(name)
            else:
                index = len(target)
            if index >= len(target):
                return False
            target = target[index]
        else:
            return False
    return _is_schema(target)


def _whole(value: Any) -> int | None:
    """Return a whole number, which may be written as 4.0; None for anything else."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


def _is_exact(number: int | float) -> bool:
    """Whether a number is the same one after llguidance has read and written it."""
    whole = _whole(number)
    if whole is not None:
        return abs(whole) <= _EXACT_WHOLE or (
            abs(whole) <= MOST_WHOLE and int(float(whole)) == whole
        )
    if not math.isfinite(number):
        return False
    _, digits, exponent = Decimal(repr(number)).as_tuple()
    assert isinstance(exponent, int)
    return int("".join(map(str, digits))) <= _EXACT_WHOLE and abs(exponent) <= _MOST_EXPONENT


def _exact_data(value: Any) -> Any:
    """Return JSON data with whole numbers written as such.

    Raises:
        ValueError: a number would become another one.
    """
    if isinstance(value, dict):
        return {key: _exact_data(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_exact_data(item) for item in value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if not _is_exact(value):
        raise ValueError("a number cannot be followed exactly")
    whole = _whole(value)
    if whole is None:
        return value
    return whole


def _whole_bound(value: int | float, is_lower: bool, is_exclusive: bool) -> int | None:
    """Return a bound of whole numbers that is read exactly and allows no more.

    None if no bound allows anything.
    """
    if value in (math.inf, -math.inf):
        return None
    if is_lower != is_exclusive:
        bound = math.ceil(value)
    else:
        bound = math.floor(value)
    if abs(bound) > MOST_WHOLE:
        is_outwards = (bound < 0) == is_lower
        if is_outwards:
            return -MOST_WHOLE if is_lower else MOST_WHOLE
        return None
    nearest = float(bound)
    if is_lower and int(nearest) < bound:
        nearest = math.nextafter(nearest, math.inf)
    if not is_lower and int(nearest) > bound:
        nearest = math.nextafter(nearest, -math.inf)
    return int(nearest)


def _number_bound(value: int | float, is_lower: bool, is_exclusive: bool) -> int | float | None:
    """Return a bound of numbers that is read exactly and allows no more.

    None if no bound allows anything.
    """
    if abs(value) > MOST_BOUND:
        is_outwards = (value < 0) == is_lower
        if is_outwards:
            return -MOST_BOUND if is_lower else MOST_BOUND
        return None
    if _is_exact(value):
        return value
    if is_lower:
        rounding = ROUND_CEILING
    else:
        rounding = ROUND_FLOOR
    rounded = float(Context(prec=15, rounding=rounding).create_decimal(Decimal(repr(value))))
    if _is_exact(rounded):
        return rounded
    return None


def _close_large_range(schema: dict[str, Any]) -> None:
    """Give a range of large whole numbers its other end, without which it is refused."""
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    if least is not None and most is None and least > _EXACT_WHOLE:
        schema["maximum"] = MOST_WHOLE
    if most is not None and least is None and most < -_EXACT_WHOLE:
        schema["minimum"] = -MOST_WHOLE
