"""Form that a reply must have: a JSON schema, a regular expression, or a grammar.

This module imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from app.documents.text_file import read_text_file
from app.program import exit_codes, paths
from app.program.refusals import Refusal
from app.text.record import record

MAX_FORM_CHARS = 1 << 16
"""Limit on a schema, an expression or a grammar."""
SCHEMA = "schema"
REGEX = "regex"
GRAMMAR = "grammar"
ANY_OBJECT = '{"type":"object"}'


class FormError(Refusal):
    """A form cannot be used. The message starts with the name of the form."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} {reason}", exit_codes.USAGE)
        self.name = name


@record
class ToolSchema:
    """Rule of a grammar for the arguments of a tool, by a JSON schema."""

    rule: str
    """Name of the rule."""
    tool: str
    """Name of the tool."""
    text: str
    """Schema as JSON."""
    fallback: str
    """Schema to use if the first one cannot be enforced."""


@record
class AnswerForm:
    """Form that a reply must have."""

    syntax: str
    """``schema``, ``regex``, or ``grammar``: GBNF of llama.cpp, or Lark of llguidance."""
    text: str
    """The schema, expression or grammar."""
    name: str
    """Name for people, such as a file or a field of a request."""
    call_rules: str = ""
    """Lark rules in which ``calls`` is a tool call that may replace the form; "" for none."""
    tool_schemas: tuple[ToolSchema, ...] = ()
    """Rules for arguments, used by ``call_rules``, or by ``text`` without them.

    As many of them as possible are enforced.
    """

    @property
    def with_fallbacks(self) -> AnswerForm:
        """The same form, with arguments of any type."""
        return replace(
            self,
            tool_schemas=tuple(
                replace(schema, text=schema.fallback) for schema in self.tool_schemas
            ),
        )


def make_form(syntax: str, text: str, name: str) -> AnswerForm:
    """Return a form of limited size.

    Raises:
        FormError: The text is empty or too long.
    """
    if not text.strip():
        raise FormError(name, "is empty")
    if len(text) > MAX_FORM_CHARS:
        raise FormError(name, f"is longer than {MAX_FORM_CHARS} characters")
    return AnswerForm(syntax, text, name)


def read_form_file(syntax: str, path_text: str, takes_pipe: bool = False) -> AnswerForm:
    """Return the form in a file.

    Args:
        takes_pipe: whether the file may be a pipe, whose end is waited for.

    Raises:
        Refusal: The file does not exist or is not a text.
    """
    path = Path(paths.expanded(path_text))
    return make_form(syntax, read_text_file(path, takes_pipe), path.name)
