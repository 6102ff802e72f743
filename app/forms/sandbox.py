"""Computation of which tokens continue the form of a reply, run in the processes of
``app.forms.process``.

Forms are hostile, and the code that compiles them is native: some overflow its stack, some take
minutes or gigabytes. So a process holds the vocabulary, which takes a second to prepare, and forks
a child for each form. A child starts in a clean state, has limits of processor time, memory and
stack, and ends with its form. The process reports how a child ended. No other module imports
llguidance.
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

from app.forms.schema import loosen_schema, simplify_schema
from engine.prompt.template_sandbox import allow_cpu, limit_memory, limit_process

VOCABULARY_CPU_S = 60.0
VOCABULARY_BYTES = 2 << 30
"""Limits on preparing a vocabulary. Those on a form come with the form."""
MAX_LEXER_STATES = 20_000
"""Limit on the states of a form while a reply is written; each takes up to 2 kB."""
MAX_ENCODED_CHARS = 1 << 14
"""Limit on a forced text that the model's tokenizer encodes; a longer one is encoded greedily."""
USUAL_SPACES: Any = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""White space as most programs write it. A model that may write more of it may write nothing
else."""

FRAME = struct.Struct("<BI")
"""Header of a message: its type, and the length of its payload."""
MAX_FRAME_BYTES = 1 << 26

# Messages to a child.
FORM = 0
"""The form, as JSON."""
TAKE = 1
"""Tokens that continue the reply."""
MASK = 2
"""Request for a mask."""
IDS = 3
"""Tokens of the text in a TEXT message."""

# Messages from a child.
TAKEN = 16
"""Flags after tokens were taken."""
FORCED = 17
"""Tokens that must come next."""
BITS = 18
"""Bits of a mask."""
TEXT = 19
"""A text whose tokens are needed."""
REFUSED = 20
"""Reason why the form cannot be used."""
ENDED = 21
"""Number of the signal that ended the child, or 0."""
NOTES = 22
"""Lines about parts of the form that are not enforced, as a JSON list."""

# Flags.
IS_OVER = 1
IS_ACCEPTING = 2


def send_frame(channel: socket.socket, message_type: int, payload: bytes = b"") -> None:
    """Send a message."""
    channel.sendall(FRAME.pack(message_type, len(payload)) + payload)


def pack_ids(ids: Iterable[int]) -> bytes:
    """Return token ids as the payload of a message."""
    return array("i", ids).tobytes()


def unpack_ids(payload: bytes) -> list[int]:
    """Return the token ids in a payload."""
    return array("i", payload).tolist()


# ---- the process with the vocabulary


class FormVocabulary:
    """Tokens of a model in the interface that llguidance expects.

    Args:
        packed: Result of ``pack_vocabulary``.

    Attributes:
        encode: Returns the tokens of a text within a reply; set in the child of a form.
    """

    def __init__(self, packed: bytes) -> None:
        fields = json.loads(packed)
        self.tokens = [token.encode("latin-1") for token in fields["tokens"]]
        self.special_token_ids = fields["special"]
        self.bos_token_id = fields["bos"]
        self.eos_token_id = fields["eos"]
        self.encode: Any = None

    def prepare(self) -> Any:
        """Return the vocabulary of llguidance, and free what is no longer needed."""
        from llguidance import LLTokenizer, TokenizerWrapper

        wrapper = TokenizerWrapper(self)
        self._prepared = LLTokenizer(wrapper)
        self.tokens = []
        wrapper.tokens = []
        return self._prepared

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        if not isinstance(text, str):
            raise TypeError("only text is accepted")
        if len(text) > MAX_ENCODED_CHARS:
            return list(self._prepared.greedy_tokenize(text))
        return list(self.encode(text))


def pack_vocabulary(tokens: list[bytes], special: list[int], bos: int | None, eos: int) -> bytes:
    """Return a vocabulary as one message."""
    fields = {
        "tokens": [token.decode("latin-1") for token in tokens],
        "special": special,
        "bos": bos,
        "eos": eos,
    }
    return json.dumps(fields).encode()


def main() -> None:
    """Hold a vocabulary, and fork a child for each form that arrives with a channel of its own."""
    control = socket.socket(fileno=os.dup(0))
    limit_memory(VOCABULARY_BYTES)
    allow_cpu(VOCABULARY_CPU_S)
    _, packed = _read_frame(control)
    vocabulary: FormVocabulary | None = None
    prepared: Any = None
    if packed:
        vocabulary = FormVocabulary(packed)
        prepared = vocabulary.prepare()
    del packed
    import llguidance  # noqa: F401 - imported once for all children

    allow_cpu(0.0)
    _fork_children(control, vocabulary, prepared)


def _fork_children(
    control: socket.socket, vocabulary: FormVocabulary | None, prepared: Any
) -> None:
    """Fork children until the program is gone. The end of a channel ends its child immediately."""
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children = _Children()
    for fileno in (control.fileno(), wake_reader):
        children.poll.register(fileno, select.POLLIN)
    while True:
        for fileno, _ in children.poll.poll():
            if fileno == wake_reader:
                os.read(wake_reader, 512)
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
                _run_child(channel, vocabulary, prepared)
                os._exit(0)


def _next_channel(control: socket.socket) -> socket.socket | None:
    """Return the channel of the next form; None if the program is gone."""
    data, files, _, _ = socket.recv_fds(control, 1, 1)
    if data and files:
        return socket.socket(fileno=files[0])
    return None


class _Children:
    """The children, by the file number of their channel.

    Attributes:
        poll: Notices closed channels.
    """

    def __init__(self) -> None:
        self.poll = select.poll()
        self._children: dict[int, tuple[int, socket.socket]] = {}

    def fork(self, channel: socket.socket) -> bool:
        """Fork a child; return False in the child."""
        try:
            pid = os.fork()
        except OSError:
            _send_last(channel, REFUSED, b"cannot be used now: the system cannot start a process")
            return True
        if not pid:
            for _, open_channel in self._children.values():
                open_channel.close()
            return False
        self._children[channel.fileno()] = pid, channel
        self.poll.register(channel.fileno(), 0)  # only its end
        return True

    def kill(self, fileno: int) -> None:
        """Kill a child whose channel is closed."""
        with contextlib.suppress(KeyError):
            self.poll.unregister(fileno)
            os.kill(self._children[fileno][0], signal.SIGKILL)

    def kill_all(self) -> None:
        """Kill all children."""
        for pid, _ in self._children.values():
            os.kill(pid, signal.SIGKILL)

    def reap(self) -> None:
        """Report how the children that have ended did so."""
        for fileno, (pid, channel) in list(self._children.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with contextlib.suppress(KeyError):
                    self.poll.unregister(fileno)
                del self._children[fileno]
                signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
                _send_last(channel, ENDED, bytes([signal_number]))


def _send_last(channel: socket.socket, message_type: int, payload: bytes) -> None:
    channel.setblocking(False)
    with contextlib.suppress(OSError):
        send_frame(channel, message_type, payload)
    channel.close()


# ---- the child of one form


def _read_frame(channel: socket.socket) -> tuple[int, bytes]:
    """Return the type and the payload of the next message; the process ends with its channel."""
    header = channel.recv(FRAME.size, socket.MSG_WAITALL)
    if len(header) != FRAME.size:
        os._exit(0)
    message_type, length = FRAME.unpack(header)
    payload = b""
    if length:
        payload = channel.recv(length, socket.MSG_WAITALL)
    if len(payload) != length:
        os._exit(0)
    return message_type, payload


def _run_child(channel: socket.socket, vocabulary: FormVocabulary | None, prepared: Any) -> None:
    """Compile a form and answer messages about it. Every error is reported in one line."""
    _, payload = _read_frame(channel)
    form = json.loads(payload)
    limit_process(_own_bytes() + form["memory_bytes"])
    try:
        allow_cpu(form["compile_cpu_s"])
        if vocabulary is None:
            _check(channel, form)
            return

        def encode(text: str) -> list[int]:
            send_frame(channel, TEXT, text.encode("utf-8", "replace"))
            _, ids = _read_frame(channel)
            return unpack_ids(ids)

        vocabulary.encode = encode
        _Matcher(channel, prepared, form).run()
    except _RefusedError as refused:
        reason = str(refused)
    except RecursionError:
        reason = "is nested too deeply"
    except MemoryError:
        reason = "needs too much memory"
    except BaseException as error:  # A panic of native code is not an Exception.
        reason = _unusable(str(error) or type(error).__name__)
    allow_cpu(0.0)
    send_frame(channel, REFUSED, reason.encode("utf-8", "replace"))


def _check(channel: socket.socket, form: Mapping[str, Any]) -> None:
    """Check a form without a vocabulary."""
    grammar = _Grammar(form)
    problem = _problem(grammar.text())
    if grammar.notes:
        send_frame(channel, NOTES, json.dumps(grammar.notes).encode())
    if problem:
        send_frame(channel, REFUSED, _unusable(problem).encode())
    else:
        send_frame(channel, TAKEN)


class _RefusedError(Exception):
    """The form cannot be used. The message is the reason, which follows the form's name."""


class _Matcher:
    """State of one reply within its form."""

    def __init__(self, channel: socket.socket, prepared: Any, form: Mapping[str, Any]) -> None:
        from llguidance import LLMatcher

        self._channel = channel
        self._step_cpu_s = form["step_cpu_s"]
        grammar = _Grammar(form)
        self._matcher = LLMatcher(prepared, grammar.text(), log_level=0, limits=_limits())
        if self._matcher.is_error() and form["tool_schemas"]:
            grammar = _Grammar(form, checks_tools=True)
            self._matcher = LLMatcher(prepared, grammar.text(), log_level=0, limits=_limits())
        self._raise_error()
        if grammar.notes:
            send_frame(channel, NOTES, json.dumps(grammar.notes).encode())
        self._take(form["prefix_ids"])

    def run(self) -> None:
        """Answer messages until the channel ends."""
        while True:
            allow_cpu(0.0)
            message_type, payload = _read_frame(self._channel)
            allow_cpu(self._step_cpu_s)
            if message_type == TAKE:
                self._take(unpack_ids(payload))
            else:
                self._send_mask()

    def _take(self, ids: list[int]) -> None:
        """Continue with tokens, and send what may come next: the model computes meanwhile."""
        for token_id in ids:
            if not self._matcher.consume_token(token_id):
                raise _RefusedError(_unusable(self._matcher.get_error()))
        is_over = self._matcher.is_stopped()
        self._raise_error()
        flags = 0
        if is_over:
            flags = IS_OVER | IS_ACCEPTING
        elif self._matcher.is_accepting():
            flags = IS_ACCEPTING
        send_frame(self._channel, TAKEN, bytes([flags]))
        if is_over:
            return

        forced = self._matcher.compute_ff_tokens()
        if forced:
            forced = forced[: self._matcher.validate_tokens(forced)]
        if forced:
            send_frame(self._channel, FORCED, pack_ids(forced))
        else:
            self._send_mask()

    def _send_mask(self) -> None:
        bits = self._matcher.compute_bitmask()
        self._raise_error()
        send_frame(self._channel, BITS, bits)

    def _raise_error(self) -> None:
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

    return LLParserLimits(max_lexer_states=MAX_LEXER_STATES)


def _problem(grammar: str) -> str:
    """Return the reason why a grammar cannot be used; "" if it can."""
    from llguidance import LLMatcher

    problem: str = LLMatcher.validate_grammar(grammar, limits=_limits())
    if problem.startswith("WARNING"):
        return ""
    return problem


class _Grammar:
    """Grammar of llguidance for a form, with tool calls that may replace it.

    Args:
        form: The message with the form.
        checks_tools: Whether the schema of each tool is compiled separately first, to find those
            that cannot be enforced.

    Attributes:
        notes: Lines about parts of the form that are not enforced.
    """

    def __init__(self, form: Mapping[str, Any], checks_tools: bool = False) -> None:
        self._form = form
        self._checks_tools = checks_tools
        self.notes: list[str] = []

    def text(self) -> str:
        """Return the grammar.

        Raises:
            _RefusedError: The form cannot be used.
        """
        form = self._form
        tool_rules = "".join(
            f"\n{rule}: %json {self._tool_schema(tool, text, fallback)}"
            for rule, tool, text, fallback in form["tool_schemas"]
        )
        if not form["call_rules"]:
            return self._form_grammar(form["syntax"], form["text"] + tool_rules)

        grammar = self._form_grammar(form["syntax"], form["text"])
        if grammar.lstrip().startswith("{"):
            form_grammar = json.loads(grammar)["grammars"][0]
        else:
            form_grammar = {"lark_grammar": grammar}
        either = {"lark_grammar": f"start: calls | @form\n{form['call_rules']}{tool_rules}"}
        return json.dumps({"grammars": [either, {**form_grammar, "name": "form"}]})

    def _form_grammar(self, syntax: str, text: str) -> str:
        from llguidance import LLMatcher
        from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

        if syntax == "regex":
            return LLMatcher.grammar_from_regex(text)
        if syntax == "schema":
            return LLMatcher.grammar_from_json_schema(
                json.dumps(self._schema(text)), overrides=USUAL_SPACES
            )
        if is_lark_syntax(text):
            return LLMatcher.grammar_from_lark(text)
        return LLMatcher.grammar_from_lark(gbnf_to_lark(_plain_escapes(text)))

    def _schema(self, text: str) -> Any:
        """Return the schema of a reply.

        Raises:
            _RefusedError: The schema has rules that cannot be enforced.
        """
        try:
            schema = json.loads(text)
        except json.JSONDecodeError as error:
            raise _RefusedError(f"is not JSON: {error}") from None
        if not isinstance(schema, (dict, bool)):
            raise _RefusedError("is not a JSON schema, which is an object")
        simplified = simplify_schema(schema, _is_pattern)
        refused = [keyword for keyword in simplified.dropped if keyword != "pattern"]
        if refused:
            raise _RefusedError(
                f"cannot be used: {', '.join(refused)} cannot be enforced exactly (leave it out)"
            )
        if simplified.dropped:
            self.notes.append(f"{self._form['name']}: pattern")
        return simplified.schema

    def _tool_schema(self, tool: str, text: str, fallback: str) -> str:
        """Return as much of the schema of a tool as can be enforced."""
        schema, dropped = simplify_schema(json.loads(text), _is_pattern)
        schema = _with_usual_spaces(schema)
        if self._checks_tools and _problem(_schema_grammar(schema)):
            schema = loosen_schema(schema)
            dropped = (*dropped, "combinations of keywords")
            if _problem(_schema_grammar(schema)):
                schema = _with_usual_spaces(json.loads(fallback))
                dropped = ("parameters",)
        if dropped:
            self.notes.append(f"tool {tool}: {', '.join(dropped)}")
        return json.dumps(schema)


def _with_usual_spaces(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {**schema, "x-guidance": USUAL_SPACES}
    return schema


def _schema_grammar(schema: Any) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(json.dumps(schema))


def _is_pattern(expression: str) -> bool:
    """Whether a regular expression can be enforced."""
    with contextlib.suppress(ValueError):
        return not _problem(_schema_grammar({"type": "string", "pattern": expression}))
    return False


_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)


def _plain_escapes(gbnf: str) -> str:
    r"""Return a grammar with letters and digits instead of escapes like ``\u0041``, which the
    converter cuts to ``\u41``."""

    def unescape(match: re.Match[str]) -> str:
        code = int(next(filter(None, match.groups()), "0"), 16)
        if code <= 0x10FFFF and chr(code).isalnum():
            return chr(code)
        return match[0]

    return _ESCAPE.sub(unescape, gbnf)


_CLEARER_REASONS = {
    "oneOf constraints are not supported.": (
        "oneOf whose choices overlap is not supported (use anyOf)"
    )
}
"""Clearer messages for some of llguidance's."""


def _unusable(reason: str) -> str:
    reason = " ".join(reason.partition("<state>")[0].split()) or "it allows nothing more"
    for text, clearer in _CLEARER_REASONS.items():
        if text in reason:
            reason = clearer
            break
    return f"cannot be used: {reason}"


if __name__ == "__main__":
    main()
