"""The engine's thread: hands each command to whatever computes the open model, the engine here or a server elsewhere.

Both sides answer in the same events (``app.chat.events``), so that nobody else needs to know which it is.
"""

from __future__ import annotations

from app.chat.commands import Close, Examine, Load, Worker
from app.chat.options import ChatOptions
from app.chat.wire import Wire
from app.program.refusals import Refusal
from app.program.remote_model import RemoteModel


class Crew:
    """The workers, each made when it is first needed."""

    def __init__(self, wire: Wire, options: ChatOptions) -> None:
        self._wire, self._options = wire, options
        self._local: Worker | None = None
        self._remote: Worker | None = None
        self._at_work: Worker | None = None
        """The one with the open model; None before the first command."""

    def run(self) -> None:
        """Take commands until ``Close``. Whatever a command raises becomes an event."""
        while not self._wire.closing.is_set():
            command = self._wire.commands.get()
            if isinstance(command, Close):
                break
            worker = self._local_worker() if isinstance(command, Examine) else self._at_work or self._local_worker()
            try:
                if isinstance(command, Load):
                    worker = self._at_work = self._chosen(command)
                worker.obey(command)
            except _KeptError:
                pass
            except BaseException as error:  # the thread must outlive any bug, or the chat would wait for ever
                worker.report(command, error)
        if self._at_work is not None:
            self._at_work.unload()

    def _chosen(self, command: Load) -> Worker:
        """Return who opens a model; the other one closes its own, unless it is seen beforehand that this is in vain."""
        chosen = self._remote_worker() if isinstance(command.path, RemoteModel) else self._local_worker()
        before = self._at_work
        if before is not None and before is not chosen and before.is_open:
            if not chosen.can_open(command.path):
                before.settle()
                raise _KeptError
            before.unload()
        return chosen

    def _local_worker(self) -> Worker:
        if self._local is None:
            from app.chat.worker import EngineWorker

            self._local = EngineWorker(self._wire, self._options)
        return self._local

    def _remote_worker(self) -> Worker:
        if self._remote is None:
            if self._options.remote is None:
                raise Refusal("models of other machines cannot be used here")
            self._remote = self._options.remote(self._wire, self._options)
        return self._remote


class _KeptError(Exception):
    """The model from before stays, as was said."""
