"""Tests of answers in a form by the bundled model: every answer matches its form."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from app.backend.engine_link import EngineLink
from app.backend.local.model import LocalModel, ReplyPrefix, TurnPrompt
from app.backend.local.turn import LocalTurn
from app.backend.options import ChatOptions
from app.conversations.session_options import SessionOptions
from app.forms.answer_form import (
    GRAMMAR,
    MAX_FORM_CHARS,
    REGEX,
    SCHEMA,
    AnswerForm,
    FormError,
    make_form,
    read_form_file,
)
from app.forms.compiler import FormCompiler
from app.forms.constraint import Forms, check_form
from app.program.bundled_model import starter_file
from app.program.refusals import Refusal
from app.program.settings import built_in_settings
from engine import Model, Sampling, Session
from engine.sampling.constraint import Constraint
from tests.programs.form_validity import N_CTX, SCHEMAS, answers, follows, random_models

pytestmark = pytest.mark.slow

WriteAnswer = Callable[..., str]
"""Function that writes an answer in a form with the bundled model and a seed."""

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


@pytest.fixture(scope="module")
def forms(model: Model) -> Iterator[Forms]:
    all_forms = Forms(model.tokenizer)
    yield all_forms
    all_forms.close()


GBNF = """root ::= city ", " year "." # as of llama.cpp
city ::= "Paris" | [R-S] "om\\u0065"
year ::= [0-9]{4}
"""
LARK = """start: CITY ", " YEAR "."
CITY: "Paris" | /[R-S]om/ "e"
YEAR: /[0-9]{4}/
"""


def form_of(syntax: str, text: str) -> AnswerForm:
    return AnswerForm(syntax, text, "response_format")


class SingleTokens:
    """Constraint that gives forced tokens one at a time."""

    def __init__(self, constraint: Constraint, is_free: bool = False) -> None:
        self._constraint = constraint
        self._is_free = is_free

    def __getattr__(self, name: str) -> Any:
        return getattr(self._constraint, name)

    def forced(self) -> list[int]:
        return [] if self._is_free else self._constraint.forced()[:1]


@pytest.fixture(scope="module")
def write_answer(model: Model, session: Session, forms: Forms) -> WriteAnswer:
    def write(
        form: AnswerForm,
        seed: int,
        guess: bool = False,
        wrap: Any = None,
        session: Session = session,
        **options: Any,
    ) -> str:
        session.prefill(model.tokenizer.encode("The capital of France is"))
        # A high temperature tests forms with unlikely tokens.
        sampling = Sampling(temperature=3.0, top_p=1.0, min_p=0.0, top_k=0, seed=seed)
        constraint = forms.constraint(form)
        wrapped = wrap(constraint) if wrap is not None else constraint
        pieces = session.generate(
            sampling, **{"max_tokens": 300, **options}, guess=guess, constraint=wrapped
        )
        text = "".join(piece.text for piece in pieces)
        constraint.close()
        return text

    return write


def test_an_answer_matches_its_schema(write_answer: WriteAnswer, session: Session) -> None:
    answer = json.loads(write_answer(form_of(SCHEMA, json.dumps(CITY)), 0))
    assert session.finish_reason == "stop"
    assert list(answer) == ["city", "size", "n"]
    assert (answer["size"] in ("small", "large"), answer["n"], len(answer["city"]) <= 12) == (
        True,
        7,
        True,
    )


def test_an_answer_matches_its_expression(write_answer: WriteAnswer, session: Session) -> None:
    pattern = r"(Paris|Rome), [0-9]{4}é"
    assert re.fullmatch(pattern, write_answer(form_of(REGEX, pattern), 1))
    assert session.finish_reason == "stop"


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("form", "why"),
    [
        (form_of(REGEX, "(a"), "unclosed group"),
        (form_of(SCHEMA, '{"type":"nothing"}'), "cannot be used"),
        (form_of(SCHEMA, '{"type":"string","minLength":5,"maxLength":2}'), "cannot be used"),
        (form_of(REGEX, "(?=a)b"), "look-ahead"),
        (form_of(SCHEMA, '{"properties":{"a":' * 120 + "{}" + "}}" * 120), "recursion limit"),
        (form_of(SCHEMA, '{"$ref":"http://localhost/schema"}'), "$ref cannot be enforced"),
        (form_of(SCHEMA, '{"type":"array","uniqueItems":true}'), "uniqueItems cannot be enforced"),
        (
            form_of(SCHEMA, '{"oneOf":[{"type":"string"},{"const":"a"}]}'),
            "overlap is not supported (use anyOf)",
        ),
        (form_of(SCHEMA, "[1]"), "is not a JSON schema"),
        (form_of(SCHEMA, "{"), "is not JSON: Expecting property name"),
        (form_of(SCHEMA, "[" * 50_000), "nested too deeply"),
        (form_of(GRAMMAR, "root := x"), "Expected ::="),
        (form_of(GRAMMAR, 'x ::= "a"'), "No 'root' rule"),
        (form_of(GRAMMAR, "root ::= x"), "'x' not found"),
        (form_of(GRAMMAR, "root ::= " + "(" * 20_000), "nested too deeply"),
        (form_of(GRAMMAR, "start: missing"), "unknown name"),
        (form_of(GRAMMAR, "start: X\n%import /etc/passwd"), "Expected name"),
        (form_of(GRAMMAR, "start: " + "(" * 20_000), "too deeply nested"),
    ],
)
def test_invalid_forms_are_refused_in_one_line(forms: Forms, form: AnswerForm, why: str) -> None:
    with pytest.raises(FormError) as refused:
        forms.constraint(form)
    assert why in str(refused.value)
    assert str(refused.value).startswith("response_format ")


@pytest.mark.parametrize(
    ("form", "why"),
    [(form_of(REGEX, "(a"), "unclosed group"), (form_of(SCHEMA, "{"), "is not JSON")],
)
def test_a_form_is_checked_without_a_model(form: AnswerForm, why: str) -> None:
    with pytest.raises(FormError, match=f"response_format .*{why}"):
        check_form(form)


@pytest.mark.parametrize(
    "harmless",
    [
        {
            "format": "postcode",
            "x-order": 3,
            "nullable": True,
            "readOnly": True,
            "examples": [{"format": 1}],
        },
        {
            "$schema": "https://no one/schema",
            "$id": "urn:x",
            "$comment": "x",
            "title": "T",
            "default": {"$ref": "#/no"},
        },
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"a": {"format": "byte"}},
        },
        {
            "contentEncoding": "base64",
            "deprecated": True,
            "description": "y",
            "discriminator": {"propertyName": "p"},
        },
    ],
)
def test_annotations_in_a_schema_are_ignored(forms: Forms, harmless: dict[str, Any]) -> None:
    constraint = forms.constraint(
        form_of(SCHEMA, json.dumps({"type": "string", "maxLength": 3, **harmless}))
    )
    assert constraint.allowed().any()
    constraint.close()


def test_guessed_tokens_do_not_change_an_answer(write_answer: WriteAnswer) -> None:
    form = form_of(REGEX, "(Paris is big[.] ){6}[a-z]{9}")
    assert write_answer(form, 1, guess=True) == write_answer(form, 1)


@pytest.mark.parametrize(("grammar", "seed"), [(GBNF, 0), (LARK, 1)])
def test_an_answer_follows_its_grammar(
    write_answer: WriteAnswer, session: Session, grammar: str, seed: int
) -> None:
    assert re.fullmatch(
        r"(Paris|[R-S]ome), [0-9]{4}[.]", write_answer(form_of(GRAMMAR, grammar), seed)
    )
    assert session.finish_reason == "stop"


@pytest.mark.parametrize("guess", [False, True])
def test_forced_tokens_are_one_block_with_the_same_result(
    write_answer: WriteAnswer, session: Session, guess: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = form_of(REGEX, "(The capital of France is [a-z]{4} and very large[.] ){2}[a-z]{20}")
    sizes = []
    feed = session._feed_block

    def record_block(ids: list[int], *flags: bool) -> Any:
        sizes.append(len(ids))
        return feed(ids, *flags)

    single = write_answer(form, 5, guess, SingleTokens)
    logits = session._logits
    monkeypatch.setattr(session, "_feed_block", record_block)
    blockwise = write_answer(form, 5, guess)
    assert blockwise == single
    assert logits is not None
    assert session._logits is not None
    assert logits.tobytes() == session._logits.tobytes()
    assert sizes.count(4) >= 4


def test_forced_tokens_are_the_only_choice(write_answer: WriteAnswer) -> None:
    form = form_of(SCHEMA, '{"const":{"capital":"Paris","country":"France"}}')
    text = write_answer(form, 1)
    assert json.loads(text) == {"capital": "Paris", "country": "France"}
    assert text == write_answer(
        form, 1, wrap=lambda constraint: SingleTokens(constraint, is_free=True)
    )


def test_a_forced_text_ends_at_every_limit(
    write_answer: WriteAnswer, model: Model, session: Session
) -> None:
    form = form_of(REGEX, "Paris is the capital of France and a very large town indeed[.]")
    full_text = write_answer(form, 1)
    assert session.finish_reason == "stop"
    for n in (1, 2, 5):
        cut = write_answer(form, 1, max_tokens=n)
        assert (session.finish_reason, cut) == ("length", full_text[: len(cut)])
        assert 0 < len(cut) < len(full_text)
    assert write_answer(form, 1, stop=["capital"]) == "Paris is the "
    assert session.finish_reason == "stop"
    pieces = write_answer(form, 1, n_logprobs=1)
    assert pieces == full_text
    small_session = model.session(n_ctx=session.length - 3)
    assert full_text.startswith(write_answer(form, 1, session=small_session))
    assert small_session.finish_reason == "context"
    small_session.close()


def test_a_form_without_possible_tokens_is_refused(write_answer: WriteAnswer) -> None:
    form = form_of(SCHEMA, '{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}}')
    check_form(form)
    with pytest.raises(FormError, match="response_format cannot be used"):
        write_answer(form, 1)


def test_a_form_has_a_size_limit_and_a_name(tmp_path: Path) -> None:
    with pytest.raises(FormError, match="x is longer than"):
        make_form(REGEX, "a" * (MAX_FORM_CHARS + 1), "x")
    with pytest.raises(FormError, match="x is empty"):
        make_form(GRAMMAR, " ", "x")
    (tmp_path / "city.json").write_text(json.dumps(CITY))
    assert read_form_file(SCHEMA, str(tmp_path / "city.json")).name == "city.json"
    with pytest.raises(Refusal, match=r"other\.json"):
        read_form_file(SCHEMA, str(tmp_path / "other.json"))


def test_a_form_is_compiled_for_a_reply(model: Model) -> None:
    compiler = FormCompiler(model.tokenizer)
    assert compiler.constraint(None) is None
    constraint = compiler.constraint(AnswerForm(SCHEMA, json.dumps(CITY), "city.json"))
    assert constraint is not None
    assert model.tokenizer.decode(constraint.forced()) == '{"city": "'
    with pytest.raises(Refusal, match=r"city\.json cannot be used"):
        compiler.constraint(AnswerForm(SCHEMA, '{"type":"nothing"}', "city.json"))
    assert compiler.constraint(None) is None


def test_a_continued_reply_stays_in_its_form(model: Model, session: Session) -> None:
    """The start of the reply is checked against the form, and refused if it does not match."""
    chosen = SessionOptions(form=form_of(REGEX, "(Paris|Rome), [0-9]{4}"))
    options = ChatOptions(cast("Any", None), lambda chosen, model, mode: Sampling(seed=1))
    ids = model.tokenizer.encode("Rome, 1", bos=False)
    local = LocalModel(model, session, model.chat(), built_in_settings())
    prompt = TurnPrompt(model.tokenizer.encode("hi"), ReplyPrefix(ids, "Rome, 1", None))
    turn = LocalTurn(EngineLink(time.monotonic), local, prompt, options, chosen, lambda: None)
    assert turn.run()
    assert re.fullmatch("Rome, 1[0-9]{3}", turn.written()[1])
    chosen = SessionOptions(form=form_of(REGEX, "Paris"))
    with pytest.raises(FormError, match="response_format cannot be used"):
        LocalTurn(EngineLink(time.monotonic), local, prompt, options, chosen, lambda: None)


@pytest.mark.parametrize("model_name", ["starter", "llama", "qwen2"])
def test_answers_follow_their_schemas(
    model_name: str, model: Model, session: Session, tmp_path: Path
) -> None:
    """``python -m tests.programs.form_validity`` checks 200 answers for each schema."""
    if model_name == "starter":
        results = list(answers(model, session, 5))
    else:
        random_model = Model.open(
            next(path for path in random_models(tmp_path) if path.stem == model_name), threads=1
        )
        results = list(answers(random_model, random_model.session(n_ctx=N_CTX), 5))
        random_model.close()
    assert [(name, text) for name, text, is_right in results if not is_right] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flat", {"city": "Rome", "size": "small", "n": 7}),
        ("flat", {"city": "Rome", "size": "tiny", "n": 7, "is_capital": True}),
        ("flat", {"city": "Rome", "size": "small", "n": 7.0, "is_capital": True}),
        ("flat", {"city": "x" * 13, "size": "small", "n": 7, "is_capital": True}),
        ("nested", {"people": []}),
        ("nested", {"people": [{"name": "a", "age": 121}]}),
        ("nested", {"people": [{"name": "a", "sex": "f"}]}),
        ("choice", "abcd"),
        ("choice", [None] * 5),
        ("recursive", {"leaf": 1, "left": {"leaf": 1}}),
        ("unicode", []),
    ],
)
def test_the_check_of_answers_finds_errors(name: str, value: Any) -> None:
    assert not follows(value, SCHEMAS[name], SCHEMAS[name])


def test_a_vocabulary_with_leading_spaces_adds_none(tmp_path: Path) -> None:
    path = next(path for path in random_models(tmp_path) if path.stem == "llama")
    llama_model = Model.open(path, threads=1)
    forced = Forms(llama_model.tokenizer).constraint(form_of(REGEX, "[{]x y[}]")).forced()
    assert llama_model.tokenizer.stream().push(forced[0]) == "{"
    assert b"".join(llama_model.tokenizer.token_bytes(token) for token in forced) == b"{x y}"
    llama_model.close()
