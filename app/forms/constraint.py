"""Constraint that keeps a reply in its form. A process of its own computes it
(``app.forms.process``)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from app.forms.answer_form import AnswerForm, FormError
from app.forms.process import FormChannel, FormLimits, FormProcess, OnWait
from app.forms.sandbox import (
    FORCED,
    IS_ACCEPTING,
    IS_OVER,
    MASK,
    TAKE,
    pack_ids,
    pack_vocabulary,
    unpack_ids,
)

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer


def check_form(form: AnswerForm, on_wait: OnWait = bool) -> list[str]:
    """Check a form without a model, and return lines about what cannot be enforced.

    Args:
        form: The form.
        on_wait: Called now and then while the form is compiled; its exceptions end that.

    Raises:
        FormError: The form cannot be used.
    """
    process = FormProcess()
    try:
        channel = process.open(form.name, lambda text: [], on_wait)
        channel.start(form)
        channel.receive()
        channel.close()
        return channel.notes
    finally:
        process.close()


class Forms:
    """Makes constraints for one vocabulary, in the engine thread."""

    def __init__(self, tokenizer: Tokenizer, limits: FormLimits | None = None) -> None:
        self._tokenizer = tokenizer
        self._limits = limits

    def constraint(
        self, form: AnswerForm, prefix_ids: Iterable[int] = (), on_wait: OnWait = bool
    ) -> FormConstraint:
        """Return a constraint for a reply.

        Args:
            form: The form.
            prefix_ids: Tokens of the beginning of a continued reply.
            on_wait: Called now and then during waits, here and while the reply is written.

        Raises:
            FormError: The form cannot be used. Schemas of tools never are the reason.
            Exception: Any exception of ``on_wait``.
        """
        try:
            return self._constraint(form, prefix_ids, on_wait)
        except FormError:
            if not form.tool_schemas:
                raise
        constraint = self._constraint(form.with_fallbacks, prefix_ids, on_wait)
        constraint.notes.append("parameters of all tools")
        return constraint

    def _constraint(
        self, form: AnswerForm, prefix_ids: Iterable[int], on_wait: OnWait
    ) -> FormConstraint:
        tokenizer = self._tokenizer
        channel = self._process.open(
            form.name, lambda text: tokenizer.encode_text(text, after_special=False), on_wait
        )
        try:
            channel.start(form, list(prefix_ids))
            return FormConstraint(channel, tokenizer)
        except BaseException:
            channel.close()  # At once, because the child may compute for long.
            raise

    def close(self) -> None:
        """End the process; another form starts it again."""
        self._process.close()

    @cached_property
    def _process(self) -> FormProcess:
        tokenizer = self._tokenizer
        special_ids = set(tokenizer.control_texts.values()) | set(tokenizer.end_ids)
        # No text begins with 0xff, so these tokens never match.
        tokens = [
            b"\xff" + tokenizer.token_text(token_id).encode()
            if token_id in special_ids
            else tokenizer.token_bytes(token_id) or b"\xff"
            for token_id in range(tokenizer.vocab_size)
        ]
        eos_id = tokenizer.eos_id
        if eos_id is None:
            eos_id = min(tokenizer.end_ids, default=0)
        vocabulary = pack_vocabulary(tokens, sorted(special_ids), tokenizer.bos_id, eos_id)
        return FormProcess(vocabulary, self._limits)


class FormConstraint:
    """State of one reply within its form. All methods raise FormError if the form cannot be used.

    After each token, the child sends what may come next while the model computes. It is read when
    it is needed.

    Attributes:
        notes: Lines about parts of the form that are not enforced.
    """

    def __init__(self, channel: FormChannel, tokenizer: Tokenizer) -> None:
        self._channel = channel
        self._n_vocab = tokenizer.vocab_size
        self.notes = channel.notes
        self._end_ids = np.array(sorted(tokenizer.end_ids), np.int64)
        self._flags: int | None = None
        self._has_next = False
        self._mask_bits: bytes | None = None
        self._forced: list[int] = []
        self._n_accepted = 0
        """Number of forced tokens that were accepted and are not sent to the child yet."""
        if not self.is_over:
            self.allowed()  # Errors of the form occur before anything is computed.

    @property
    def is_over(self) -> bool:
        """Whether only an end token may follow."""
        return bool(self._read_flags() & IS_OVER)

    def forced(self) -> list[int]:
        """Return the tokens that must come next, as the tokenizer writes them; empty if there is a
        choice."""
        self._read_next()
        return self._forced[self._n_accepted :]

    def allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each token of the vocabulary whether it may come next."""
        if self._n_accepted:
            self._send(self._forced[: self._n_accepted])
        flags = self._read_next()
        if flags & IS_OVER:
            allowed = np.zeros(self._n_vocab, np.bool_)
        else:
            if self._mask_bits is None:
                self._channel.send(MASK)
                _, self._mask_bits = self._channel.receive()
            bits = np.frombuffer(self._mask_bits, np.uint8)
            allowed = np.unpackbits(bits, count=self._n_vocab, bitorder="little").view(np.bool_)
        allowed[self._end_ids] = bool(flags & IS_ACCEPTING)
        if not allowed.any():
            raise self._channel.refuse("cannot be used: no token of this model continues it")
        return allowed

    def accept(self, token_id: int) -> None:
        """Continue the reply with a token."""
        self._read_next()
        index = self._n_accepted
        is_expected = index + 1 < len(self._forced) and self._forced[index] == token_id
        if is_expected:
            self._n_accepted += 1  # Forced tokens are sent together.
        else:
            self._send([*self._forced[:index], token_id])

    def close(self) -> None:
        """End the child; no further methods can be called."""
        self._channel.close()

    def _send(self, ids: list[int]) -> None:
        self._channel.send(TAKE, pack_ids(ids))
        self._flags = None
        self._mask_bits = None
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
            message_type, payload = self._channel.receive()
            if message_type == FORCED:
                self._forced = unpack_ids(payload)
            else:
                self._mask_bits = payload
        self._has_next = True
        return flags
