"""Says which tokens go on with the form of a reply: what runs in the processes of
``app.forms.process``.

Forms are hostile, and what compiles them is native code: some overflow its stack, some take minutes
or gigabytes. So one process keeps the vocabulary, which takes a second to prepare, and forks a
child for each form. The child begins with fresh state, has limits of processor time, memory and
stack, and ends with its form; the process tells how it ended. No other file knows llguidance.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import struct
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

from app.forms.schema import followed_schema, loosened_schema
from engine.prompt.template_sandbox import allow_cpu, limit_memory, limit_process

VOCABULARY_CPU_S = 60.0
VOCABULARY_BYTES = 2 << 30
"""Limits on preparing a vocabulary; those on a form come with it."""
MOST_LEXER_STATES = 20_000
"""Limit on what a form may come to while a reply is written; each takes up to 2 kB."""
MOST_ENCODED_CHARS = 1 << 14
"""Limit on a forced text that is written as the model's tokenizer would; a longer one is written
greedily."""
AS_USUAL: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space as most programs write it: a model that may write more of it may write nothing
else."""

FRAME = struct.Struct("<BI")
"""Before each message: its kind, and the length of what follows."""
MOST_FRAME_BYTES = 1 << 26
FORM, TAKE, MASK, IDS = range(4)
"""To a child: the form, as JSON; tokens that the reply goes on with; a mask is wanted; the tokens
of a text."""
TAKEN, FORCED, BITS, TEXT, REFUSED, ENDED, NOTES = range(16, 23)
"""Messages of a child, in this order.

The tokens were taken, with flags; what comes next, forced tokens or the bits of a mask; a text
whose tokens are wanted; why the form cannot be used; how the child ended: a signal's number, or 0;
what is not followed, as a list of lines in JSON.
"""
IS_OVER = 1
IS_ACCEPTING = 2


def send_frame(channel: socket.socket, kind: int, payload: bytes = b"") -> None:
    """Send a message."""
    channel.sendall(FRAME.pack(kind, len(payload)) + payload)


def ids_bytes(ids: Iterable[int]) -> bytes:
    """Return token ids as a message."""
    return array("i", ids).tobytes()


def ids_of(payload: bytes) -> list[int]:
    """Return the token ids of a message."""
    return array("i", payload).tolist()


# ---- the process that keeps the vocabulary


class FormVocabulary:
    """The tokens of a model, as llguidance wants them.

    Args:
        packed: what ``pack_vocabulary`` returned.

    Attributes:
        asks: returns the tokens of a text in the midst of a reply; set in a form's child.
    """

    def __init__(self, packed: bytes) -> None:
        said = json.loads(packed)
        self.tokens = [one.encode("latin-1") for one in said["tokens"]]
        self.special_token_ids = said["special"]
        self.bos_token_id = said["bos"]
        self.eos_token_id = said["eos"]
        self.asks: Any = None

    def prepared(self) -> Any:
        """Return it as llguidance's; what is needed no more is dropped."""
        from llguidance import LLTokenizer, TokenizerWrapper

        wrapper = TokenizerWrapper(self)
        self._prepared = LLTokenizer(wrapper)
        self.tokens = wrapper.tokens = []
        return self._prepared

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        if not isinstance(text, str):
            raise TypeError("bytes are not taken")
        if len(text) > MOST_ENCODED_CHARS:
            return list(self._prepared.greedy_tokenize(text))
        return list(self.asks(text))


def pack_vocabulary(tokens: list[bytes], special: list[int], bos: int | None, eos: int) -> bytes:
    """Return a vocabulary as one message."""
    said = {
        "tokens": [one.decode("latin-1") for one in tokens],
        "special": special,
        "bos": bos,
        "eos": eos,
    }
    return json.dumps(said).encode()


def main() -> None:
    """Keep a vocabulary, and let a child follow each form that comes with a channel of its own."""
    control = socket.socket(fileno=os.dup(0))
    limit_memory(VOCABULARY_BYTES)
    allow_cpu(VOCABULARY_CPU_S)
    _, packed = _next(control)
    if packed:
        vocabulary = FormVocabulary(packed)
    else:
        vocabulary = None
    if vocabulary is not None:
        prepared = vocabulary.prepared()
    else:
        prepared = None
    del packed
    import llguidance  # noqa: F401 - here, once for all children

    allow_cpu(0.0)
    _keep(control, vocabulary, prepared)


def _keep(control: socket.socket, vocabulary: FormVocabulary | None, prepared: Any) -> None:
    """Fork children until the program is gone; the end of a form's channel ends its child at
    once."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children = _Children()
    for fileno in (control.fileno(), woken):
        children.waiting.register(fileno, select.POLLIN)
    while True:
        for fileno, _ in children.waiting.poll():
            if fileno == woken:
                os.read(woken, 512)
                children.reap()
            elif fileno != control.fileno():
                children.kill(fileno)
            elif (channel := _next_channel(control)) is None:
                children.kill_all()
                os._exit(0)
            elif not children.fork(channel):
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                _follow(channel, vocabulary, prepared)
                os._exit(0)


def _next_channel(control: socket.socket) -> socket.socket | None:
    """Return the channel of the next form; None where the program is gone."""
    said, files, _, _ = socket.recv_fds(control, 1, 1)
    if said and files:
        return socket.socket(fileno=files[0])
    return None


class _Children:
    """The children, by the file number of their channel; ``waiting``: notices what ends."""

    def __init__(self) -> None:
        self.waiting = select.poll()
        self._children: dict[int, tuple[int, socket.socket]] = {}

    def fork(self, channel: socket.socket) -> bool:
        """Make a child; returns False in the child."""
        try:
            pid = os.fork()
        except OSError:
            _tell_last(channel, REFUSED, b"cannot be used now: the system starts no process")
            return True
        if not pid:
            for _, other in self._children.values():
                other.close()
            return False
        self._children[channel.fileno()] = pid, channel
        self.waiting.register(channel.fileno(), 0)  # the end alone
        return True

    def kill(self, fileno: int) -> None:
        """End a child whose channel no one reads any more."""
        with contextlib.suppress(KeyError):
            self.waiting.unregister(fileno)
            os.kill(self._children[fileno][0], signal.SIGKILL)

    def kill_all(self) -> None:
        """End all."""
        for pid, _ in self._children.values():
            os.kill(pid, signal.SIGKILL)

    def reap(self) -> None:
        """Tell for each child that has ended how it did."""
        for fileno, (pid, channel) in list(self._children.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with contextlib.suppress(KeyError):
                    self.waiting.unregister(fileno)
                del self._children[fileno]
                _tell_last(
                    channel, ENDED, bytes([os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0])
                )


def _tell_last(channel: socket.socket, kind: int, payload: bytes) -> None:
    channel.setblocking(False)
    with contextlib.suppress(OSError):
        send_frame(channel, kind, payload)
    channel.close()


# ---- the child of one form


def _next(channel: socket.socket) -> tuple[int, bytes]:
    """Return the next message; the process ends with its channel."""
    head = channel.recv(FRAME.size, socket.MSG_WAITALL)
    if len(head) == FRAME.size:
        kind, length = FRAME.unpack(head)
    else:
        kind, length = os._exit(0)
    if length:
        payload = channel.recv(length, socket.MSG_WAITALL)
    else:
        payload = b""
    if len(payload) == length:
        return (kind, payload)
    return os._exit(0)


def _follow(channel: socket.socket, vocabulary: FormVocabulary | None, prepared: Any) -> None:
    """Compile a form and answer what is asked about it; whatever goes wrong is told in one line."""
    _, said = _next(channel)
    form = json.loads(said)
    limit_process(_own_bytes() + form["memory_bytes"])
    try:
        allow_cpu(form["compile_cpu_s"])
        if vocabulary is None:
            grammar = _Grammar(form)
            trouble = _trouble(grammar.text())
            if grammar.notes:
                send_frame(channel, NOTES, json.dumps(grammar.notes).encode())
            send_frame(
                channel, REFUSED if trouble else TAKEN, (trouble and _unusable(trouble)).encode()
            )
            return

        def ask(text: str) -> list[int]:
            send_frame(channel, TEXT, text.encode("utf-8", "replace"))
            return ids_of(_next(channel)[1])

        vocabulary.asks = ask
        _FormProgress(channel, prepared, form).run()
    except _RefusedError as refused:
        why = str(refused)
    except RecursionError:
        why = "is nested too deeply"
    except MemoryError:
        why = "needs too much memory"
    except BaseException as error:  # native code that panics raises no Exception
        why = _unusable(str(error) or type(error).__name__)
    allow_cpu(0.0)
    send_frame(channel, REFUSED, why.encode("utf-8", "replace"))


class _RefusedError(Exception):
    """The form cannot be used; the message says why, to follow its name."""


class _FormProgress:
    """How far one reply has come in its form."""

    def __init__(self, channel: socket.socket, prepared: Any, form: Mapping[str, Any]) -> None:
        from llguidance import LLMatcher

        self._channel = channel
        self._step_cpu_s = form["step_cpu_s"]
        grammar = _Grammar(form)
        self._matcher = LLMatcher(prepared, grammar.text(), log_level=0, limits=_limits())
        if self._matcher.is_error() and form["schemas"]:
            grammar = _Grammar(form, checks=True)
            self._matcher = LLMatcher(prepared, grammar.text(), log_level=0, limits=_limits())
        self._refuse_error()
        if grammar.notes:
            send_frame(channel, NOTES, json.dumps(grammar.notes).encode())
        self._take(form["begun"])

    def run(self) -> None:
        """Answer until the channel ends."""
        while True:
            allow_cpu(0.0)
            kind, payload = _next(self._channel)
            allow_cpu(self._step_cpu_s)
            if kind == TAKE:
                self._take(ids_of(payload))
            else:
                self._send_mask()

    def _take(self, ids: list[int]) -> None:
        """Go on with tokens, and say what may come next without being asked: the model computes
        meanwhile."""
        for token_id in ids:
            if not self._matcher.consume_token(token_id):
                raise _RefusedError(_unusable(self._matcher.get_error()))
        is_over = self._matcher.is_stopped()
        self._refuse_error()
        flags = is_over * IS_OVER | (is_over or self._matcher.is_accepting()) * IS_ACCEPTING
        send_frame(self._channel, TAKEN, bytes([flags]))
        if is_over:
            return
        forced = self._matcher.compute_ff_tokens()
        if forced:
            forced = forced[: self._matcher.validate_tokens(forced)]
        else:
            forced = []
        if forced:
            send_frame(self._channel, FORCED, ids_bytes(forced))
        else:
            self._send_mask()

    def _send_mask(self) -> None:
        bits = self._matcher.compute_bitmask()
        self._refuse_error()
        send_frame(self._channel, BITS, bits)

    def _refuse_error(self) -> None:
        if self._matcher.is_error():
            raise _RefusedError(_unusable(self._matcher.get_error()))


def _own_bytes() -> int:
    """Return the address space of this process."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return VOCABULARY_BYTES


def _limits() -> Any:
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=MOST_LEXER_STATES)


def _trouble(grammar: str) -> str:
    """Return why a grammar cannot be used; "" where it may be."""
    from llguidance import LLMatcher

    trouble: str = LLMatcher.validate_grammar(grammar, limits=_limits())
    if trouble.startswith("WARNING"):
        return ""
    return trouble


class _Grammar:
    """A form as llguidance takes it, with calls of tools that may come instead of it.

    Args:
        form: the message that describes it.
        checks: whether the schema of each tool is compiled by itself first, to find those that
            cannot be followed.

    Attributes:
        notes: lines about what is not followed.
    """

    def __init__(self, form: Mapping[str, Any], checks: bool = False) -> None:
        self._form = form
        self._checks = checks
        self.notes: list[str] = []

    def text(self) -> str:
        """Return the grammar. Raises _RefusedError: it cannot be used."""
        form = self._form
        rules = "".join(
            f"\n{rule}: %json {self._tool_schema(*given)}" for rule, *given in form["schemas"]
        )
        if not form["instead"]:
            return self._own_grammar(form["kind"], form["text"] + rules)
        grammar = self._own_grammar(form["kind"], form["text"])
        if grammar.lstrip().startswith("{"):
            own = json.loads(grammar)["grammars"][0]
        else:
            own = {"lark_grammar": grammar}
        either = {"lark_grammar": f"start: calls | @form\n{form['instead']}{rules}"}
        return json.dumps({"grammars": [either, {**own, "name": "form"}]})

    def _own_grammar(self, kind: str, text: str) -> str:
        from llguidance import LLMatcher
        from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

        if kind == "regex":
            return LLMatcher.grammar_from_regex(text)
        if kind == "schema":
            return LLMatcher.grammar_from_json_schema(
                json.dumps(self._schema(text)), overrides=AS_USUAL
            )
        if is_lark_syntax(text):
            return LLMatcher.grammar_from_lark(text)
        return LLMatcher.grammar_from_lark(gbnf_to_lark(_plain_escapes(text)))

    def _schema(self, text: str) -> Any:
        """Return the schema of an answer.

        Raises:
            _RefusedError: it says what no form can promise.
        """
        try:
            schema = json.loads(text)
        except json.JSONDecodeError as error:
            raise _RefusedError(f"is not JSON: {error}") from None
        if not isinstance(schema, (dict, bool)):
            raise _RefusedError("is no JSON schema: that is an object")
        followed = followed_schema(schema, _is_pattern)
        if refused := [keyword for keyword in followed.dropped if keyword != "pattern"]:
            raise _RefusedError(
                f"cannot be used: {', '.join(refused)} cannot be followed exactly (leave it out)"
            )
        if followed.dropped:
            self.notes.append(f"{self._form['name']}: pattern")
        return followed.schema

    def _tool_schema(self, tool: str, text: str, fallback: str) -> str:
        """Return as much of the schema of a tool as can be followed."""
        schema, dropped = followed_schema(json.loads(text), _is_pattern)
        schema = _as_usual(schema)
        given = _as_usual(json.loads(fallback))
        if self._checks and _trouble(_schema_grammar(schema)):
            schema = loosened_schema(schema)
            dropped = (*dropped, "combinations of keywords")
            if _trouble(_schema_grammar(schema)):
                schema = given
                dropped = ("parameters",)
        if dropped:
            self.notes.append(f"tool {tool}: {', '.join(dropped)}")
        return json.dumps(schema)


def _as_usual(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {**schema, "x-guidance": AS_USUAL}
    return schema


def _schema_grammar(schema: Any) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(json.dumps(schema))


def _is_pattern(expression: str) -> bool:
    """Whether texts can be kept to a regular expression."""
    with contextlib.suppress(ValueError):
        return not _trouble(_schema_grammar({"type": "string", "pattern": expression}))
    return False


_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)


def _plain_escapes(gbnf: str) -> str:
    r"""Return a grammar with printable characters in place of ``\u0041``, which the converter cuts
    to ``\u41``."""

    def plain(found: re.Match[str]) -> str:
        code = int(next(filter(None, found.groups()), "0"), 16)
        if code <= 0x10FFFF:
            char = chr(code)
        else:
            char = ""
        if char.isalnum():
            return char
        return found[0]

    return _ESCAPE.sub(plain, gbnf)


_PLAINER = (
    (
        "oneOf constraints are not supported.",
        "oneOf whose choices overlap is not supported (use anyOf)",
    ),
)
"""What llguidance says, and the same for those who do not know it."""


def _unusable(why: str) -> str:
    why = " ".join(why.partition("<state>")[0].split()) or "it allows nothing more"
    why = next((plainer for said, plainer in _PLAINER if said in why), why)
    return f"cannot be used: {why}"


if __name__ == "__main__":
    main()
