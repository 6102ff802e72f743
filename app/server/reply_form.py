"""Form of a reply that may or must contain tool calls."""

from __future__ import annotations

import json
from dataclasses import replace

from app.forms.answer_form import GRAMMAR, AnswerForm, ToolSchema
from app.server.message_fields import Tools
from engine.prompt.tools.formats import CallFormat, Pattern
from engine.tokenizer import Tokenizer


def reply_form(
    tokenizer: Tokenizer,
    form: AnswerForm | None,
    tools: Tools | None,
    call_format: CallFormat | None,
) -> AnswerForm | None:
    """Return the form of a reply.

    It is a call if one must be made, otherwise the requested form or calls instead of it.

    Args:
        tokenizer: Tokenizer of the model.
        form: Requested form; None for free text.
        tools: Tools of the request.
        call_format: Model's format of calls; None if the reply may have no calls.

    Returns:
        The form; None for free text.
    """
    if tools is None or call_format is None:
        return form
    if tools.required_names:
        return call_form(tokenizer, tools, call_format)
    if form is None:
        return None
    rules, schemas = _call_rules(tokenizer, tools, call_format)
    return replace(form, call_rules=rules, tool_schemas=schemas)


def call_form(tokenizer: Tokenizer, tools: Tools, call_format: CallFormat) -> AnswerForm:
    """Return the form of a reply that must be a call."""
    rules, schemas = _call_rules(tokenizer, tools, call_format)
    return AnswerForm(GRAMMAR, f"start: calls\n{rules}", "tools", tool_schemas=schemas)


def _call_rules(
    tokenizer: Tokenizer, tools: Tools, call_format: CallFormat
) -> tuple[str, tuple[ToolSchema, ...]]:
    """Return Lark rules, in which ``calls`` is a call or several, and the schemas of arguments."""
    functions = [
        definition["function"]
        for definition in tools.definitions
        if not tools.required_names or definition["function"]["name"] in tools.required_names
    ]
    pattern_rules: list[str] = []
    schemas: list[ToolSchema] = []
    calls = []
    for function in functions:
        name = function["name"]
        # Arguments are an object, whatever the schema says.
        frame = call_format.frame(name, {**function["parameters"], "type": "object"})
        symbols = []
        for piece in frame:
            if isinstance(piece, str):
                symbols.append(_literal(tokenizer, piece))
            elif isinstance(piece, Pattern):
                symbol = f"P{len(pattern_rules)}"
                symbols.append(symbol)
                pattern_rules.append(f"{symbol}: /{piece.expression}/")
            else:
                symbol = f"v{len(schemas)}"
                symbols.append(symbol)
                schemas.append(
                    ToolSchema(symbol, name, json.dumps(piece.schema), json.dumps(piece.fallback))
                )
        calls.append(" ".join(symbols))

    further_calls = ""
    if call_format.closing and not tools.single_call:
        further_calls = '("\\n" call)*'
    rules = [f"calls: call {further_calls}", f"call: {' | '.join(calls)}", *pattern_rules]
    return "\n".join(rules), tuple(schemas)


def _literal(tokenizer: Tokenizer, text: str) -> str:
    """Return a text as symbols of a grammar, with control tokens as their ids."""
    control_texts = tokenizer.control_texts
    return " ".join(
        f"<[{piece.token_id}]>" if piece.text in control_texts else json.dumps(piece.text)
        for piece in tokenizer.split(text, special=True)
    )
