"""Fields that ask for a form of the reply: a JSON schema, a regular expression or a grammar.

The clients of each server use other fields: ``response_format`` (OpenAI), ``text.format`` (OpenAI's
responses), ``grammar`` and ``json_schema`` (llama-server), ``grammar`` with a type (TGI),
``guided_...`` and ``structured_outputs`` (vLLM), ``regex`` and ``ebnf`` (SGLang), ``format``
(Ollama), ``output_format`` and ``output_config`` (Anthropic).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from app.forms.answer_form import (
    ANY_OBJECT,
    GRAMMAR,
    REGEX,
    SCHEMA,
    AnswerForm,
    FormError,
    make_form,
)
from app.server.api_error import ApiError, invalid, unsupported
from app.server.fields import Fields, is_valid_text

_TYPES = ("text", "json", "json_object", "json_schema", "regex", "grammar")
"""Types of ``response_format``; ``json`` is TGI's."""
_SCHEMA_FIELDS = ("json_schema", "guided_json", "response_schema", "output_schema")
_TEXT_FIELDS = {"guided_regex": REGEX, "regex": REGEX, "guided_grammar": GRAMMAR, "ebnf": GRAMMAR}
_UNSUPPORTED = ("structural_tag", "grammar_triggers", "grammar_lazy")
"""Fields for a form that begins somewhere within the reply."""


def read_form(fields: Fields) -> AnswerForm | None:
    """Read the form of the reply.

    Returns:
        The form; None for free text.

    Raises:
        ApiError: A field is wrong or not supported, or there is more than one form.
    """
    for name in _UNSUPPORTED:
        if fields.value(name) not in (None, False, "", [], {}):
            raise unsupported(fields.path(name), "is not supported")

    candidates = [read_format(fields.nested("response_format"))]
    for name in ("text", "output_config"):
        if isinstance(fields.value(name), dict):
            nested = fields.nested(name)
            assert nested is not None
            candidates.append(read_format(nested.nested("format"), is_flat=True))
    candidates += [
        read_format(fields.nested("output_format"), is_flat=True),
        _read_grammar(fields),
        *(_read_schema(fields, name) for name in _SCHEMA_FIELDS),
        *(_read_text(fields, name, syntax) for name, syntax in _TEXT_FIELDS.items()),
        _read_choice(fields, "guided_choice"),
        _read_structured_outputs(fields),
        _read_ollama_format(fields, "format"),
    ]

    forms = [form for form in candidates if form is not None]
    if len(forms) > 1:
        raise invalid(forms[1].name, f"and {forms[0].name} exclude each other")
    if forms:
        return forms[0]
    return None


def read_format(fields: Fields | None, is_flat: bool = False) -> AnswerForm | None:
    """Read a form from an object with a ``type``.

    Args:
        fields: Fields of the object; None if there is none.
        is_flat: Whether the schema is next to the type, as in ``/v1/responses``.

    Raises:
        ApiError: A field is wrong.
    """
    if fields is None:
        return None
    form_type = fields.text("type")
    if form_type in _UNSUPPORTED:
        raise unsupported(fields.path("type"), f"{form_type} is not supported")
    form_type = fields.required(
        fields.choice("type", *_TYPES), "type", f"one of {', '.join(_TYPES)}"
    )

    syntax = SCHEMA
    text = ""
    match form_type:
        case "json" | "json_object":
            text = _optional_schema(fields)
        case "json_schema":
            text = _named_schema(fields, is_flat)
        case "regex":
            syntax = REGEX
            text = _first_text(fields, ("pattern", "value", "regex"), "a regular expression")
        case "grammar":
            syntax = GRAMMAR
            text = _first_text(fields, ("grammar", "value"), "a grammar in GBNF or Lark")
    fields.ignore_rest()
    if not text:
        return None
    return _bounded(syntax, text, fields.object_path)


def _optional_schema(fields: Fields) -> str:
    """Return the schema next to the type, as llama-server and TGI accept it, or that of any
    object."""
    for name in ("schema", "value"):
        if fields.has(name):
            return _schema_text(fields, name)
    return ANY_OBJECT


def _first_text(fields: Fields, names: Sequence[str], expected: str) -> str:
    text = next((fields.text(name) for name in names if fields.has(name)), None)
    return fields.required(text or None, names[0], expected)


def _named_schema(fields: Fields, is_flat: bool) -> str:
    """Return a schema that has a name.

    Name and schema are next to the type or in an object of their own. Some clients send the schema
    itself as that object.
    """
    for name in ("json_schema", "value"):
        if is_flat or not isinstance(fields.value(name), dict):
            continue
        described = fields.nested(name)
        assert described is not None
        if not described.has("schema") and any(
            described.has(key) for key in ("type", "properties", "$ref")
        ):
            return json.dumps(fields.value(name))
        text = _described_schema(described)
        described.ignore_rest()
        return text

    if is_flat or fields.has("schema"):
        return _described_schema(fields)
    if fields.has("json_schema"):
        raise fields.wrong_value("json_schema", "an object with a schema")
    raise fields.missing_value("json_schema", "an object with a schema")


def _described_schema(fields: Fields) -> str:
    for name in ("name", "description"):
        fields.text(name)
    fields.flag("strict")  # Schemas are always strict here.
    if not fields.has("schema"):
        raise fields.missing_value("schema", "an object")
    return _schema_text(fields, "schema")


def _schema_text(fields: Fields, name: str) -> str:
    """Return a schema as JSON; some clients send it as a string."""
    value = fields.value(name)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return fields.text(name) or ""
    if not isinstance(value, dict):
        raise fields.wrong_value(name, "an object")
    return json.dumps(value)


def _read_schema(fields: Fields, name: str) -> AnswerForm | None:
    if fields.value(name) in (None, ""):
        return None
    return _bounded(SCHEMA, _schema_text(fields, name), fields.path(name))


def _read_text(fields: Fields, name: str, syntax: str) -> AnswerForm | None:
    text = fields.text(name)
    if not text:
        return None
    return _bounded(syntax, text, fields.path(name))


def _read_choice(fields: Fields, name: str) -> AnswerForm | None:
    """Read a list of texts, one of which the reply must be."""
    texts = fields.value(name)
    if texts in (None, []):
        return None
    are_texts = isinstance(texts, list) and all(
        isinstance(text, str) and text and is_valid_text(text) for text in texts
    )
    if not are_texts:
        raise fields.wrong_value(name, "a list of texts")
    choices = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    return _bounded(GRAMMAR, f"start: {choices}", fields.path(name))


def _read_grammar(fields: Fields) -> AnswerForm | None:
    """Read ``grammar``: a text, or TGI's object with a type."""
    if isinstance(fields.value("grammar"), dict):
        return read_format(fields.nested("grammar"))
    return _read_text(fields, "grammar", GRAMMAR)


def _read_structured_outputs(fields: Fields) -> AnswerForm | None:
    """Read vLLM's object. Other clients use the field as a flag without effect."""
    if not isinstance(fields.value("structured_outputs"), dict):
        return None
    outputs = fields.nested("structured_outputs")
    assert outputs is not None
    if outputs.has("structural_tag"):
        raise unsupported(outputs.path("structural_tag"), "is not supported")

    form = (
        _read_schema(outputs, "json")
        or _read_text(outputs, "regex", REGEX)
        or _read_choice(outputs, "choice")
        or _read_text(outputs, "grammar", GRAMMAR)
    )
    if form is None and outputs.flag("json_object"):
        form = _bounded(SCHEMA, ANY_OBJECT, outputs.path("json_object"))
    outputs.ignore_rest()
    return form


def _read_ollama_format(fields: Fields, name: str) -> AnswerForm | None:
    """Read Ollama's ``format``: ``json`` or a schema."""
    value = fields.value(name)
    if value in (None, ""):
        return None
    if value == "json":
        text = ANY_OBJECT
    elif isinstance(value, dict):
        text = json.dumps(value)
    else:
        raise fields.wrong_value(name, '"json" or a JSON schema')
    return _bounded(SCHEMA, text, fields.path(name))


def _bounded(syntax: str, text: str, path: str) -> AnswerForm:
    try:
        return make_form(syntax, text, path)
    except FormError as error:
        raise form_api_error(error) from None


def form_api_error(error: FormError) -> ApiError:
    """Return the refusal of a form that cannot be used."""
    return ApiError(str(error), param=str(error).partition(" ")[0], code="invalid_value")
