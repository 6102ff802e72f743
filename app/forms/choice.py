"""Form of the chat's replies, which the user chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from app.forms.answer_form import SCHEMA, AnswerForm, read_form_file

if TYPE_CHECKING:
    from app.forms.constraint import FormConstraint, Forms
    from engine.tokenizer import Tokenizer

OFF = "off"
USAGE = "/schema FILE uses a JSON schema"


class FormChoice:
    """Form of replies, as ``--schema`` or ``/schema`` sets it. The engine thread asks for
    constraints.

    Attributes:
        form: The form; None for free text.
    """

    def __init__(self, form: AnswerForm | None = None) -> None:
        self.form = form
        self._forms: tuple[Tokenizer, Forms] | None = None

    def run_command(self, arguments: str) -> str:
        """Run the command ``/schema`` and return a line for the user.

        Raises:
            Refusal: The file cannot be used.
        """
        if not arguments:
            return f"{self.described() or 'answers in any form'}. {USAGE}"
        if arguments.strip().lower() == OFF:
            self.form = None
            return "answers in any form, from the next message on"

        from app.forms.constraint import check_form

        form = read_form_file(SCHEMA, arguments.strip())
        # Set before the check, so that a message sent meanwhile uses it.
        previous_form = self.form
        self.form = form
        try:
            notes = check_form(form)
        except BaseException:
            self.form = previous_form
            raise
        line = (
            f"{self.described()} from the next message on, without thinking (/schema off ends it)"
        )
        if notes:
            line += f"; not enforced: {', '.join(notes)}"
        return line

    def described(self) -> str:
        """Describe the form, as in "answers as city.json"; "" for free text."""
        if self.form is None:
            return ""
        return f"answers as {self.form.name}"

    def constraint(
        self,
        tokenizer: Tokenizer,
        prefix_ids: Iterable[int] = (),
        on_wait: Callable[[], object] = bool,
    ) -> FormConstraint | None:
        """Return a constraint for a reply; None for free text.

        Args:
            tokenizer: Tokenizer of the model.
            prefix_ids: Tokens of the beginning of a continued reply.
            on_wait: Called now and then during waits; its exceptions end them.

        Raises:
            FormError: The form cannot be used.
        """
        from app.forms.constraint import Forms

        form = self.form
        if form is None:
            self._forms = None  # This ends its process, too.
            return None
        if self._forms is None or self._forms[0] is not tokenizer:
            self._forms = (tokenizer, Forms(tokenizer))
        return self._forms[1].constraint(form, prefix_ids, on_wait)
