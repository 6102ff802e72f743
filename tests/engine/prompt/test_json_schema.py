"""Schemas that are changed or moved: references lead where they led, and data that looks like a
schema stays."""

from __future__ import annotations

from typing import Any

import pytest

from engine.prompt.json_schema import lifted, mapped, moved, resolved

TREE: dict[str, Any] = {
    "$defs": {
        "node": {
            "properties": {"left": {"$ref": "#/$defs/node"}, "value": {"$ref": "#/definitions/n"}}
        }
    },
    "definitions": {"n": {"type": "integer"}},
    "properties": {"tree": {"$ref": "#/$defs/node"}, "all": {"items": [{"$ref": "#"}]}},
}


def test_references_to_the_root_lead_to_where_it_is_now() -> None:
    found = moved(TREE, "/properties/arguments")
    assert found["properties"]["tree"] == {"$ref": "#/properties/arguments/$defs/node"}
    assert found["properties"]["all"] == {"items": [{"$ref": "#/properties/arguments"}]}
    node = found["$defs"]["node"]["properties"]
    assert node["left"] == {"$ref": "#/properties/arguments/$defs/node"}
    assert node["value"] == {"$ref": "#/properties/arguments/definitions/n"}
    assert TREE["properties"]["tree"] == {"$ref": "#/$defs/node"}


@pytest.mark.parametrize(
    "schema",
    [
        {"const": {"$ref": "#/a"}},
        {"enum": [{"$ref": "#/a"}], "default": {"$ref": "#"}},
        {"properties": {"$ref": {"type": "string"}}},
        {"$ref": "#anchor"},
        {"$ref": "http://elsewhere/x#/a"},
        {"properties": {"a": {"$id": "x", "$ref": "#/b"}}},
        True,
        {"$ref": 3},
    ],
)
def test_what_is_no_reference_to_the_root_stays(schema: Any) -> None:
    assert moved(schema, "/x") == schema


def test_a_root_with_a_name_is_found_by_its_name() -> None:
    schema = {
        "$id": "http://a/b",
        "$defs": {"c": {}},
        "items": [{"$ref": "http://a/b#/$defs/c"}, {"$ref": "http://a/b"}],
    }
    assert moved(schema, "/x") == {
        "$defs": {"c": {}},
        "items": [{"$ref": "#/x/$defs/c"}, {"$ref": "#/x"}],
    }


def test_every_schema_is_changed_and_nothing_else() -> None:
    schema = {
        "format": 1,
        "enum": [{"format": 2}],
        "properties": {"format": {"format": 3}},
        "anyOf": [{"format": 4}],
    }
    seen: list[Any] = []

    def note(one: Any) -> Any:
        seen.append(one.get("format"))
        return one

    assert mapped(schema, note) == schema
    assert seen == [1, 3, 4]


def test_a_reference_is_followed_as_far_as_it_leads() -> None:
    root = {
        "$defs": {
            "a/b": {"$ref": "#/$defs/c"},
            "c": {"type": "string"},
            "d": {"$ref": "#/$defs/d"},
            "e": 3,
        }
    }
    assert resolved({"$ref": "#/$defs/a~1b"}, root) == {"type": "string"}
    for dead_end in ("#/$defs/d", "#/nowhere", "#/$defs/e", "other"):
        assert resolved({"$ref": dead_end}, root) == {"$ref": dead_end}
    assert resolved(True, root) == {}


def test_a_part_takes_along_what_it_refers_to() -> None:
    assert lifted({"type": "string"}, TREE) == {"type": "string"}
    found = lifted(TREE["properties"]["tree"], TREE)
    assert found["allOf"] == [{"$ref": "#/$defs/whole/$defs/node"}]
    whole = found["$defs"]["whole"]
    assert whole["$defs"]["node"]["properties"]["left"] == {"$ref": "#/$defs/whole/$defs/node"}
