"""The form of a reply as a request asks for it: OpenAI's ``response_format``, llama-server's ``grammar``, or a call."""

import json
from dataclasses import replace

from app.chat.answer_form import ANY_OBJECT, GRAMMAR, REGEX, SCHEMA, AnswerForm, FormError, bounded_form
from app.chat.form_sandbox import AS_USUAL, usable_schema
from app.server.api_error import ApiError, invalid
from app.server.fields import Fields
from app.server.messages import Tools
from engine.prompt.tools.formats import CallFormat, Part, Pattern
from engine.tokenizer import Tokenizer

PLACE, GRAMMAR_PLACE = "response_format", "grammar"


def read_form(fields: Fields) -> AnswerForm | None:
    """Read ``response_format`` and ``grammar``; None where any reply will do.

    Raises:
        ApiError: one is wrong, or both are given.
    """
    form, grammar = read_format(fields.table(PLACE)), fields.text(GRAMMAR_PLACE)
    if not grammar:
        return form
    if form is not None:
        raise invalid(GRAMMAR_PLACE, f"and {PLACE} are both given")
    return _bounded(GRAMMAR, grammar, GRAMMAR_PLACE)


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
    kinds = "text", "json_object", "json_schema", "regex", "grammar"
    kind, text = form.required(form.word("type", *kinds), "type", f"one of {', '.join(kinds)}"), ""
    if kind == "json_object":
        # As llama-server takes it: with a schema next to the type.
        text = _schema(form, is_flat=True) if form.has("schema") else ANY_OBJECT
    elif kind == "json_schema":
        text = _schema(form, is_flat)
    elif kind == "regex":
        text = form.required(form.text("pattern") or None, "pattern", "a regular expression")
    elif kind == "grammar":
        text = form.required(form.text("grammar") or None, "grammar", "a grammar in GBNF or Lark")
    form.ignore_rest()
    return _bounded(kind if kind in (REGEX, GRAMMAR) else SCHEMA, text, form.where) if text else None


def read_json_form(fields: Fields, name: str) -> AnswerForm | None:
    """Read Ollama's ``format``: ``json``, or a schema; None where any reply will do. Raises ApiError: it is wrong."""
    given = fields.any(name)
    if given in (None, ""):
        return None
    if given != "json" and not isinstance(given, dict):
        raise fields.wrong(name, '"json" or a JSON schema')
    return _bounded(SCHEMA, ANY_OBJECT if given == "json" else json.dumps(given), fields.place(name))


def api_error(error: FormError) -> ApiError:
    """Return what a client is told about a form that cannot be used."""
    return ApiError(str(error), param=str(error).partition(" ")[0], code="invalid_value")


def _bounded(kind: str, text: str, place: str) -> AnswerForm:
    try:
        return bounded_form(kind, text, place)
    except FormError as error:
        raise api_error(error) from None


def _schema(form: Fields, is_flat: bool) -> str:
    described = form
    if not is_flat:
        described = form.required(form.table("json_schema"), "json_schema", "an object with a schema")
    described.required(described.table("schema"), "schema", "an object")
    for name in ("name", "description"):
        described.text(name)
    described.flag("strict")  # it always is
    if not is_flat:
        described.ignore_rest()
    return json.dumps(described.any("schema"))


def reply_form(
    tokenizer: Tokenizer, form: AnswerForm | None, tools: Tools | None, how: CallFormat | None
) -> AnswerForm | None:
    """Return the form of a reply, None for any: a call that must be made; else the form, or calls instead of it.

    Args:
        tokenizer: of the model; control tokens are in the grammar by their ids.
        how: the format of calls; None without tools.
    """
    if tools is None or how is None:
        return form
    if tools.must:
        return call_form(tokenizer, tools, how)
    return replace(form, instead=_call_rules(tokenizer, tools, how)) if form is not None else None


def call_form(tokenizer: Tokenizer, tools: Tools, how: CallFormat) -> AnswerForm:
    """Return the form of a call that must be made."""
    return AnswerForm(GRAMMAR, f"start: calls\n{_call_rules(tokenizer, tools, how)}", "tools")


def _call_rules(tokenizer: Tokenizer, tools: Tools, how: CallFormat) -> str:
    """Return rules of which ``calls`` is a call, or several where a reply may have them and the format ends each."""
    rules: list[str] = []
    functions = [tool["function"] for tool in tools.items if not tools.must or tool["function"]["name"] in tools.must]
    calls = []
    for one in functions:
        frame = how.frame(one["name"], {"type": "object", **one["parameters"]})  # an object, whatever it says
        calls.append(" ".join(_written(tokenizer, part, rules) for part in frame))
    more = '("\\n" call)*' if how.closing and not tools.takes_one else ""
    return "\n".join([f"calls: call {more}", f"call: {' | '.join(calls)}", *rules])


def _written(tokenizer: Tokenizer, part: Part, rules: list[str]) -> str:
    if isinstance(part, str):
        control = tokenizer.control_texts
        return " ".join(
            f"<[{one.token_id}]>" if one.text in control else json.dumps(one.text)
            for one in tokenizer.split(part, special=True)
        )
    if isinstance(part, Pattern):
        rules.append(f"P{len(rules)}: /{part.expression}/")
        return f"P{len(rules) - 1}"
    schema = usable_schema(part.schema)
    schema = {**schema, "x-guidance": AS_USUAL} if isinstance(schema, dict) else schema
    rules.append(f"v{len(rules)}: %json {json.dumps(schema)}")
    return f"v{len(rules) - 1}"
