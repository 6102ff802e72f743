"""A conversation over a scripted engine, driven as a screen would."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.backend.engine_thread import EngineThread
from app.backend.options import ChatOptions
from app.conversations.conversation import Ending
from app.session.chat_session import ChatSession
from app.session.events import Event, GenerationFinished, ModelLoaded, TextGenerated
from tests.app.fake_engine import FakeSession, Gate, Script

PATIENCE_S = 60.0


class Engine:
    """Engine thread and chat session over a script, with the events not yet collected."""

    patience_s = PATIENCE_S

    def __init__(self, script: Script, **options: Any) -> None:
        self.script = script
        options = {
            "open_model": script.open_model,
            "sampling": lambda chosen, model, mode: "sampling",
            **options,
        }
        self.begin(ChatOptions(**options), script.clock)

    def begin(self, options: ChatOptions, *clock: Callable[[], float]) -> None:
        self.engine_thread = EngineThread(options, *clock)
        self.chat_session = ChatSession(self.engine_thread, None)
        self.messages: list[Event] = []
        self.engine_thread.start()

    def drain(self) -> list[Event]:
        """Handle the events that have arrived, and return them."""
        drained = self.engine_thread.drain()
        for event in drained:
            self.chat_session.handle(event)
        return drained

    def until(self, condition: Callable[[], object]) -> None:
        """Handle events until a condition holds."""
        give_up_s = time.monotonic() + self.patience_s
        while not condition():
            assert time.monotonic() < give_up_s, f"it never came: {self.messages}"
            self.messages += self.drain()
            threading.Event().wait(0.001)

    def idle(self) -> None:
        """Handle events until the engine thread is idle."""
        self.until(lambda: not self.engine_thread.inbox.idle_work.is_pending)

    def wait_for(self, event_type: type) -> Any:
        """Handle events until one of a type has arrived, and return it. Drop earlier events."""
        self.until(lambda: any(isinstance(message, event_type) for message in self.messages))
        index = next(
            index for index, message in enumerate(self.messages) if isinstance(message, event_type)
        )
        event = self.messages[index]
        self.messages = self.messages[index + 1 :]
        return event

    def collect(self, end: type = GenerationFinished) -> list[Event]:
        """Return all events up to the one that ends the turn."""
        collected: list[Event] = []
        while not any(isinstance(message, end) for message in collected):
            collected += self.drain()
        return collected

    def load(self, system: str | None = None) -> ModelLoaded:
        if system:
            self.chat_session = ChatSession(self.engine_thread, system)
        self.chat_session.load(Path("model.gguf"))
        return self.wait_for(ModelLoaded)

    def ask(self, text: str) -> GenerationFinished:
        self.chat_session.submit(text)
        return self.wait_for(GenerationFinished)

    def hear(self, text: str, end: type = GenerationFinished) -> list[Event]:
        """Send a message and return all events up to the end of the turn."""
        self.chat_session.submit(text)
        return self.collect(end)

    def stop_after(self, n_tokens: int, begin: Callable[[], object]) -> GenerationFinished:
        """Start a reply and stop it after a number of tokens."""
        self.script.token_gate = gate = Gate()
        begin()
        gate.allow(n_tokens)
        assert gate.waiting.wait(PATIENCE_S)
        self.engine_thread.cancel()
        finished = self.wait_for(GenerationFinished)
        assert finished.ending is Ending.STOPPED
        gate.open()
        return finished

    def close(self) -> None:
        script = self.script
        for gate in (
            script.open_gate,
            script.prefill_gate,
            script.token_gate,
            script.bandwidth_gate,
        ):
            if gate:
                gate.open()
        assert self.engine_thread.close(PATIENCE_S)

    @property
    def session(self) -> FakeSession:
        return self.script.opened[-1].sessions[-1]


def texts(messages: list[Event], event_type: type = TextGenerated) -> str:
    return "".join(message.text for message in messages if isinstance(message, event_type))
