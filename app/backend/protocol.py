"""What computes replies, the engine of this machine or a server elsewhere, as the bridge hands them
their work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from app.backend.reply import ReplyMeter
from app.program.remote_model import ModelPlace
from app.session.request import Request
from app.text.record import record
from engine.prompt.tools.calls import ToolCall

THREADS_AND_WEIGHTS = ("counts", "pinning", "weights")
KV_TYPES = ("kv",)
"""Parts of tuning, as ``engine.tuning.report`` names them."""


@record
class Opening:
    """A model to open in place of the present one."""

    place: ModelPlace
    request: Request
    """The conversation so far; the present model reads it again if it is opened in place of the new
    one."""
    state: Path | None = None
    """Where the state of the cache may be found, for whichever model reads the conversation."""
    keeps: bool = True
    """Whether the new one goes on with the conversation."""
    rereads: bool = True
    """Whether the model reads it before anything new is asked; else with what is asked next."""


@record
class DocumentToRead:
    """A document that a conversation may begin with."""

    key: str
    request: Callable[[], Request]
    """Returns what such a conversation begins with: the document is its message, which goes on."""
    state: Path
    """What the names of files begin with about the states of a conversation that has it."""
    is_read: bool
    """Whether to read what is not saved of it."""


class Backend(Protocol):
    """Does the work of one kind of model, in the engine's thread, and emits events of what comes of
    it.

    All of it may raise: the bridge says what went wrong.
    """

    @property
    def is_open(self) -> bool:
        """Whether a model of this kind is open."""

    def look_at(self, place: ModelPlace) -> None:
        """Look at a model while another one is open. Raises Exception: it cannot be opened."""

    def open(self, opening: Opening) -> None:
        """Open a model, with a conversation or a new one."""

    def reply(self, request: Request) -> None:
        """Answer a request."""

    def continue_conversation(self, request: Request, state: Path | None = None) -> None:
        """Take in another conversation, or a new one; what the cache holds of it is not read
        again."""

    def read(self, request: Request) -> None:
        """Read what is known of a request, whose last message may grow, and keep the state."""

    def read_ahead(self, request: Request, draft: str, is_read: bool, is_settled: bool) -> None:
        """Count the tokens of the request's last message, a ``draft``, and read it while nothing is
        asked.

        Args:
            is_read: whether to read it too.
            is_settled: whether it is of documents, which stay: any length is worth the time.
        """

    def read_document(self, wanted: DocumentToRead) -> None:
        """Say how much is saved of a document; read the rest and save it, apart from the
        conversation that is open."""

    def weigh(self, request: Request, draft: str) -> None:
        """Say what a request would cost whose text is a ``draft``; changes nothing."""

    def write_title(self, request: Request, conversation_id: str) -> None:
        """Write a title for a conversation while nothing else is asked."""

    def call_tools(self, calls: tuple[ToolCall, ...], allowed: frozenset[str]) -> None:
        """Run calls; those whose ids are not allowed are told to the model as refused."""

    def use_adapters(self, adapters: tuple[str, ...]) -> None:
        """Change the model by these adapters in place of those before."""

    def tune(self, parts: tuple[str, ...]) -> None:
        """Search for the best thread counts and memory modes: ``parts`` as of
        ``engine.tuning.sweep.BUDGETS_S``."""

    def measure_bandwidth(self) -> None:
        """Find out how fast memory can be read, if nothing else is to be done."""

    def settle(self, meter: ReplyMeter | None = None) -> None:
        """Say that the thread is free; ``meter`` has the last reply's figures."""

    def unload(self) -> None:
        """Close the model, if one is open."""
