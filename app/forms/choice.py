"""The form that the chat's replies are to have now, and who chose it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from app.forms.answer_form import SCHEMA, AnswerForm, read_form_file

if TYPE_CHECKING:
    from app.forms.constraint import FormConstraint, Forms
    from engine.tokenizer import Tokenizer

OFF = "off"
USAGE = "/schema FILE takes a JSON schema"


class FormChoice:
    """The form of replies, as ``--schema`` or ``/schema`` chose it; the engine's thread asks for
    constraints."""

    def __init__(self, form: AnswerForm | None = None) -> None:
        self.form = form
        self._forms: tuple[Tokenizer, Forms] | None = None

    def obey(self, wanted: str) -> str:
        """Do what comes after ``/schema``; returns the line to show.

        Raises Refusal: the file cannot be used.
        """
        if wanted.strip().lower() == OFF:
            self.form = None
            return "answers in any form, from the next message on"
        if not wanted:
            return f"{self.described() or 'answers in any form'}. {USAGE}"
        from app.forms.constraint import check_form

        form = read_form_file(SCHEMA, wanted.strip())
        # at once: a message that is sent meanwhile is to have it
        before = self.form
        self.form = form
        try:
            notes = check_form(form)
        except BaseException:
            self.form = before
            raise
        if notes:
            ignored = f"; not followed: {', '.join(notes)}"
        else:
            ignored = ""
        return (
            f"{self.described()} from the next message on, "
            f"without thinking (/schema off ends it){ignored}"
        )

    def described(self) -> str:
        """Name the form: "answers as city.json"; "" for any."""
        if self.form is not None:
            return f"answers as {self.form.name}"
        return ""

    def constraint(
        self, tokenizer: Tokenizer, begun: Iterable[int] = (), waiting: Callable[[], object] = bool
    ) -> FormConstraint | None:
        """Return a constraint after the beginning of a reply, None for any form.

        Args:
            waiting: called now and then while an answer is waited for; what it raises ends that.

        Raises:
            FormError: the form cannot be used.
        """
        from app.forms.constraint import Forms

        form = self.form
        if form is None:
            self._forms = None  # and its process
            return None
        if self._forms is None or self._forms[0] is not tokenizer:
            self._forms = tokenizer, Forms(tokenizer)
        return self._forms[1].constraint(form, begun, waiting)
