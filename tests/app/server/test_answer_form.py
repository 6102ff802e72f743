"""Answers in a given form, by the bundled model: whatever it would say, what it says has the form."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from app.program.bundled_model import starter_file
from app.server.answer_form import AnswerForm, Forms, read_form
from app.server.api_error import ApiError
from app.server.fields import Fields
from engine import Model, Sampling, Session

pytestmark = pytest.mark.slow

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "size": {"enum": ["small", "large"]},
        "n": {"const": 7},
    },
    "required": ["city", "size", "n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    path = starter_file()
    assert path is not None
    opened = Model.open(path, threads=1)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def session(model: Model) -> Session:
    return model.session(n_ctx=512)


def written(model: Model, session: Session, form: AnswerForm, seed: int, guess: bool = False) -> str:
    session.prefill(model.tokenizer.encode("The capital of France is"))
    sampling = Sampling(temperature=3.0, top_p=1.0, min_p=0.0, top_k=0, seed=seed)  # as wild as it gets
    constraint = Forms(model.tokenizer).constraint(form)
    pieces = session.generate(sampling, max_tokens=300, guess=guess, constraint=constraint)
    return "".join(piece.text for piece in pieces)


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_has_the_schema_it_was_asked_for(model: Model, session: Session, seed: int) -> None:
    found = json.loads(written(model, session, AnswerForm("schema", json.dumps(CITY)), seed))
    assert session.finish_reason == "stop"
    assert list(found) == ["city", "size", "n"]
    assert (found["size"] in ("small", "large"), found["n"], len(found["city"]) <= 12) == (True, 7, True)


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_matches_the_expression_it_was_asked_for(model: Model, session: Session, seed: int) -> None:
    pattern = r"(Paris|Rome), [0-9]{4}é"
    assert re.fullmatch(pattern, written(model, session, AnswerForm("regex", pattern), seed))
    assert session.finish_reason == "stop"


@pytest.mark.parametrize(
    ("form", "why"),
    [
        (AnswerForm("regex", "(a"), "unclosed group"),
        (AnswerForm("schema", '{"type":"nothing"}'), "response_format cannot be used"),
        (AnswerForm("schema", '{"type":"string","minLength":5,"maxLength":2}'), "response_format cannot be used"),
        (AnswerForm("regex", "(?=a)b"), "look-ahead"),
        (AnswerForm("schema", '{"properties":{"a":' * 120 + "{}" + "}}" * 120), "recursion limit"),
        (AnswerForm("schema", '{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}}'), "cannot be used"),
        (AnswerForm("schema", '{"$ref":"http://localhost/schema"}'), "does not fetch"),
    ],
)
def test_what_is_no_form_is_refused_in_one_line(model: Model, form: AnswerForm, why: str) -> None:
    with pytest.raises(ApiError) as refused:
        Forms(model.tokenizer).constraint(form).allowed()
    assert why in refused.value.message
    assert refused.value.param == "response_format"


@pytest.mark.parametrize(
    ("given", "form"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, AnswerForm("schema", '{"type":"object"}')),
        ({"type": "regex", "pattern": "a+"}, AnswerForm("regex", "a+")),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"type": "null"}}},
            AnswerForm("schema", '{"type": "null"}'),
        ),
    ],
)
def test_forms_are_read(given: Any, form: AnswerForm | None) -> None:
    assert read_form(Fields({"response_format": given})) == form


def test_without_its_package_a_form_is_refused_by_name(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ApiError, match="pip install llguidance"):
        Forms(model.tokenizer).constraint(AnswerForm("regex", "a"))


@pytest.mark.parametrize("seed", range(3))
def test_guesses_change_nothing_of_an_answer_in_a_form(model: Model, session: Session, seed: int) -> None:
    form = AnswerForm("regex", "(Paris is big[.] ){6}[a-z]{9}")
    assert written(model, session, form, seed, guess=True) == written(model, session, form, seed)
