"""Forms of answers as requests ask for them."""

from __future__ import annotations

from typing import Any

import pytest

from app.chat.answer_form import AnswerForm
from app.server.answer_form import read_form
from app.server.api_error import ApiError
from app.server.fields import Fields


def form_of(kind: str, text: str) -> AnswerForm:
    return AnswerForm(kind, text, "response_format")


@pytest.mark.parametrize(
    ("given", "form"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, form_of("schema", '{"type":"object"}')),
        ({"type": "json_object", "schema": {"type": "null"}}, form_of("schema", '{"type": "null"}')),
        ({"type": "regex", "pattern": "a+"}, form_of("regex", "a+")),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"type": "null"}}},
            form_of("schema", '{"type": "null"}'),
        ),
        ({"type": "grammar", "grammar": 'root ::= "a"'}, form_of("grammar", 'root ::= "a"')),
    ],
)
def test_forms_are_read(given: Any, form: AnswerForm | None) -> None:
    assert read_form(Fields({"response_format": given})) == form


def test_a_grammar_is_read_as_llama_server_takes_it() -> None:
    assert read_form(Fields({"grammar": "start: X"})) == AnswerForm("grammar", "start: X", "grammar")
    assert read_form(Fields({"grammar": ""})) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "grammar"}},
        {"response_format": {"type": "regex", "pattern": "a" * 70_000}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}},
        {"response_format": {"type": "json_object"}, "grammar": "start: X"},
        {"grammar": 3},
    ],
)
def test_what_is_no_form_is_refused_with_its_field(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        read_form(Fields(fields))
    assert str(refused.value.param).split(".")[0] in fields
