"""Which tokens go on with the form of a reply, as a process of its own says
(``app.forms.process``)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from app.forms.answer_form import AnswerForm, FormError
from app.forms.process import FormChannel, FormLimits, FormProcess, Waiting
from app.forms.sandbox import (
    FORCED,
    IS_ACCEPTING,
    IS_OVER,
    MASK,
    TAKE,
    ids_bytes,
    ids_of,
    pack_vocabulary,
)

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer


def check_form(form: AnswerForm, waiting: Waiting = bool) -> list[str]:
    """Refuse what no model can use, and return lines about what will not be followed.

    Args:
        waiting: called now and then while the form is compiled; what it raises ends that.

    Raises:
        FormError: it cannot be used.
    """
    process = FormProcess()
    try:
        channel = process.open(form.name, lambda text: [], waiting)
        channel.begin(form)
        channel.receive()
        channel.close()
        return channel.notes
    finally:
        process.close()


class Forms:
    """Makes constraints for one vocabulary. Used by the engine's thread alone."""

    def __init__(self, tokenizer: Tokenizer, limits: FormLimits | None = None) -> None:
        self._tokenizer = tokenizer
        self._limits = limits

    def constraint(
        self, form: AnswerForm, begun: Iterable[int] = (), waiting: Waiting = bool
    ) -> FormConstraint:
        """Return a constraint after the beginning of a reply.

        Args:
            waiting: called now and then while an answer is waited for, here and while the reply is
                written.

        Raises:
            FormError: as ``check_form`` does; never for what the parameters of a tool are to be.
            Exception: whatever ``waiting`` raises.
        """
        try:
            return self._constraint(form, begun, waiting)
        except FormError:
            if not form.schemas:
                raise
        constraint = self._constraint(form.with_fallbacks, begun, waiting)
        constraint.notes.append("parameters of all tools")
        return constraint

    def _constraint(
        self, form: AnswerForm, begun: Iterable[int], waiting: Waiting
    ) -> FormConstraint:
        tokenizer = self._tokenizer
        channel = self._process.open(
            form.name, lambda text: tokenizer.encode_text(text, after_special=False), waiting
        )
        try:
            channel.begin(form, list(begun))
            return FormConstraint(channel, tokenizer)
        except BaseException:
            channel.close()  # at once: the child may compute for long
            raise

    def close(self) -> None:
        """End the process; another form starts it again."""
        self._process.close()

    @cached_property
    def _process(self) -> FormProcess:
        tokenizer = self._tokenizer
        special = set(tokenizer.control_texts.values()) | set(tokenizer.end_ids)
        # 0xff begins no text: what has none cannot be taken for one.
        tokens = [
            b"\xff" + tokenizer.token_text(one).encode()
            if one in special
            else tokenizer.token_bytes(one) or b"\xff"
            for one in range(tokenizer.vocab_size)
        ]
        if tokenizer.eos_id is not None:
            eos = tokenizer.eos_id
        else:
            eos = min(tokenizer.end_ids, default=0)
        return FormProcess(
            pack_vocabulary(tokens, sorted(special), tokenizer.bos_id, eos), self._limits
        )


class FormConstraint:
    """How far one reply has come in its form. Every method raises FormError where the form cannot
    be used.

    The child says after each token what comes next, while the model computes; it is read when
    somebody asks for it.
    """

    def __init__(self, channel: FormChannel, tokenizer: Tokenizer) -> None:
        self._channel = channel
        self._n_vocab = tokenizer.vocab_size
        self.notes = channel.notes
        """Lines about what the form says and is not followed."""
        self._ends = np.array(sorted(tokenizer.end_ids), np.int64)
        self._flags: int | None = None
        self._has_next = False
        self._bits: bytes | None = None
        self._forced: list[int] = []
        self._n_accepted = 0
        """Of the forced tokens, those that have come and are not sent yet."""
        if not self.is_over:
            self.allowed()  # what is wrong with a form shows before anything is computed

    @property
    def is_over(self) -> bool:
        """Whether nothing but an end may follow."""
        return bool(self._read_flags() & IS_OVER)

    def forced(self) -> list[int]:
        """Return the tokens that must come next, as the model's tokenizer writes them; none where
        there is a choice."""
        self._read_next()
        return self._forced[self._n_accepted :]

    def allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each token whether it may come next."""
        if self._n_accepted:
            self._send(self._forced[: self._n_accepted])
        flags = self._read_next()
        if flags & IS_OVER:
            allowed = np.zeros(self._n_vocab, np.bool_)
        else:
            if self._bits is None:
                self._channel.send(MASK)
                _, self._bits = self._channel.receive()
            bits = np.frombuffer(self._bits, np.uint8)
            allowed = np.unpackbits(bits, count=self._n_vocab, bitorder="little").view(np.bool_)
        allowed[self._ends] = bool(flags & IS_ACCEPTING)
        if not allowed.any():
            raise self._channel.refused("cannot be used: no token of this model goes on with it")
        return allowed

    def accept(self, token_id: int) -> None:
        """The reply goes on with a token."""
        self._read_next()
        at = self._n_accepted
        if at + 1 < len(self._forced) and self._forced[at] == token_id:
            self._n_accepted += 1  # they are sent together
        else:
            self._send([*self._forced[:at], token_id])

    def close(self) -> None:
        """End the form and its child; nothing can be asked any more."""
        self._channel.close()

    def _send(self, ids: list[int]) -> None:
        self._channel.send(TAKE, ids_bytes(ids))
        self._flags = None
        self._bits = None
        self._has_next = False
        self._forced = []
        self._n_accepted = 0

    def _read_flags(self) -> int:
        if self._flags is None:
            _, payload = self._channel.receive()
            self._flags = payload[0]
        return self._flags

    def _read_next(self) -> int:
        flags = self._read_flags()
        if not self._has_next and not flags & IS_OVER:
            kind, payload = self._channel.receive()
            if kind == FORCED:
                self._forced = ids_of(payload)
            else:
                self._bits = payload
        self._has_next = True
        return flags
