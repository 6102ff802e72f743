"""The form of a reply as a request asks for it, in the words of any server.

It may also be a call that must be made.
"""

import json
from dataclasses import replace

from app.forms.answer_form import (
    ANY_OBJECT,
    GRAMMAR,
    REGEX,
    SCHEMA,
    AnswerForm,
    FormError,
    ToolSchema,
    bounded_form,
)
from app.server.api_error import ApiError, invalid, unsupported
from app.server.fields import Fields, is_whole_text
from app.server.message_fields import Tools
from engine.prompt.tools.formats import CallFormat, Pattern
from engine.tokenizer import Tokenizer

_KINDS = ("text", "json", "json_object", "json_schema", "regex", "grammar")
"""Types of ``response_format``, ``json`` being TGI's."""
_SCHEMA_FIELDS = ("json_schema", "guided_json", "response_schema", "output_schema")
_TEXT_FIELDS = {"guided_regex": REGEX, "regex": REGEX, "guided_grammar": GRAMMAR, "ebnf": GRAMMAR}
_UNSUPPORTED = ("structural_tag", "grammar_triggers", "grammar_lazy")
"""Fields that ask for a form that begins somewhere within the answer."""


def read_form(fields: Fields) -> AnswerForm | None:
    """Read the form of the answer from a request.

    Clients of each server ask for it by other fields.

    These are ``response_format`` (OpenAI), ``text.format`` (OpenAI's responses), ``grammar`` and
    ``json_schema`` (llama-server), ``grammar`` with a type (TGI), ``guided_...`` and
    ``structured_outputs`` (vLLM), ``regex`` and ``ebnf`` (SGLang), ``format`` (Ollama),
    ``output_format`` and ``output_config`` (Anthropic).

    Returns:
        The form; None where any reply will do.

    Raises:
        ApiError: one is wrong, or not supported, or there are two.
    """
    for name in _UNSUPPORTED:
        if fields.any(name) not in (None, False, "", [], {}):
            raise unsupported(fields.place(name), "is not supported")
    nested = [
        fields.table(name) if isinstance(fields.any(name), dict) else None
        for name in ("text", "output_config")
    ]
    found = [
        read_format(fields.table("response_format")),
        *(
            read_format(table.table("format"), is_flat=True)
            for table in nested
            if table is not None
        ),
        read_format(fields.table("output_format"), is_flat=True),
        _read_grammar(fields),
        *(_read_schema(fields, name) for name in _SCHEMA_FIELDS),
        *(_read_text(fields, name, kind) for name, kind in _TEXT_FIELDS.items()),
        _read_choice(fields, "guided_choice"),
        _read_structured(fields),
        _read_json(fields, "format"),
    ]
    forms = [form for form in found if form is not None]
    if len(forms) > 1:
        raise invalid(forms[1].name, f"and {forms[0].name} are both given")
    if forms:
        return forms[0]
    return None


def read_format(form: Fields | None, is_flat: bool = False) -> AnswerForm | None:
    """Read an object with a ``type``.

    Args:
        form: the object; None for none.
        is_flat: whether the schema is next to the type, as in ``/v1/responses``.

    Raises:
        ApiError: it is wrong.
    """
    if form is None:
        return None
    kind = form.text("type")
    if kind in _UNSUPPORTED:
        raise unsupported(form.place("type"), f"{kind} is not supported")
    kind = form.required(form.word("type", *_KINDS), "type", f"one of {', '.join(_KINDS)}")
    text = ""
    if kind in ("json", "json_object"):
        # As llama-server and TGI take it: with a schema next to the type.
        text = next(
            (_schema(form, name) for name in ("schema", "value") if form.has(name)), ANY_OBJECT
        )
    elif kind == "json_schema":
        text = _described_schema(form, is_flat)
    elif kind == "regex":
        text = _first_text(form, ("pattern", "value", "regex"), "a regular expression")
    elif kind == "grammar":
        text = _first_text(form, ("grammar", "value"), "a grammar in GBNF or Lark")
    form.ignore_rest()
    if text:
        return _bounded(kind if kind in (REGEX, GRAMMAR) else SCHEMA, text, form.where)
    return None


def _first_text(form: Fields, names: tuple[str, ...], what: str) -> str:
    text = next((form.text(name) for name in names if form.has(name)), None)
    return form.required(text or None, names[0], what)


def _described_schema(form: Fields, is_flat: bool) -> str:
    """Return the schema of a form that has a name.

    It is next to the type, in an object of its own, or that object itself.
    """
    for name in ("json_schema", "value"):
        if not is_flat and form.has(name) and isinstance(form.any(name), dict):
            described = form.table(name)
            assert described is not None
            if not described.has("schema") and any(
                described.has(key) for key in ("type", "properties", "$ref")
            ):
                return json.dumps(form.any(name))
            text = _named_schema(described)
            described.ignore_rest()
            return text
    if is_flat or form.has("schema"):
        return _named_schema(form)
    if form.has("json_schema"):
        raise form.wrong("json_schema", "an object with a schema")
    raise form.missing("json_schema", "an object with a schema")


def _named_schema(described: Fields) -> str:
    for name in ("name", "description"):
        described.text(name)
    described.flag("strict")  # it always is
    if not described.has("schema"):
        raise described.missing("schema", "an object")
    return _schema(described, "schema")


def _schema(fields: Fields, name: str) -> str:
    """Return a schema as JSON, which some clients send as text."""
    given = fields.any(name)
    if isinstance(given, str) and given.lstrip().startswith("{"):
        return fields.text(name) or ""
    if not isinstance(given, dict):
        raise fields.wrong(name, "an object")
    return json.dumps(given)


def _read_schema(fields: Fields, name: str) -> AnswerForm | None:
    if fields.any(name) not in (None, ""):
        return _bounded(SCHEMA, _schema(fields, name), fields.place(name))
    return None


def _read_text(fields: Fields, name: str, kind: str) -> AnswerForm | None:
    text = fields.text(name)
    if text:
        return _bounded(kind, text, fields.place(name))
    return None


def _read_choice(fields: Fields, name: str) -> AnswerForm | None:
    """Read a list of texts, of which the answer is to be one."""
    texts = fields.any(name)
    if texts in (None, []):
        return None
    if not isinstance(texts, list) or not all(
        isinstance(text, str) and text and is_whole_text(text) for text in texts
    ):
        raise fields.wrong(name, "a list of texts")
    choices = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    return _bounded(GRAMMAR, f"start: {choices}", fields.place(name))


def _read_grammar(fields: Fields) -> AnswerForm | None:
    """Read ``grammar``: a text, or an object with a type, as TGI has it."""
    if isinstance(fields.any("grammar"), dict):
        return read_format(fields.table("grammar"))
    return _read_text(fields, "grammar", GRAMMAR)


def _read_structured(fields: Fields) -> AnswerForm | None:
    """Read vLLM's object; elsewhere the field only says that there is a form."""
    if not isinstance(fields.any("structured_outputs"), dict):
        return None
    table = fields.table("structured_outputs")
    assert table is not None
    if table.has("structural_tag"):
        raise unsupported(table.place("structural_tag"), "is not supported")
    form = (
        _read_schema(table, "json")
        or _read_text(table, "regex", REGEX)
        or _read_choice(table, "choice")
        or _read_text(table, "grammar", GRAMMAR)
    )
    if form is None and table.flag("json_object"):
        form = _bounded(SCHEMA, ANY_OBJECT, table.place("json_object"))
    table.ignore_rest()
    return form


def _read_json(fields: Fields, name: str) -> AnswerForm | None:
    """Read Ollama's ``format``: ``json``, or a schema."""
    given = fields.any(name)
    if given in (None, ""):
        return None
    if given != "json" and not isinstance(given, dict):
        raise fields.wrong(name, '"json" or a JSON schema')
    return _bounded(
        SCHEMA, ANY_OBJECT if given == "json" else json.dumps(given), fields.place(name)
    )


def api_error(error: FormError) -> ApiError:
    """Return what a client is told about a form that cannot be used."""
    return ApiError(str(error), param=str(error).partition(" ")[0], code="invalid_value")


def _bounded(kind: str, text: str, place: str) -> AnswerForm:
    try:
        return bounded_form(kind, text, place)
    except FormError as error:
        raise api_error(error) from None


def reply_form(
    tokenizer: Tokenizer, form: AnswerForm | None, tools: Tools | None, how: CallFormat | None
) -> AnswerForm | None:
    """Return the form of a reply, None for any: a call that must be made; else the form, or calls
    instead of it.

    Args:
        tokenizer: of the model; control tokens are in the grammar by their ids.
        how: the format of calls; None without tools.
    """
    if tools is None or how is None:
        return form
    if tools.must:
        return call_form(tokenizer, tools, how)
    if form is None:
        return None
    rules, schemas = _call_rules(tokenizer, tools, how)
    return replace(form, instead=rules, schemas=schemas)


def call_form(tokenizer: Tokenizer, tools: Tools, how: CallFormat) -> AnswerForm:
    """Return the form of a call that must be made."""
    rules, schemas = _call_rules(tokenizer, tools, how)
    return AnswerForm(GRAMMAR, f"start: calls\n{rules}", "tools", schemas=schemas)


def _call_rules(
    tokenizer: Tokenizer, tools: Tools, how: CallFormat
) -> tuple[str, tuple[ToolSchema, ...]]:
    """Return rules and schemas of which ``calls`` is a call.

    It is several where a reply may have them and the format ends each.
    """
    rules: list[str] = []
    schemas: list[ToolSchema] = []
    functions = [
        tool["function"]
        for tool in tools.items
        if not tools.must or tool["function"]["name"] in tools.must
    ]
    calls = []
    for function in functions:
        name = function["name"]
        # an object, whatever it says
        frame = how.frame(name, {**function["parameters"], "type": "object"})
        parts = []
        for part in frame:
            if isinstance(part, str):
                parts.append(_literal(tokenizer, part))
            elif isinstance(part, Pattern):
                parts.append(f"P{len(rules)}")
                rules.append(f"P{len(rules)}: /{part.expression}/")
            else:
                parts.append(f"v{len(schemas)}")
                texts = json.dumps(part.schema), json.dumps(part.fallback)
                schemas.append(ToolSchema(f"v{len(schemas)}", name, *texts))
        calls.append(" ".join(parts))
    if how.closing and not tools.takes_one:
        more = '("\\n" call)*'
    else:
        more = ""
    text = "\n".join([f"calls: call {more}", f"call: {' | '.join(calls)}", *rules])
    return text, tuple(schemas)


def _literal(tokenizer: Tokenizer, text: str) -> str:
    """Return a text as a grammar has it: control tokens by their ids."""
    control = tokenizer.control_texts
    return " ".join(
        f"<[{piece.token_id}]>" if piece.text in control else json.dumps(piece.text)
        for piece in tokenizer.split(text, special=True)
    )
