"""The protocol of a backend, which computes replies: the engine of this machine or a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from app.backend.reply import ReplyMeter
from app.program.remote_model import ModelPlace
from app.session.request import Request
from app.text.record import record
from engine.prompt.tools.calls import ToolCall

THREADS_AND_WEIGHTS = ("counts", "pinning", "weights")
KV_TYPES = ("kv",)
"""Parts of tuning, named as in ``engine.tuning.report``."""
RACE = ("race",)
"""Requests a race of thread counts instead of a search."""
ENERGY = ("energy",)
"""Requests a measurement of the energy per token instead of a search."""


@record
class Opening:
    """Request to open a model in place of the present one."""

    place: ModelPlace
    request: Request
    """Conversation so far; if opening fails, the previous model may have to read it again."""
    state: Path | None = None
    """Beginning of the paths of the conversation's saved states; None if there are none."""
    keeps: bool = True
    """Whether the conversation continues with the new model."""
    rereads: bool = True
    """Whether the model reads the conversation at once; otherwise it does with the next request."""


@record
class DocumentToRead:
    """Request to read a document ahead, for conversations that begin with it."""

    key: str
    request: Callable[[], Request]
    """Returns the beginning of such a conversation; the document is the last message."""
    state: Path
    """Beginning of the paths of the states of a conversation that has the document."""
    is_read: bool
    """Whether to read what is not saved."""


class Backend(Protocol):
    """Computes with one kind of model, in the engine thread, and emits events.

    Every method may raise; the caller reports the error.
    """

    @property
    def is_open(self) -> bool:
        """Whether a model of this kind is open."""

    def look_at(self, place: ModelPlace) -> None:
        """Check a model while another one is open. Raises Exception: it cannot be opened."""

    def open(self, opening: Opening) -> None:
        """Open a model."""

    def reply(self, request: Request) -> None:
        """Answer a request."""

    def compare(self, place: Path, request: Request, back: Opening) -> None:
        """Answer a request with another model, next to the reply that there is.

        Args:
            place: file of the other model.
            back: opens the present model again.
        """

    def continue_conversation(self, request: Request, state: Path | None = None) -> None:
        """Continue another conversation or begin a new one; cached tokens are not read again."""

    def read(self, request: Request) -> None:
        """Prefill a request whose last message may grow, and save the state."""

    def read_ahead(self, request: Request, draft: str, is_read: bool, is_settled: bool) -> None:
        """Count the tokens of ``draft``, the last message of the request.

        Args:
            is_read: whether to prefill it too.
            is_settled: whether it consists of documents, which do not change: any length is worth
                the time.
        """

    def read_document(self, document: DocumentToRead) -> None:
        """Report how much of a document is saved, then read and save the rest.

        The open conversation stays as it is.
        """

    def weigh(self, request: Request, draft: str) -> None:
        """Report the cost of a request that has ``draft`` as its text; change nothing."""

    def write_title(self, request: Request, conversation_id: str) -> None:
        """Write a title for a conversation while nothing else is requested."""

    def call_tools(self, calls: tuple[ToolCall, ...], settled: Mapping[str, str]) -> None:
        """Run tool calls and report their results.

        Args:
            settled: results of calls that do not run, by their ids.
        """

    def use_adapters(self, adapters: tuple[str, ...]) -> None:
        """Replace the adapters of the model."""

    def use_kv_type(self) -> None:
        """Use the requested type of KV cache."""

    def tune(self, parts: tuple[str, ...]) -> None:
        """Search for the best settings; ``parts`` are keys of ``engine.tuning.sweep.BUDGETS_S``."""

    def measure_bandwidth(self) -> None:
        """Measure how fast memory can be read, if there is nothing else to do."""

    def report_free(self, meter: ReplyMeter | None = None) -> None:
        """Report that the thread is free; ``meter`` has the figures of the last reply."""

    def unload(self) -> None:
        """Close the model, if one is open."""
