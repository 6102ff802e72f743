"""Which tokens go on with the form of a reply.

That says llguidance, an optional package that is imported when a form is first asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from app.chat.answer_form import REGEX, SCHEMA, AnswerForm, FormError

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer

MOST_RULES = 1000
"""Limit on a GBNF grammar: its conversion takes time by their square."""
MOST_LEXER_STATES = 20_000
"""Limit on what a form may come to while a reply is written; each takes up to 2 kB."""
AS_USUAL: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space as most programs write it: a model that may write more of it may write nothing else."""
_INSTALL = "needs a package that is not installed (python -m pip install llguidance)"


def check_form(form: AnswerForm) -> None:
    """Refuse what no model can use. Raises FormError: it cannot be used, or the package is not installed."""
    grammar = _grammar(form)
    from llguidance import LLMatcher

    trouble = LLMatcher.validate_grammar(grammar, limits=_limits())
    if trouble and not trouble.startswith("WARNING"):
        raise _unusable(form.name, trouble)


class Forms:
    """Makes constraints for one vocabulary. Used by the engine's thread alone."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary: Any = None

    def constraint(self, form: AnswerForm, begun: Iterable[int] = ()) -> FormConstraint:
        """Return a constraint behind the beginning of a reply. Raises FormError, as ``check_form`` does."""
        grammar = _grammar(form)
        import llguidance

        if self._vocabulary is None:
            self._vocabulary = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Words(self._tokenizer)))
        matcher = llguidance.LLMatcher(self._vocabulary, grammar, log_level=0, limits=_limits())
        constraint = FormConstraint(matcher, self._tokenizer, form.name)
        for token_id in begun:
            constraint.accept(token_id)
        return constraint


def _grammar(form: AnswerForm) -> str:
    """Return a form as llguidance takes it."""
    try:
        from llguidance import LLMatcher
        from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax
    except ImportError:
        raise FormError(form.name, _INSTALL, is_missing=True) from None
    try:
        if form.kind == REGEX:
            return LLMatcher.grammar_from_regex(form.text)
        if form.kind == SCHEMA:
            json.loads(form.text)
            return LLMatcher.grammar_from_json_schema(form.text, overrides=AS_USUAL)
        if is_lark_syntax(form.text):
            return LLMatcher.grammar_from_lark(form.text)
        if form.text.count("::=") > MOST_RULES:
            raise FormError(form.name, f"has more than {MOST_RULES} rules")
        return LLMatcher.grammar_from_lark(gbnf_to_lark(_plain_escapes(form.text)))
    except RecursionError:
        raise FormError(form.name, "is nested too deeply") from None
    except FormError:
        raise
    except json.JSONDecodeError as error:
        raise FormError(form.name, f"is not JSON: {error}") from None
    except Exception as error:  # the converter raises plain ones
        raise _unusable(form.name, str(error)) from None


_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)


def _plain_escapes(gbnf: str) -> str:
    r"""Return a grammar with printable characters in place of ``\u0041``, which the converter cuts to ``\u41``."""

    def plain(found: re.Match[str]) -> str:
        code = int(next(filter(None, found.groups()), "0"), 16)
        char = chr(code) if code <= 0x10FFFF else ""
        return char if char.isalnum() else found[0]

    return _ESCAPE.sub(plain, gbnf)


class FormConstraint:
    """How far one reply has come in its form. Raises FormError: the form cannot be used."""

    def __init__(self, matcher: Any, tokenizer: Tokenizer, name: str) -> None:
        self._matcher, self._n_vocab, self._name = matcher, tokenizer.vocab_size, name
        self._ends = np.array(sorted(tokenizer.end_ids), np.int64)
        self._refuse_error()

    @property
    def is_over(self) -> bool:
        """Whether nothing but an end may follow."""
        return bool(self._matcher.is_stopped())

    def forced(self) -> list[int]:
        """Return the tokens that must come next, as the model's tokenizer writes them; none where there is a choice."""
        if self.is_over:
            return []
        forced: list[int] = self._matcher.compute_ff_tokens()
        return forced[: self._matcher.validate_tokens(forced)] if forced else []

    def allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each token whether it may come next."""
        if self.is_over:
            allowed = np.zeros(self._n_vocab, np.bool_)
        else:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            allowed = np.unpackbits(bits, count=self._n_vocab, bitorder="little").view(np.bool_)
        self._refuse_error()
        allowed[self._ends] = self._matcher.is_accepting() or self.is_over
        return allowed

    def accept(self, token_id: int) -> None:
        """The reply goes on with a token."""
        if not self._matcher.consume_token(token_id):
            raise _unusable(self._name, self._matcher.get_error())

    def _refuse_error(self) -> None:
        if self._matcher.is_error():
            raise _unusable(self._name, self._matcher.get_error())


class _Words:
    """A vocabulary as llguidance wants it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        special = set(tokenizer.control_texts.values()) | set(tokenizer.end_ids)
        self.special_token_ids = sorted(special)
        ids = range(tokenizer.vocab_size)
        # 0xff begins no text: what has none cannot be taken for one.
        self.tokens = [
            b"\xff" + tokenizer.token_text(one).encode() if one in special else tokenizer.token_bytes(one) or b"\xff"
            for one in ids
        ]
        self.bos_token_id = tokenizer.bos_id
        self.eos_token_id = tokenizer.eos_id if tokenizer.eos_id is not None else min(tokenizer.end_ids, default=0)

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text in the midst of a reply."""
        return self._tokenizer.encode_text(text, after_special=False)


def _limits() -> Any:
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=MOST_LEXER_STATES)


def _unusable(name: str, why: str) -> FormError:
    why = " ".join(why.partition("<state>")[0].split()) or "it allows nothing more"
    return FormError(name, f"cannot be used: {why}")
