"""The form that replies are to have: JSON by a schema, a regular expression, or a grammar.

Imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from app.documents.text_file import read_text_file
from app.program import exit_codes, paths
from app.program.refusals import Refusal
from app.text.record import record

MOST_FORM_CHARS = 1 << 16
"""Limit on a schema, an expression or a grammar."""
SCHEMA = "schema"
REGEX = "regex"
GRAMMAR = "grammar"
ANY_OBJECT = '{"type":"object"}'


class FormError(Refusal):
    """A form cannot be used: for people one line, which begins with its name."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} {why}", exit_codes.USAGE)
        self.name = name


@record
class ToolSchema:
    """Rule of a grammar for what a call of a tool says, by a JSON schema."""

    rule: str
    """Name of the rule."""
    tool: str
    """Name of the tool."""
    text: str
    """Schema as JSON."""
    fallback: str
    """Schema in place of one that cannot be followed."""


@record
class AnswerForm:
    """Form that a reply must have."""

    kind: str
    """``schema``, ``regex``, or ``grammar``: GBNF as of llama.cpp, or Lark as of llguidance."""
    text: str
    name: str
    """Its name for people: a file, a field of a request."""
    instead: str = ""
    """Rules in Lark, of which ``calls`` says what may come instead of the form; "" for nothing."""
    schemas: tuple[ToolSchema, ...] = ()
    """Further rules for ``instead``, or for ``text`` where that is empty.

    As many of them as possible are followed.
    """

    @property
    def with_fallbacks(self) -> AnswerForm:
        """The same form, in which calls of tools may say anything."""
        return replace(
            self, schemas=tuple(replace(schema, text=schema.fallback) for schema in self.schemas)
        )


def bounded_form(kind: str, text: str, name: str) -> AnswerForm:
    """Return a form of bounded size. Raises FormError: it is empty or too long."""
    if not text.strip():
        raise FormError(name, "is empty")
    if len(text) > MOST_FORM_CHARS:
        raise FormError(name, f"is longer than {MOST_FORM_CHARS} characters")
    return AnswerForm(kind, text, name)


def read_form_file(kind: str, given: str) -> AnswerForm:
    """Return the form that a file holds.

    Raises Refusal: there is no such file, or it holds no text.
    """
    path = Path(paths.expanded(given))
    return bounded_form(kind, read_text_file(path), path.name)
