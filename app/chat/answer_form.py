"""The form that replies are to have: JSON by a schema, a regular expression, or a grammar; and who chose it.

Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from app.documents.text_file import read_text_file
from app.program import exit_codes, paths
from app.program.refusals import Refusal
from app.text.record import record

if TYPE_CHECKING:
    from app.chat.form_constraint import FormConstraint, Forms
    from engine.tokenizer import Tokenizer

MOST_FORM_CHARS = 1 << 16
"""Limit on a schema, an expression or a grammar."""
SCHEMA, REGEX, GRAMMAR = "schema", "regex", "grammar"
ANY_OBJECT = '{"type":"object"}'
OFF = "off"
USAGE = "/schema FILE takes a JSON schema"


class FormError(Refusal):
    """A form cannot be used: for people one line, which begins with its name."""

    def __init__(self, name: str, why: str, is_missing: bool = False) -> None:
        super().__init__(f"{name} {why}", exit_codes.UNSUPPORTED if is_missing else exit_codes.USAGE)
        self.name, self.is_missing = name, is_missing


@record
class AnswerForm:
    """Form that a reply must have."""

    kind: str
    """``schema``, ``regex``, or ``grammar``: GBNF as of llama.cpp, or Lark as of llguidance."""
    text: str
    name: str
    """Its name for people: a file, a field of a request."""


def bounded_form(kind: str, text: str, name: str) -> AnswerForm:
    """Return a form of bounded size. Raises FormError: it is empty or too long."""
    if not text.strip():
        raise FormError(name, "is empty")
    if len(text) > MOST_FORM_CHARS:
        raise FormError(name, f"is longer than {MOST_FORM_CHARS} characters")
    return AnswerForm(kind, text, name)


def read_form_file(kind: str, given: str) -> AnswerForm:
    """Return the form that a file holds. Raises Refusal: there is no such file, or it holds no text."""
    path = Path(paths.expanded(given))
    return bounded_form(kind, read_text_file(path), path.name)


class FormChoice:
    """The form of replies, as ``--schema`` or ``/schema`` chose it; the engine's thread asks for constraints."""

    def __init__(self, form: AnswerForm | None = None) -> None:
        self.form = form
        self._forms: tuple[Tokenizer, Forms] | None = None

    def obey(self, wanted: str) -> str:
        """Do what stands behind ``/schema``; returns the line to show. Raises Refusal: the file cannot be used."""
        if wanted.strip().lower() == OFF:
            self.form = None
            return "answers in any form, from the next message on"
        if not wanted:
            return f"{self.described() or 'answers in any form'}. {USAGE}"
        from app.chat.form_constraint import check_form

        form = read_form_file(SCHEMA, wanted.strip())
        check_form(form)
        self.form = form
        return f"{self.described()} from the next message on, without thinking (/schema off ends it)"

    def described(self) -> str:
        """Name the form: "answers as city.json"; "" for any."""
        return f"answers as {self.form.name}" if self.form is not None else ""

    def constraint(self, tokenizer: Tokenizer, begun: Iterable[int] = ()) -> FormConstraint | None:
        """Return a constraint behind the beginning of a reply, None for any form. Raises FormError: it is unusable."""
        from app.chat.form_constraint import Forms

        form = self.form
        if form is None:
            return None
        if self._forms is None or self._forms[0] is not tokenizer:
            self._forms = tokenizer, Forms(tokenizer)
        return self._forms[1].constraint(form, begun)
