"""The engine's thread: hands each command to whatever computes the open model, the engine here or a server elsewhere.

Both sides answer in the same events (``app.chat.events``), so that nobody else needs to know which it is.
"""

from __future__ import annotations

from app.chat.commands import Close, Command, Examine, Load, Worker
from app.chat.options import ChatOptions
from app.chat.wire import Wire
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
            worker = None
            try:
                worker = self._worker_for(command)
                if worker is not None:
                    worker.obey(command)
            except BaseException as error:  # the thread must outlive any bug, or the chat would wait forever
                (worker or self._at_work or self._local_worker()).report(command, error)
        if self._options.tools is not None:
            self._options.tools.close()
        if self._at_work is not None:
            self._at_work.unload()

    def _worker_for(self, command: Command) -> Worker | None:
        """Return who carries a command out; None where it was said why a model is not opened."""
        if isinstance(command, Examine):
            return self._local_worker()
        if not isinstance(command, Load):
            return self._at_work or self._local_worker()
        before, chosen = self._at_work, self._opener(command)
        if before is not None and before is not chosen and before.is_open:
            if not chosen.can_open(command.path):
                before.settle()
                return None
            before.unload()
        self._at_work = chosen
        return chosen

    def _opener(self, command: Load) -> Worker:
        if self._options.remote is None or not isinstance(command.path, RemoteModel):
            return self._local_worker()
        if self._remote is None:
            self._remote = self._options.remote(self._wire, self._options)
        return self._remote

    def _local_worker(self) -> Worker:
        if self._local is None:
            from app.chat.worker import EngineWorker

            self._local = EngineWorker(self._wire, self._options)
        return self._local
