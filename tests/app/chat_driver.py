"""Drives the chat in tests: an application over the scripted engine, and waiting for what must
become true."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from textual.pilot import Pilot

from app.backend.options import ChatOptions
from app.program.settings import built_in_settings, override
from app.text.clean_text import screen_text
from app.tui.app import JalopyApp
from app.tui.chat_options import tool_box
from app.tui.keymap import Keymap
from app.tui.widgets.message_view import Note, ReplyView
from app.tui.widgets.reply_body import ReplyBody
from engine import Sampling
from tests.app.fake_engine import Script
from tests.app.settling import draw, look, settled

SAMPLING = Sampling(temperature=0.7, seed=5)
_PATIENCE_S = 60.0
_COMPILING_PATIENCE_S = 250.0
_LONGEST_PAUSE_S = 0.02
TITLE_PAUSE = "app.tui.chat.conversation_upkeep.TITLE_PAUSE_S"


def shown_source(body: ReplyBody) -> str:
    """Return the source of the text that a reply has drawn so far."""
    return body._markdown.source if body._markdown.width else ""


def options_for(script: Script) -> ChatOptions:
    return ChatOptions(
        recalls_choices=True,
        open_model=script.open_model,
        sampling=lambda chosen, model, mode: SAMPLING,
        glance_at_model=script.glance_at_model,
    )


class Driver:
    """The running application, with the words the tests think in."""

    def __init__(
        self, app: JalopyApp, pilot: Pilot[None], script: Script, patience_s: float = _PATIENCE_S
    ) -> None:
        self.patience_s = patience_s
        self.app = app
        self.pilot = pilot
        self.script = script
        self.prompt = app.chat.prompt
        self.transcript = app.chat.transcript
        self.chat = app.chat

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        """Let the application run until the condition holds."""
        give_up_s = time.monotonic() + self.patience_s
        pause_s = 0.0
        while not condition():
            if time.monotonic() > give_up_s:
                pytest.fail(f"never happened: {what or condition}; shown:\n{self.screen_text()}")
            await settled()
            await asyncio.sleep(pause_s)  # threads get their share
            pause_s = min(_LONGEST_PAUSE_S, pause_s + 0.002)

    async def ready(self) -> None:
        await self.until(
            lambda: self.chat.core.chat_session.model is not None, "the model is loaded"
        )
        await self.pilot.pause()  # the screen shows it: a conversation before it goes

    async def type(self, text: str) -> None:
        await self.pilot.press(*(" " if c == " " else {"/": "slash"}.get(c, c) for c in text))

    async def say(self, text: str) -> None:
        """Send a message or a command."""
        self.prompt.focus()
        self.prompt.show_text(text)
        await self.pilot.press("enter")

    async def ask(self, text: str) -> ReplyView:
        """Send a message and wait for the whole reply."""
        before = self.chat.core.chat_session.conversation.last_reply
        await self.say(text)
        await self.until(
            lambda: self.chat.core.chat_session.conversation.last_reply is not before,
            f"a reply to {text}",
        )
        return await self.last_reply()

    async def last_reply(self) -> ReplyView:
        """Return the newest reply once it has had its final pass."""
        await self.until(
            lambda: self.transcript.replies() and self.transcript.replies()[-1].body.is_final
        )
        reply = self.transcript.replies()[-1]
        await self.until(
            lambda: shown_source(reply.body) == screen_text(reply.text), "the final pass is done"
        )
        return reply

    def notes(self) -> list[str]:
        """Return the program's lines that are shown, oldest first."""
        return [entry.text for entry in self.transcript._entries() if isinstance(entry, Note)]

    async def note(self, part: str) -> str:
        """Wait for a line by the program that contains the part."""
        await self.until(lambda: any(part in note for note in self.notes()), f"a note: {part}")
        return next(note for note in reversed(self.notes()) if part in note)

    async def shows(self, text: str) -> None:
        """Wait for the text on the screen: what the program knows it draws a moment later."""
        await self.until(lambda: text in self.screen_text(), f"the screen shows {text!r}")

    async def hides(self, text: str) -> None:
        """Wait until the text is not on the screen, where it may stand until the next frame."""
        await self.until(lambda: text not in self.screen_text(), f"the screen hides {text!r}")

    def screen_text(self) -> str:
        """The terminal's text, line by line."""
        return "\n".join(strip.text for strip in look(self.app))


@asynccontextmanager
async def chatting(
    script: Script | None = None,
    size: tuple[int, int] = (80, 24),
    model: str | None = "model.gguf",
    wait: bool = True,
    keymap: Keymap | None = None,
    title_pause_s: float = 3600.0,
    **settings: object,
) -> AsyncIterator[Driver]:
    """Run the chat over a script; with a model, wait until it is loaded unless told otherwise."""
    script = script or Script()
    chosen = dataclasses.replace(built_in_settings(), **{"resume": "last", **settings})
    options = dataclasses.replace(options_for(script), tools=tool_box(chosen))
    app = JalopyApp(
        chosen, Path(model) if model else None, options=options, clock=script.clock, keymap=keymap
    )
    # A busy disk is not what is tested, and titles would take the script's replies.
    with patch("app.tui.app.SAVING_PATIENCE_S", _PATIENCE_S), patch(TITLE_PAUSE, title_pause_s):
        async with app.run_test(size=size) as pilot:
            driver = Driver(app, pilot, script)
            if model and wait:
                await driver.ready()
            yield driver
            draw(app)
            for gate in (
                script.open_gate,
                script.prefill_gate,
                script.token_gate,
                script.bandwidth_gate,
            ):
                if gate:
                    gate.open()
    # The program would end with its thread; here the thread goes on, and writes files that a test
    # looks at.
    app.engine_thread.close(_PATIENCE_S)


@asynccontextmanager
async def chatting_for_real(
    model: Path, size: tuple[int, int] = (80, 24), **settings_in_use: object
) -> AsyncIterator[Driver]:
    """Run the chat over the engine itself, which may have to compile, and always takes the
    likeliest token."""
    chosen = dataclasses.replace(built_in_settings(), **settings_in_use)
    settings = override(chosen, "sampling.temperature", 0.0, "a test")
    app = JalopyApp(settings, model)
    async with app.run_test(size=size) as pilot:
        driver = Driver(app, pilot, Script(), _COMPILING_PATIENCE_S)
        await driver.ready()
        yield driver
