"""Compiles the forms of a model's replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from app.forms.answer_form import AnswerForm

if TYPE_CHECKING:
    from app.forms.constraint import FormConstraint, Forms
    from engine.tokenizer import Tokenizer


class FormCompiler:
    """Makes constraints for the replies of one model. Only the engine thread uses it.

    Its process stays while replies have forms.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._forms: Forms | None = None

    def constraint(
        self,
        form: AnswerForm | None,
        prefix_ids: Iterable[int] = (),
        on_wait: Callable[[], object] = bool,
    ) -> FormConstraint | None:
        """Return a constraint for a reply; None for free text.

        Args:
            prefix_ids: Tokens of the beginning of a continued reply.
            on_wait: Called now and then during waits; its exceptions end them.

        Raises:
            FormError: The form cannot be used.
        """
        if form is None:
            self._forms = None  # This ends its process, too.
            return None

        from app.forms.constraint import Forms

        if self._forms is None:
            self._forms = Forms(self._tokenizer)
        return self._forms.constraint(form, prefix_ids, on_wait)
