"""The grammar of a reply that must be a call of a tool, as llguidance reads it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from app.chat.answer_form import GRAMMAR, AnswerForm
from app.server.tools import Tools
from engine.prompt.tools.formats import CallFormat, Part, Pattern

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer

_AS_USUAL: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space as templates write it: the call is rendered with the tokens that it has."""


def call_form(tokenizer: Tokenizer, tools: Tools, how: CallFormat) -> AnswerForm:
    """Return the form of one call of any tool that must be called.

    Args:
        tokenizer: of the model; control tokens stand in the grammar by their ids.
    """
    rules: list[str] = []
    functions = [tool["function"] for tool in tools.items if tool["function"]["name"] in tools.must]
    calls = [
        " ".join(_written(tokenizer, part, rules) for part in how.frame(one["name"], one["parameters"]))
        for one in functions
    ]
    return AnswerForm(GRAMMAR, "\n".join([f"start: {' | '.join(calls)}", *rules]), "tools")


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
    schema = {**part.schema, "x-guidance": _AS_USUAL} if isinstance(part.schema, dict) else part.schema
    rules.append(f"v{len(rules)}: %json {json.dumps(schema)}")
    return f"v{len(rules) - 1}"
