"""Tests of simplified schemas: a form allows only what the schema allows, or is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.forms.answer_form import SCHEMA, AnswerForm, FormError
from app.forms.constraint import Forms
from app.forms.schema import MAX_EXACT_INTEGER, loosen_schema, simplify_schema
from tests.app.forms.schema_check import describes, exact, exact_json
from tests.engine.prompt.test_chat_prompt import BYTES

MOST_STEPS = 120
NUMBERS = [
    0, 1, -1, 3, 10, 2**31, 2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**62 + 1, 2**63 - 1, 2**63,
    -(2**63), 2**64, 2**70 + 2**40, -(2**70), 10**400, 0.5, -2.5, 5.0, 1e3, -0.0, 0.1,
    0.30000000000000004, 123456789012345.67, 1e15, 1e-7, 5e-324, 1e22, 1e300, -1e300, 99.99,
]  # fmt: skip
NUMBER = st.sampled_from(NUMBERS)
OTHER_VALUE = st.sampled_from(["x", None, True, [2**70], '\u2028"'])
PATTERN = st.sampled_from(["^a*$", "b", "^[ab]{1,3}$", "é"])
NAME_RULE = st.sampled_from(
    [True, {"type": "string"}, {"pattern": "^[a-c]$"}, {"enum": ["a", "b"]}]
)
COUNT = st.sampled_from([0, 1, 2, 3, 2.0])
NAME = st.sampled_from(["a", "b", "xa"])
LEAF = st.one_of(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number", ["integer", "null"]])},
        optional={
            "minimum": NUMBER, "maximum": NUMBER, "exclusiveMinimum": NUMBER,
            "exclusiveMaximum": NUMBER,
            "multipleOf": st.sampled_from([1, 2, 3, 0.5, 0.01, 5.0, 1e3]),
        },
    ),
    st.fixed_dictionaries({"enum": st.lists(NUMBER | OTHER_VALUE, max_size=3)}),
    st.fixed_dictionaries({"const": NUMBER}),
    st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={"minLength": COUNT, "maxLength": COUNT, "pattern": PATTERN},
    ),
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": ["NULL", "Boolean"]}]),
)  # fmt: skip


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    closed = inner | st.just(False)
    return st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": closed},
            optional={
                "minItems": COUNT, "maxItems": COUNT, "prefixItems": st.lists(inner, max_size=2),
                "uniqueItems": st.booleans(),
            },
        ),
        st.fixed_dictionaries(
            {"type": st.just("object"), "additionalProperties": closed},
            optional={
                "properties": st.dictionaries(NAME, inner, max_size=2),
                "required": st.lists(NAME, max_size=2),
                "patternProperties": st.dictionaries(st.sampled_from(["^x", "^a$", "^[ab]$"]),
                                                     inner, max_size=1),
                "propertyNames": NAME_RULE,
                "minProperties": COUNT, "maxProperties": COUNT,
            },
        ),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"oneOf": st.lists(inner, min_size=1, max_size=2)}),
    )  # fmt: skip


SCHEMAS = st.recursive(LEAF, larger, max_leaves=4)


@pytest.fixture(scope="module")
def forms() -> Iterator[Forms]:
    all_forms = Forms(BYTES)
    yield all_forms
    all_forms.close()


def random_answer(forms: Forms, schema: Any, seed: int) -> str | None:
    """Return an answer in the form of a schema, with each byte chosen at random.

    None if the answer does not end.

    Raises:
        FormError: The form is refused.
    """
    random = Random(seed)
    constraint = forms.constraint(AnswerForm(SCHEMA, json.dumps(schema), "schema"))
    text = b""
    try:
        for _ in range(MOST_STEPS):
            tokens = constraint.allowed().nonzero()[0]
            ends = [token for token in tokens if token in BYTES.end_ids]
            if constraint.is_over or (ends and random.random() < 0.5):
                return text.decode("utf-8", "replace")
            likely = [
                token
                for token in tokens
                if (BYTES.token_bytes(token) or b"x") in b'0123456789"]},.-'
            ]
            token = int(random.choice(likely if likely and random.random() < 0.6 else [*tokens]))
            if token in BYTES.end_ids:
                return text.decode("utf-8", "replace")
            constraint.accept(token)
            text += BYTES.token_bytes(token) or b""
        return None
    finally:
        constraint.close()


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(SCHEMAS, st.integers(0, 99))
def test_a_schema_describes_each_answer_or_is_refused(forms: Forms, schema: Any, seed: int) -> None:
    try:
        text = random_answer(forms, schema, seed)
    except FormError:
        return
    if text is not None:
        assert describes(_modern(schema), exact_json(text)), text


def _modern(schema: Any) -> Any:
    """Return a schema with the standard names of types."""
    return json.loads(json.dumps(schema).replace("NULL", "null").replace("Boolean", "boolean"))


EXACT: list[tuple[Any, list[str], list[str]]] = [
    ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, ["0", str(2**60 + 1)],
     [str(2**63), "1.5"]),
    ({"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 5}, [str(2**53 + 3)],
     [str(2**53), str(2**53 + 6)]),
    ({"type": "integer", "minimum": 2**62}, [str(2**62)], [str(2**62 - 1), "0", str(2**64)]),
    ({"type": "integer", "exclusiveMinimum": 0.5, "maximum": 2}, ["1", "2"], ["0", "3"]),
    ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, ["1"], ["0"]),
    ({"type": "number", "minimum": 0.30000000000000004, "maximum": 1}, ["0.31", "1"],
     ["0.3", "1.1"]),
    ({"type": "number", "minimum": -1e300, "maximum": 1e300}, ["0", "-5.5"], []),
    ({"const": 5.0}, ["5"], ["6"]),
    ({"const": 1e3}, ["1000"], ["100"]),
    ({"enum": [2**62, "a"]}, [str(2**62), '"a"'], [str(2**62 + 1)]),
    ({"type": "string", "minLength": 2.0, "maxLength": 1e9}, ['"ab"'], ['"a"']),
    ({"type": "array", "uniqueItems": False, "items": {"const": 1}}, ["[1, 1]"], ["[2]"]),
    ({"type": "array", "uniqueItems": True, "maxItems": 1, "items": {"const": 1}}, ["[1]"],
     ["[1, 1]"]),
    (
        {"type": "object", "propertyNames": {"pattern": "^[a-c]$"},
         "additionalProperties": {"const": 1}},
        ['{"a": 1}', "{}"],
        ['{"d": 1}', '{"a": 2}'],
    ),
    (
        {"type": "object", "propertyNames": {"enum": ["a", "b"]},
         "additionalProperties": {"const": 1},
         "required": ["a"]},
        ['{"a": 1}', '{"a": 1, "b": 1}'],
        ['{"b": 1}', '{"a": 2}', '{"c": 1}'],
    ),
    (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
         "unevaluatedProperties": False},
        ['{"a": 1}'],
        ['{"a": 1, "b": 1}'],
    ),
    (
        {"properties": {"a": {"type": "integer"}},
         "patternProperties": {"^a$": {"minimum": 5, "maximum": 9}},
         "type": "object", "required": ["a"], "additionalProperties": False},
        ['{"a": 7}'],
        ['{"a": 4}'],
    ),
    ({"type": "string", "pattern": "^(?=.*[A-Z]).{2,}$", "maxLength": 3}, ['"aB"', '"x"'],
     ['"long"', "5"]),
]  # fmt: skip
"""Schemas, texts that they allow, and texts that they do not."""


def allows(forms: Forms, schema: Any, text: str) -> bool:
    constraint = forms.constraint(AnswerForm(SCHEMA, json.dumps(schema), "schema"))
    try:
        for token in BYTES.encode(text, bos=False, special=False):
            if constraint.is_over or not constraint.allowed()[token]:
                return False
            constraint.accept(token)
        return bool(constraint.allowed()[sorted(BYTES.end_ids)].any())
    finally:
        constraint.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "right", "wrong"), EXACT, ids=lambda value: json.dumps(value)[:60]
)
def test_equivalent_keywords_are_enforced_exactly(
    forms: Forms, schema: Any, right: list[str], wrong: list[str]
) -> None:
    assert [allows(forms, schema, text) for text in right] == [True] * len(right)
    assert [allows(forms, schema, text) for text in wrong] == [False] * len(wrong)


REFUSED: list[tuple[Any, str]] = [
    ({"type": "integer", "minimum": 2**63, "maximum": 2**63 + 5}, "minimum"),
    ({"type": "integer", "minimum": 2**63}, "minimum"),
    ({"type": "integer", "maximum": -(2**70)}, "maximum"),
    ({"type": "number", "minimum": 1e300}, "minimum"),
    ({"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 1}, "minimum"),
    ({"type": "integer", "minimum": "0"}, "minimum"),
    ({"enum": [1, 2**70 + 2**40]}, "enum"),
    ({"const": 2**63}, "const"),
    ({"const": 10**400}, "const"),
    ({"const": {"a": [123456789012345.67]}}, "const"),
    ({"const": 0.30000000000000004}, "const"),
    ({"type": "integer", "multipleOf": 0}, "multipleOf"),
    ({"type": "integer", "multipleOf": -1}, "multipleOf"),
    ({"type": "integer", "multipleOf": 2**70}, "multipleOf"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength"),
    ({"type": "array", "minItems": 3, "maxItems": 2}, "minItems"),
    ({"type": "string", "minLength": -1}, "minLength"),
    ({"type": "string", "minLength": "1"}, "minLength"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"not": {"type": "null"}}, "not"),
    ({"if": {"type": "null"}, "then": {"type": "null"}}, "if, then"),
    ({"type": "array", "contains": {"type": "null"}}, "contains"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    (
        {"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 2},
        "minProperties",
    ),
    ({"type": "object", "patternProperties": {"(?!a)": {}}}, "patternProperties"),
    ({"$dynamicRef": "#a"}, "$dynamicRef"),
    ({"$ref": "#/$defs/none"}, "$ref"),
    ({"x-guidance": {"lenient": True}, "type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "text"}, "type"),
    ({"anyOf": []}, "anyOf"),
    ({"enum": []}, "enum"),
]


@pytest.mark.smoke
@pytest.mark.slow
@pytest.mark.parametrize(("schema", "keyword"), REFUSED, ids=lambda value: json.dumps(value)[:60])
def test_unsupported_keywords_are_refused_by_name(forms: Forms, schema: Any, keyword: str) -> None:
    with pytest.raises(FormError) as refused:
        forms.constraint(AnswerForm(SCHEMA, json.dumps(schema), "schema"))
    assert keyword in str(refused.value)
    assert str(refused.value).startswith("schema cannot be used: ")


def test_infinite_numbers_are_refused() -> None:
    for text in (
        '{"const": 1e400}',
        '{"enum": [-1e400]}',
        '{"multipleOf": 1e400}',
        '{"minimum": 1e400}',
    ):
        assert simplify_schema(json.loads(text), lambda pattern: True).dropped
    assert simplify_schema(
        {"type": "number", "maximum": -(10**400)}, lambda pattern: True
    ).dropped == ("maximum",)
    assert simplify_schema(json.loads('{"maximum": 1e400}'), lambda pattern: True) == ({}, ())


@given(SCHEMAS)
def test_a_loosened_schema_allows_the_same_values(schema: Any) -> None:
    rewritten, _ = simplify_schema({"allOf": [schema, {"not": {}}]}, lambda pattern: False)
    loose = loosen_schema(rewritten)
    assert '"not"' not in json.dumps(loose)
    for value in (
        None,
        True,
        0,
        1,
        3,
        5.0,
        "",
        "a",
        "ab",
        [],
        [1],
        {},
        {"a": 1},
        {"a": None, "xa": 1},
    ):
        if describes(_modern(schema), exact(value)):
            assert describes(loose, exact(value))


def test_bounds_move_inwards_to_exact_numbers() -> None:
    schema = {"type": "integer", "minimum": -(2**80), "maximum": 2**53 + 1}
    assert simplify_schema(schema, lambda pattern: True) == (
        {"type": "integer", "minimum": -MAX_EXACT_INTEGER, "maximum": 2**53},
        (),
    )
