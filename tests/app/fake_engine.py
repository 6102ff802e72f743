"""An engine that computes nothing: scripted replies, a scripted clock, gates instead of sleeps,
errors on demand.

It mirrors the public names and signatures of ``engine`` (``Model``, ``Session``, ``Tokenizer``,
``ChatPrompt``), so a test hands ``Script.open_model`` to whatever opens models. It never imports
numba, and numpy only for logits.

    script = Script(replies=[["Hel", "lo"]])
    model = script.open_model()                    # or FakeModel.open("x.gguf", script=script)
    script.token_gate = Gate()                     # the reply now waits: gate.allow(1), gate.open()
    script.fail_after_tokens = 1                   # the second token of each reply raises script.generate_error
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from app.backend.local.engine_access import ReplayedGuesses
from engine import common_prefix
from engine.config import Attention, Dense, Layer, ModelConfig, Rope
from engine.errors import (
    BrokenModelError,
    Cancelled,
    ContextFullError,
    EngineError,
    FileUnreadableError,
    MemoryPlanError,
    TemplateError,
)
from engine.generation import GeneratedToken
from engine.prompt.thinking import ThinkingMode
from engine.prompt.tools.calls import CallResult, ToolCall
from engine.prompt.tools.formats import format_of
from engine.sampling.guessing import GuessCosts, GuessTally
from engine.sampling.logprobs import TokenLogprobs
from engine.tokenizer.infill_marks import InfillMarks
from engine.vision.cost import PictureCost

BOS, EOS, SYSTEM, USER, ASSISTANT, END = range(6)
_MARKERS = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": USER}
_PATIENCE_S = 300.0
"""Longer than a test waits for any one thing: on a loaded machine it waits for several while the
engine stands here."""


@dataclass(frozen=True)
class Progress:
    """Progress of opening a model."""

    stage: str
    name: str
    done: int
    total: int


@dataclass(frozen=True)
class PrefillResult:
    """Tokens that a prefill found in the cache, and those that it computed."""

    reused: int
    fed: int
    seconds: float


@dataclass(frozen=True)
class Message:
    """Turn of a conversation."""

    role: str
    content: str
    calls: tuple[ToolCall, ...] = ()
    results: tuple[CallResult, ...] = ()

    @property
    def raw(self) -> str:
        """The text as generated."""
        return self.content


class FakeClock:
    """A monotonic clock that only moves when told; the fake session moves it for every token."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds


class Gate:
    """Holds the engine back until a test allows steps; ``cancel`` and ``open`` always get it going
    again."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._permits = 0
        self._is_open = False
        self.waiting = threading.Event()
        """Set once the engine has arrived and found no permit: the test knows where it stands."""

    def allow(self, steps: int = 1) -> None:
        """Let the engine take ``steps`` more steps."""
        with self._condition:
            self._permits += steps
            self.waiting.clear()
            self._condition.notify_all()

    def open(self) -> None:
        """Never hold the engine back again."""
        with self._condition:
            self._is_open = True
            self._condition.notify_all()

    def wake(self) -> None:
        """Make a waiting engine look at its cancel flag."""
        with self._condition:
            self._condition.notify_all()

    def take(self, cancelled: threading.Event) -> None:
        """Wait for a permit, or for the cancel flag; fail loudly rather than hang a test for
        ever."""
        with self._condition:
            while not (self._is_open or self._permits or cancelled.is_set()):
                self.waiting.set()
                if not self._condition.wait(_PATIENCE_S):
                    raise AssertionError("no one opened the gate of the fake engine")
            self.waiting.clear()
            if self._permits and not self._is_open:
                self._permits -= 1


@dataclass
class Script:
    """Behaviour of the fake engine; a test may change it at any time."""

    replies: list[list[str]] = field(default_factory=lambda: [["Hello", " there", "."]])
    """Pieces of text, one per token, of each reply in turn; the last reply repeats."""
    clock: FakeClock = field(default_factory=FakeClock)
    seconds_per_token: float = 0.5
    wrong_guess: str = ""
    """Logits that guesses change in a replay; "" if they change none."""
    seconds_per_prompt_token: float = 0.1
    thread_speeds: dict[int, float] | None = None
    """Thread count to speed, relative to ``seconds_per_prompt_token``; None: all counts alike."""
    weight_speeds: dict[str, float] = field(default_factory=dict)
    """The same by mode of the weights."""
    kv_speeds: dict[str, float] = field(default_factory=dict)
    """The same by type of the KV cache."""
    session_notices: tuple[str, ...] = ()
    """Warnings of sessions."""
    weights_error: EngineError | None = None
    """Error raised by copying the weights into huge pages."""
    has_room_for_both: bool = True
    n_ctx: int = 512
    """Largest context that "fits"; asking for more raises MemoryPlanError."""
    most_sessions: int = 100
    """How many of them memory has room for."""
    held_back: str = ""
    """Text that comes after the last token of every reply, without a token of its own."""
    opening: str = ""
    """Text that the template prints before a reply: "<think>" opens a thinking block."""
    stops: tuple[str, ...] = ()
    """Texts that end a reply."""
    control: frozenset[str] = frozenset()
    """Pieces that are control tokens: their text is left out unless it is asked for."""
    sees: bool = False
    """Whether the model has an encoder for pictures, which takes a second."""
    has_template: bool = True
    calls_like: str = "<tool_call>"
    """A text in the template that tells how the model calls tools; "" for no tools."""
    names_date: bool = True
    """Whether the chat template prints a date; if not, the system prompt names one."""
    refused_words: str = ""
    """The template refuses a conversation in which these words stand."""
    open_progress: list[Progress] = field(
        default_factory=lambda: [
            Progress("load", "model.gguf", 100, 100),
            Progress("compile", "matvec q4_k", 1, 2),
            Progress("compile", "rmsnorm", 2, 2),
        ]
    )
    open_error: Exception | None = None
    open_errors: dict[str, Exception] = field(default_factory=dict)
    """The same for files of some names, models or adapters."""
    missing: Collection[str] = ()
    """Names of files that are not there."""
    prefill_error: Exception | None = None
    generate_error: Exception = field(
        default_factory=lambda: BrokenModelError("model.gguf: the model computed NaN")
    )
    fail_after_tokens: int | None = None
    """Number of tokens after which ``generate_error`` is raised; None for never."""
    open_gate: Gate | None = None
    prefill_gate: Gate | None = None
    """Gate with a permit for each prompt token."""
    token_gate: Gate | None = None
    """Gate with a permit for each generated token."""
    bandwidth_gate: Gate | None = None
    read_gbps: float = 10.0
    clock_ghz: float | None = 2.5
    n_bandwidth_probes: int = 0
    opened: list[FakeModel] = field(default_factory=list)
    """Every model opened from this script, with its sessions in ``model.sessions``."""

    def glance_at_model(self, path: Path) -> None:
        """Refuse what is not there."""
        if path.name in self.missing:
            raise FileUnreadableError(f"{path.name}: no such file (check the path)")

    def open_model(self, *arguments: Any, **options: Any) -> FakeModel:
        """Open a model whatever the arguments: stands in for ``app.backend.local.engine_access.open_model`` and
        the like."""
        progress = options.get("progress") or (
            arguments[-1] if len(arguments) > 1 and callable(arguments[-1]) else None
        )
        return FakeModel.open(_path_among(arguments), progress=progress, script=self)


def _path_among(arguments: Iterable[object]) -> str | Path:
    return next((a for a in arguments if isinstance(a, (str, Path))), "model.gguf")


class FakeTokenizer:
    """Each word with the white space before it is a token; ids are given out in the order of
    appearance."""

    def __init__(self) -> None:
        self._pieces = ["<s>", "</s>", "<system>", "<user>", "<assistant>", "<end>"]
        self._ids = {piece: token_id for token_id, piece in enumerate(self._pieces)}
        self.vocab_size = 100_000
        self.fingerprint = "f" * 32
        self.bos_id = BOS
        self.eos_id = EOS
        self.control: frozenset[str] = frozenset()
        self.end_ids = frozenset({EOS, END})
        self.add_bos = True
        self.add_eos = False
        self.infill = InfillMarks()
        self.most_token_bytes = 10_000

    def id_of(self, piece: str) -> int:
        """Return the id of one piece, new or known."""
        if piece not in self._ids:
            self._ids[piece] = len(self._pieces)
            self._pieces.append(piece)
        return self._ids[piece]

    def encode(self, text: str, bos: bool | None = None, special: bool = True) -> list[int]:
        """Split into words; ``special`` changes nothing, since no text spells a control token
        here."""
        start = [BOS] if (self.add_bos if bos is None else bos) else []
        return start + [self.id_of(piece) for piece in re.findall(r"\s*\S+|\s+$", text)]

    def decode(self, ids: Iterable[int]) -> str:
        """Join the pieces; control tokens are nothing."""
        return "".join(self._pieces[i] for i in ids if i > END)

    def token_text(self, token_id: int | None) -> str:
        """Return a token as it is spelled."""
        return (
            self._pieces[token_id] if token_id is not None and token_id < len(self._pieces) else ""
        )

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token."""
        if token_id >= len(self._pieces):
            return b""
        return self._pieces[token_id].encode() if token_id > END else b""

    def spelled_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token, or of its name."""
        return self.token_text(token_id).encode()

    @property
    def control_texts(self) -> dict[str, int]:
        """Spelling to id of the scripted control tokens."""
        return {piece: self.id_of(piece) for piece in self.control}

    def encode_text(self, text: str, after_special: bool) -> list[int]:
        """Cut text in the middle of a prompt into words."""
        return self.encode(text, bos=False)

    def stream(self, visible_control_ids: Collection[int] = ()) -> SimpleNamespace:
        """A decoder for generated tokens; a piece is whole characters here."""

        def push(token_id: int) -> str:
            if token_id >= len(self._pieces):  # of another start's vocabulary
                return ""
            is_hidden = (
                self._pieces[token_id] in self.control and token_id not in visible_control_ids
            )
            return "" if is_hidden else self.decode([token_id])

        return SimpleNamespace(push=push, flush=lambda: "", is_within_character=False)


@dataclass(frozen=True)
class FakePicture:
    """A picture that is prepared."""

    digest: str


class FakeEncoder:
    """An encoder whose tokens are squares of 32 pixels, with twice the side for each detail."""

    path = Path("mmproj.gguf")
    config = "fake"

    def __init__(self) -> None:
        self.costs = self

    def cost(self, size: tuple[int, int], detail: str) -> PictureCost:
        """Return the cost of a picture."""
        side = 2 ** (("low", "usual", "high").index(detail) - 1)
        width, height = (max(32, round(n * side / 32) * 32) for n in size)
        n_tokens = width * height // 1024
        return PictureCost((width, height), 1, n_tokens, n_tokens * 10**9)

    def products(self, picture: FakePicture) -> int:
        """Return the multiplications of a picture."""
        return 10**9

    def prepare_bytes(self, data: bytes, detail: str, name: str) -> FakePicture:
        """Prepare a picture."""
        return FakePicture(f"{hashlib.sha256(data).hexdigest()}{detail}")


class FakePictures:
    """Pictures of a model that sees; each is a word of its prompt."""

    def __init__(self) -> None:
        self.encoder = FakeEncoder()
        self.on_progress: Callable[[FakePicture, float], None] | None = None

    def prompt_ids(self, picture: FakePicture) -> tuple[int, ...]:
        """Return no ids: the name of a picture is its token."""
        return ()


class FakeChat:
    """A conversation with one marker token per message, appended to and never re-tokenised."""

    def __init__(self, tokenizer: FakeTokenizer, script: Script) -> None:
        self._tokenizer = tokenizer
        self._refused_words = script.refused_words
        self.takes_any_order = True
        self.opening = script.opening
        self.stops = script.stops
        self.thinking = ThinkingMode()
        self.tools: Sequence[Any] = ()
        self.pictures: dict[str, tuple[int, ...]] = {}
        self.messages: list[Message] = []
        self._ids: list[list[int]] = []

    @property
    def thought_budget_tokens(self) -> int | None:
        """The limit of the mode."""
        return self.thinking.budget_tokens

    def start(self, system: str | None) -> None:
        """Begin again."""
        self.messages = []
        self._ids = []
        if system:
            self._append("system", system, self._tokenizer.encode(system, bos=False))

    def add_user(self, text: str) -> list[int]:
        """Append a user's message and return everything up to the place where the reply begins."""
        self.add_unrendered(text)
        try:
            return self.prompt_ids()
        except EngineError:
            self.rewind(len(self.messages) - 1)
            raise

    def add_unrendered(self, text: str) -> None:
        """Append a user's message, whatever the template makes of it."""
        self._append("user", text, self._tokenizer.encode(text, bos=False))

    def add_system(self, text: str) -> None:
        """Append a system message amid the conversation."""
        self._append("system", text, self._tokenizer.encode(text, bos=False))

    def takes(self, roles: tuple[str, ...]) -> bool:
        """Whether the scripted template takes messages in this order."""
        return self.takes_any_order

    def opening_ids(self, text: str) -> list[int]:
        """Return the ids of everything up to the last word of the message that begins so."""
        n_messages = len(self.messages)
        ids = self.add_user(text)
        self.rewind(n_messages)
        return ids[:-3]

    def add_reply(
        self,
        ids: list[int],
        text: str,
        calls: Sequence[ToolCall] = (),
        before_calls: str | None = None,
    ) -> None:
        """Append the reply as it was generated."""
        self._append("assistant", text, list(ids), tuple(calls))

    def add_results(self, results: Sequence[CallResult]) -> None:
        """Append what tools said."""
        text = "\n".join(one.text for one in results)
        self._append("tool", text, self._tokenizer.encode(text, bos=False))
        self.messages[-1] = replace(self.messages[-1], results=tuple(results))

    def rewind(self, n_messages: int) -> None:
        """Keep the first messages only."""
        del self.messages[n_messages:], self._ids[n_messages:]

    def take_reply(self) -> SimpleNamespace:
        """Remove the reply at the end and return its ids and text."""
        ids = self._ids.pop()
        message = self.messages.pop()
        assert message.role == "assistant"
        return SimpleNamespace(ids=tuple(ids[1:-1]), text=message.content)

    def tokenise_again(self) -> None:
        """Nothing is tokenised here."""

    def save(self) -> tuple[list[Message], list[list[int]]]:
        """Return what ``restore`` needs."""
        return list(self.messages), list(self._ids)

    def restore(self, saved: tuple[list[Message], list[list[int]]]) -> None:
        """Go back to a snapshot."""
        self.messages = list(saved[0])
        self._ids = list(saved[1])

    def turn_starts(self) -> list[int]:
        """Where each user's message begins in the prompt."""
        lengths = [len(ids) for ids in self._ids]
        return [
            1 + sum(lengths[:at])
            for at, message in enumerate(self.messages)
            if message.role == "user"
        ]

    def checkpoint_positions(self) -> list[int]:
        """Return the positions where recurrent layers would make checkpoints."""
        return self.turn_starts()

    def prompt_ids(self) -> list[int]:
        """Return the ids after which the next reply begins."""
        if self._refused_words and any(
            self._refused_words in message.content for message in self.messages
        ):
            raise TemplateError("the chat template fails: no")
        return [BOS, *(i for ids in self._ids for i in ids), ASSISTANT]

    def _append(
        self, role: str, text: str, ids: list[int], calls: tuple[ToolCall, ...] = ()
    ) -> None:
        self.messages.append(Message(role, text, calls))
        self._ids.append([_MARKERS[role], *ids, END])


class FakeModel:
    """Stands in for ``engine.Model``."""

    def __init__(self, path: str | Path, script: Script) -> None:
        self.script = script
        self.path = Path(path)
        self.name = self.path.stem
        self.fingerprint = f"{self.name:f<64}"
        self.assistant = SimpleNamespace(assistant=None)
        self.quantization = "Q4_K_M"
        self.tokenizer = FakeTokenizer()
        self.tokenizer.control = script.control
        self.chat_template = SimpleNamespace(
            source="{{ messages }}" if script.has_template else None,
            notice=None,
            call_format=format_of(script.calls_like),
            names_date=script.names_date,
        )
        attention = Attention(8, 4, 32, 32, Rope(10000.0, 32, neighbours=True), 32**-0.5)
        layers = (Layer(attention, Dense(172)),) * 2
        self.config = ModelConfig("llama", 64, layers, 1e-5, 2048, self.tokenizer.vocab_size)
        self.pictures = FakePictures() if script.sees else SimpleNamespace(encoder=None)
        self.weights_mode = "mmap"
        self.threads = 2
        self.prefill_threads = 2
        self.pinned = False
        self.most_threads = max(script.thread_speeds or {4: 1.0})
        self.can_pin = False
        self.has_copy = False
        self.weight_calls: list[str] = []
        self.thread_calls: list[tuple[int, int]] = []
        self.weights_bytes = 1_000_000
        self.bytes_per_token = 900_000
        self.metadata: dict[str, Any] = {}
        self.sessions: list[FakeSession] = []
        self.adapter_calls: list[list[tuple[str, float]]] = []
        self.chats: list[FakeChat] = []
        self.is_closed = False

    @classmethod
    def open(
        cls,
        path: str | Path,
        threads: int | None = None,
        weights: str = "mmap",
        *,
        prefill_threads: int | None = None,
        pinned: bool = False,
        progress: Callable[[Any], None] | None = None,
        script: Script | None = None,
    ) -> FakeModel:
        """Report the scripted progress, then give the model, or raise the scripted error."""
        script = script or Script()
        for step in script.open_progress:
            if script.open_gate:
                script.open_gate.take(threading.Event())
            if progress:
                progress(step)
        if error := script.open_error or script.open_errors.get(Path(path).name):
            raise error
        model = cls(path, script)
        model.set_threads(threads or 2, prefill_threads)
        script.opened.append(model)
        return model

    def set_threads(self, decode: int, prefill: int | None = None) -> None:
        """Remember the counts."""
        self.threads = decode
        self.prefill_threads = prefill or decode
        self.thread_calls.append((self.threads, self.prefill_threads))

    def use_adapters(self, chosen: Sequence[tuple[str, float]]) -> None:
        """Remember the adapters, by their files' names, and forget what was read; or raise the
        scripted error."""
        names = [(Path(path).name, scale) for path, scale in chosen]
        for error in [
            self.script.open_errors[name] for name, _ in names if name in self.script.open_errors
        ]:
            raise error
        self.adapter_calls.append(names)
        for session in self.sessions:
            session.truncate(0)

    @property
    def unwritten_bytes(self) -> int:
        """The part of the caches that is not in memory."""
        return sum(max(0, one.kv_bytes - one.kv_resident_bytes()) for one in self.sessions)

    def set_pinned(self, pinned: bool) -> None:
        """Remember whether threads are bound."""
        self.pinned = pinned

    def use_weights(
        self, mode: str, progress: Callable[[Any], None] | None = None, keep_copy: bool = False
    ) -> None:
        """Remember the mode, with a step of progress where a copy is made."""
        if mode == "huge" and not self.has_copy:
            if self.script.weights_error:
                raise self.script.weights_error
            if progress:
                progress(Progress("load", self.path.name, self.weights_bytes, self.weights_bytes))
            self.has_copy = True
        self.weights_mode = mode
        self.has_copy = self.has_copy and (mode == "huge" or keep_copy)
        if not keep_copy:
            self.weight_calls.append(mode)

    def room_for_both_modes(self) -> SimpleNamespace:
        """Room, unless the script says otherwise."""
        return SimpleNamespace(
            copy_bytes=self.weights_bytes,
            needed_bytes=2 * self.weights_bytes,
            available_bytes=10**9,
            is_enough=self.script.has_room_for_both,
        )

    def bring_weights_in(self) -> None:
        """They are in memory already."""

    def session(
        self,
        n_ctx: int | None = None,
        kv: str = "f16",
        progress: Callable[[Any], None] | None = None,
        peer: FakeSession | None = None,
        default_limit: int = 0,
    ) -> FakeSession:
        """Open a session, unless it is larger than the script allows."""
        if peer is not None and len(self.sessions) >= self.script.most_sessions:
            raise MemoryPlanError(f"{self.path.name}: no room for another session")
        if n_ctx and n_ctx > self.script.n_ctx:
            raise MemoryPlanError(
                f"{self.path.name}: no room for {n_ctx} tokens; {self.script.n_ctx} fit"
            )
        session = FakeSession(self, n_ctx or self.script.n_ctx, kv)
        self.sessions.append(session)
        return session

    @property
    def huge_bytes(self) -> int:
        """All of a copy."""
        return self.weights_bytes if self.weights_mode == "huge" else 0

    notices: tuple[str, ...] = ()

    def clock_ghz(self) -> float | None:
        """Return the clock of the script, in GHz."""
        return self.script.clock_ghz

    def read_bandwidth_gbps(
        self, threads: int | None = None, is_unwanted: Callable[[], bool] = lambda: False
    ) -> float:
        """A machine of ten gigabytes a second, unless something else is to be done."""
        if self.script.bandwidth_gate:
            self.script.bandwidth_gate.take(threading.Event())
        if is_unwanted():
            raise Cancelled("the measurement gave way")
        self.script.n_bandwidth_probes += 1
        return self.script.read_gbps

    def resident_weight_bytes(self) -> int:
        """All of them."""
        return self.weights_bytes

    def chat(self) -> FakeChat:
        """Start a conversation."""
        self.chats.append(FakeChat(self.tokenizer, self.script))
        return self.chats[-1]

    def describe_plan(self) -> list[dict[str, Any]]:
        """Describe two operations."""
        row = {"type": "Q4_K", "shape": (64, 64), "bytes": 2304, "threads": 2, "phase": "decode"}
        return [
            {"op": "matvec", "weights": "blk.0.attn_q", **row},
            {"op": "matvec", "weights": "output", **row},
        ]

    def close(self) -> None:
        """Remember that it was closed."""
        self.is_closed = True


class FakeProfiler:
    """Stands in for ``engine.profiler.Profiler``: one phase that took a second and read a
    gigabyte."""

    def __init__(self) -> None:
        self.is_running = False

    def start(self) -> None:
        """Start the profile."""
        self.is_running = True

    def read(self) -> dict[str, list[Any]]:
        """Return the phase for every plan."""
        phase = SimpleNamespace(
            phase="feed-forward", seconds=1.0, weight_bytes=10**9, gbps=1.0, share=1.0, n_runs=10
        )
        return {
            name: [phase]
            for name in ("decode", "small batch", "small batch last", "block", "block last")
        }

    def stop(self) -> dict[str, list[Any]]:
        """Stop the profile; returns the same as ``read``."""
        self.is_running = False
        return self.read()


class FakeMemory:
    """Stands in for the layers' memory."""

    def repeat(self, n: int, upto: int) -> None:
        """Do nothing: there are no keys and values."""


class FakeSession:
    """Stands in for ``engine.Session``: the cache is a list of token ids, the reply comes from the
    script."""

    def __init__(self, model: FakeModel, n_ctx: int, kv: str) -> None:
        self.model = model
        self._script = model.script
        self.n_ctx = n_ctx
        self.kv_type = "f16" if kv == "auto" else kv
        self.kv_bytes = n_ctx * 256
        self.notices = model.script.session_notices
        self.kv_bytes_per_position = 256.0
        self.state_bytes = 0
        self.tokens: list[int] = []
        self.finish_reason = ""
        self.stop_string = ""
        self.n_guessed = 0
        self.guess_tally = GuessTally()
        self.guess_costs = GuessCosts()
        self.earlier_text: object | None = None
        self.fed_counts: list[int] = []
        self.samplings: list[Any] = []
        self.is_closed = False
        self.profiler = FakeProfiler()
        self.memory = FakeMemory()
        self._cancelled = threading.Event()
        self._reply: list[str] = []

    def kv_resident_bytes(self) -> int:
        """As much as the tokens fill."""
        return self.length * 256

    @property
    def length(self) -> int:
        """Number of tokens in the cache."""
        return len(self.tokens)

    def feed(
        self,
        ids: Iterable[int],
        all_logits: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Any:
        """Take tokens into the cache, one step each, and return logits of zeros."""
        import numpy as np

        wanted = list(ids)
        self._take_in(wanted, on_progress)
        shape = (len(wanted), 16) if all_logits else (16,)
        return np.zeros(shape, np.float32)

    def prefill(
        self,
        ids: Iterable[int],
        on_progress: Callable[[int, int], None] | None = None,
        checkpoint_positions: Collection[int] = (),
        n_replied: int = 0,
    ) -> PrefillResult:
        """Keep the longest common prefix and take in the rest."""
        wanted = list(ids)
        started_s = self._script.clock()
        shared = self.reusable(wanted)
        self.truncate(shared)
        self._take_in(wanted[shared:], on_progress)
        return PrefillResult(shared, len(wanted) - shared, self._script.clock() - started_s)

    def reusable(self, ids: Sequence[int]) -> int:
        """Tokens that ``prefill`` would keep."""
        return min(common_prefix(self.tokens, ids), len(ids) - 1)

    def has_lost(self, ids: Sequence[int]) -> bool:
        """Return False: the fake can always go back."""
        return False

    def shift_towards(self, ids: Sequence[int]) -> int:
        """Drop the tokens from the midst that a prompt lacks, if it goes on with what comes after
        them."""
        wanted = list(ids)
        kept = common_prefix(wanted, self.tokens)
        for n_drop in range(1, self.length - kept - 16 + 1):
            rest = self.tokens[kept + n_drop :]
            if wanted[kept : kept + len(rest)] == rest:
                del self.tokens[kept : kept + n_drop]
                return n_drop
        return 0

    def _take_in(self, ids: list[int], on_progress: Callable[[int, int], None] | None) -> None:
        self._cancelled.clear()
        if self.length + len(ids) > self.n_ctx:
            raise ContextFullError(
                f"{self.length + len(ids)} tokens, but the context holds {self.n_ctx}"
            )
        if self._script.prefill_error:
            raise self._script.prefill_error
        good_length = self.length
        for done, token_id in enumerate(ids, start=1):
            if self._script.prefill_gate:
                self._script.prefill_gate.take(self._cancelled)
            if self._cancelled.is_set():
                self.truncate(good_length)
                raise Cancelled("stopped while reading the prompt")
            self.tokens.append(token_id)
            threads = self.model.prefill_threads if len(ids) > 3 else self.model.threads
            speed = (self._script.thread_speeds or {}).get(threads, 1.0)
            speed *= self._script.weight_speeds.get(self.model.weights_mode, 1.0)
            speed *= self._script.kv_speeds.get(self.kv_type, 1.0)
            self._script.clock.advance(self._script.seconds_per_prompt_token / speed)
            if on_progress:
                on_progress(done, len(ids))
        self.fed_counts.append(len(ids))

    def replay(
        self, ids: Sequence[int], kinds: Collection[str], on_logits: Callable[[Any], object] | None
    ) -> ReplayedGuesses:
        """Take half the time a token where guesses are allowed: half the tokens are guessed, and
        every second guess comes true."""
        self.tokens += ids
        is_guessed = bool(kinds)
        self._script.clock.advance(self._script.seconds_per_token * len(ids) / (1 + is_guessed))
        if on_logits is not None:
            on_logits(self._script.wrong_guess.encode() if is_guessed else b"")
        return ReplayedGuesses(len(ids), len(ids) // 2) if is_guessed else ReplayedGuesses()

    def generate(
        self,
        sampling: Any,
        max_tokens: int | None = None,
        stop: Iterable[str] = (),
        after: Sequence[int] = (),
        visible_control_ids: Collection[int] = (),
        guess: bool = False,
        n_logprobs: int | None = None,
    ) -> Iterator[GeneratedToken]:
        """Yield the next scripted reply, token by token; or the rest of the last one, after the ids
        ``after``.

        After ids that do not begin the last one, the next one follows.
        """
        self._cancelled.clear()
        self.samplings.append(sampling)
        if after:
            assert self.tokens[-len(after) :] == list(after), (
                "the cache does not end with what is continued"
            )
        begun = self._reply[: len(after)]
        if not after or list(after) != [self.model.tokenizer.id_of(piece) for piece in begun]:
            begun = []
            self._reply = self._script.replies[0]
            if len(self._script.replies) > 1:
                self._script.replies.pop(0)
        stream = self.model.tokenizer.stream(visible_control_ids)
        self.finish_reason = ""
        self.stop_string = ""
        text = ""
        for count, piece in enumerate(self._reply[len(begun) :]):
            if max_tokens is not None and count >= max_tokens:
                self.finish_reason = "length"
                return
            if self.length >= self.n_ctx:
                self.finish_reason = "context"
                return
            if self._script.token_gate:
                self._script.token_gate.take(self._cancelled)
            if self._cancelled.is_set():
                self.finish_reason = "cancelled"
                return
            if (
                self._script.fail_after_tokens is not None
                and count >= self._script.fail_after_tokens
            ):
                raise self._script.generate_error
            self._script.clock.advance(self._script.seconds_per_token)
            token_id = self.model.tokenizer.id_of(piece)
            self.tokens.append(token_id)
            text += piece
            top = tuple((token_id + at, -0.5 - at) for at in range(n_logprobs or 0))
            logprobs = None if n_logprobs is None else TokenLogprobs(-0.5, top)
            yield GeneratedToken(token_id, stream.push(token_id), logprobs)
            if any(end in text for end in stop):
                break
        self.finish_reason = "stop"
        if self._script.held_back:
            # Text that waited for a decision comes without a token of its own, as from the engine.
            yield GeneratedToken(self.tokens[-1], self._script.held_back)

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Drop on leaving all tokens fed inside."""
        length = self.length
        try:
            yield
        finally:
            self.truncate(length)

    def adopt(self, ids: Sequence[int]) -> None:
        """Append tokens without computing them."""
        self.tokens += ids

    def truncate(self, n: int) -> None:
        """Forget what comes after the first n tokens."""
        del self.tokens[n:]

    def cancel(self) -> None:
        """Stop whatever runs, from any thread."""
        self._cancelled.set()
        for gate in (self._script.prefill_gate, self._script.token_gate):
            if gate:
                gate.wake()

    def close(self) -> None:
        """Remember that it was closed."""
        self.is_closed = True
