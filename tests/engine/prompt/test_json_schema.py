"""Changed and moved schemas: references keep their targets, and data that looks like a schema is
not changed."""

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


def test_references_to_the_root_follow_its_new_place() -> None:
    nested = moved(TREE, "/properties/arguments")
    assert nested["properties"]["tree"] == {"$ref": "#/properties/arguments/$defs/node"}
    assert nested["properties"]["all"] == {"items": [{"$ref": "#/properties/arguments"}]}
    node = nested["$defs"]["node"]["properties"]
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
def test_other_references_do_not_change(schema: Any) -> None:
    assert moved(schema, "/x") == schema


def test_references_to_a_named_root_are_resolved() -> None:
    schema = {
        "$id": "http://a/b",
        "$defs": {"c": {}},
        "items": [{"$ref": "http://a/b#/$defs/c"}, {"$ref": "http://a/b"}],
    }
    assert moved(schema, "/x") == {
        "$defs": {"c": {}},
        "items": [{"$ref": "#/x/$defs/c"}, {"$ref": "#/x"}],
    }


def test_every_subschema_is_mapped_and_nothing_else() -> None:
    schema = {
        "format": 1,
        "enum": [{"format": 2}],
        "properties": {"format": {"format": 3}},
        "anyOf": [{"format": 4}],
    }
    seen: list[Any] = []

    def note(subschema: Any) -> Any:
        seen.append(subschema.get("format"))
        return subschema

    assert mapped(schema, note) == schema
    assert seen == [1, 3, 4]


def test_references_are_followed_to_the_end() -> None:
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


def test_an_extracted_schema_includes_what_it_refers_to() -> None:
    assert lifted({"type": "string"}, TREE) == {"type": "string"}
    standalone = lifted(TREE["properties"]["tree"], TREE)
    assert standalone["allOf"] == [{"$ref": "#/$defs/whole/$defs/node"}]
    root = standalone["$defs"]["whole"]
    assert root["$defs"]["node"]["properties"]["left"] == {"$ref": "#/$defs/whole/$defs/node"}
