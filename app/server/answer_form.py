"""Replies in a given form: JSON by a schema, any JSON object, or a regular expression.

Which tokens go on with a form says llguidance, an optional package that is imported when a form is first asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from app.server.api_error import ApiError, unsupported
from app.server.fields import Fields
from app.server.tools import Tools, frame_schema
from app.text.record import record
from engine.prompt.tools.formats import CallFormat, Part, Pattern

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer

MOST_FORM_CHARS = 1 << 16
"""Limit on a schema or an expression."""
_ANY_OBJECT = '{"type":"object"}'
_PLACE = "response_format"
_AS_USUAL: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space as most programs write it: a model that may write more of it may write nothing else."""


@record
class AnswerForm:
    """What a reply must look like."""

    kind: str
    """``schema`` or ``regex``."""
    text: str


def read_form(fields: Fields) -> AnswerForm | None:
    """Read ``response_format``; None where any reply will do.

    Raises:
        ApiError: it is wrong.
    """
    form = fields.table(_PLACE)
    if form is None:
        return None
    kind = form.word("type", "text", "json_object", "json_schema", "regex")
    if kind is None:
        raise form.missing("type", "text, json_object, json_schema or regex")
    found = None
    if kind == "json_object":
        found = AnswerForm("schema", _ANY_OBJECT)
    elif kind == "regex":
        pattern = form.text("pattern")
        if not pattern:
            raise form.missing("pattern", "a regular expression")
        found = AnswerForm("regex", pattern)
    elif kind == "json_schema":
        found = AnswerForm("schema", _schema(form))
    form.refuse_rest()
    if found is not None and len(found.text) > MOST_FORM_CHARS:
        raise ApiError(f"{_PLACE} is longer than {MOST_FORM_CHARS} characters", param=_PLACE, code="too_long")
    return found


def _schema(form: Fields) -> str:
    described = form.table("json_schema")
    if described is None:
        raise form.missing("json_schema", "an object with a schema")
    schema = described.any("schema")
    if not isinstance(schema, dict):
        raise described.missing("schema", "an object") if schema is None else described.wrong("schema", "an object")
    for name in ("name", "description"):
        described.text(name)
    described.flag("strict")  # it always is
    described.refuse_rest()
    return json.dumps(schema)


class Forms:
    """Makes constraints for one vocabulary. Used by the engine's thread alone.

    Args:
        tokenizer: of the model.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary: Any = None

    def constraint(self, form: AnswerForm) -> FormConstraint:
        """Return a constraint at its beginning.

        Raises:
            ApiError: the form cannot be used, or the package is not installed.
        """
        llguidance = self._llguidance(_PLACE)
        try:
            if form.kind == "regex":
                grammar = llguidance.LLMatcher.grammar_from_regex(form.text)
            else:
                grammar = llguidance.LLMatcher.grammar_from_json_schema(form.text, overrides=_AS_USUAL)
        except ValueError as error:
            raise _refusal(str(error)) from None
        matcher = llguidance.LLMatcher(self._vocabulary, grammar, log_level=0)
        if matcher.is_error():
            raise _refusal(matcher.get_error())
        return FormConstraint(matcher, self._tokenizer)

    def call_constraint(self, tools: Tools, how: CallFormat) -> FormConstraint:
        """Return a constraint to one call, at its beginning.

        Raises:
            ApiError: a tool's parameters cannot be used, or the package is not installed.
        """
        llguidance = self._llguidance("tool_choice")
        grammar = CallGrammar(self._tokenizer).lark(frame_schema(tools), how)
        matcher = llguidance.LLMatcher(self._vocabulary, grammar, log_level=0)
        if matcher.is_error():
            raise _refusal(matcher.get_error(), "tools")
        return FormConstraint(matcher, self._tokenizer)

    def _llguidance(self, place: str) -> Any:
        try:
            import llguidance
        except ImportError:
            raise unsupported(
                place, "needs a package that is not installed (python -m pip install llguidance)"
            ) from None
        if self._vocabulary is None:
            self._vocabulary = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Words(self._tokenizer)))
        return llguidance


class CallGrammar:
    """Writes what a call looks like as a grammar of llguidance.

    Args:
        tokenizer: of the model; control tokens stand in a grammar by their ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def lark(self, tools: Sequence[tuple[str, dict[str, Any]]], how: CallFormat) -> str:
        """Return the grammar of one call of any of the tools, by name and schema."""
        rules: list[str] = []
        calls = [" ".join(self._part(part, rules) for part in how.frame(name, schema)) for name, schema in tools]
        return "\n".join([f"start: {' | '.join(calls)}", *rules])

    def _part(self, part: Part, rules: list[str]) -> str:
        if isinstance(part, str):
            control = self._tokenizer.control_texts
            return " ".join(
                f"<[{one.token_id}]>" if one.text in control else json.dumps(one.text)
                for one in self._tokenizer.split(part, special=True)
            )
        if isinstance(part, Pattern):
            rules.append(f"P{len(rules)}: /{part.expression}/")
            return f"P{len(rules) - 1}"
        schema = {**part.schema, "x-guidance": _AS_USUAL} if isinstance(part.schema, dict) else part.schema
        rules.append(f"v{len(rules)}: %json {json.dumps(schema)}")
        return f"v{len(rules) - 1}"


class FormConstraint:
    """How far one reply has come in its form."""

    def __init__(self, matcher: Any, tokenizer: Tokenizer) -> None:
        self._matcher, self._n_vocab = matcher, tokenizer.vocab_size
        self._ends = np.array(sorted(tokenizer.end_ids), np.int64)

    def allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each token whether it may come next."""
        if self._matcher.is_stopped():
            allowed = np.zeros(self._n_vocab, np.bool_)
        else:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            allowed = np.unpackbits(bits, count=self._n_vocab, bitorder="little").astype(np.bool_)
        if self._matcher.is_error():
            raise _refusal(self._matcher.get_error())
        allowed[self._ends] = self._matcher.is_accepting() or self._matcher.is_stopped()
        return allowed

    def accept(self, token_id: int) -> None:
        """The reply goes on with a token."""
        if not self._matcher.consume_token(token_id):
            raise _refusal(self._matcher.get_error())


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
        """Return the tokens of a text."""
        return self._tokenizer.encode(text, bos=False, special=False)


def _refusal(why: str, place: str = _PLACE) -> ApiError:
    why = " ".join(why.partition("<state>")[0].split()) or "it allows nothing more"
    return ApiError(f"{place} cannot be used: {why}", param=place, code="invalid_value")
