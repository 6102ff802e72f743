"""``python -m tests.programs.readme_pictures MODEL``: the README's pictures, of a real chat.

The chat itself runs with a real model, and nothing is made up: the speed, the curve and the marks
are those of this machine. Close other programs first, or the pictures say that they were open.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.backend.status import Activity

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from app.tui.app import JalopyApp

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
SIZE = (110, 50)
FIRST_QUESTIONS = (
    "Why is a solid state disk faster than a hard disk? Answer in one paragraph.",
    "What is a file system? Answer in one paragraph.",
    "How does an operating system find a file? Answer in one paragraph.",
)
"""Questions whose replies are the usual speed and the history."""
QUESTION = (
    "First show a Markdown table of the commands df, du and lsblk with the columns Command and "
    "What it shows. Then write a short Python function that returns the ten largest files in a "
    "folder."
)
FEWER_THREADS_AT = 75
MORE_THREADS_AT = 165
BACK_AT = 215
CHAT_AT = 268
SPEED_AT = 320
"""Tokens of the reply at which the keys are pressed, and the pictures are drawn."""
_LONGEST_START_S = 300.0
_LONGEST_REPLY_S = 300.0
_PROBE_S = 40.0
_PERIOD_S = 0.05
_FRAME_S = 0.5
_MARK = "▼"


class PictureError(Exception):
    """The pictures cannot be drawn; the message says why."""


class Session:
    """A running chat that a script uses as a person would."""

    def __init__(self, app: JalopyApp, pilot: Pilot[None]) -> None:
        self._app = app
        self._pilot = pilot

    async def wait(self, condition: Callable[[], object], what: str, limit_s: float) -> None:
        """Wait until a condition holds. Raises PictureError: it took too long."""
        give_up_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > give_up_s:
                raise PictureError(f"waited {limit_s:.0f} s for this: {what}")
            await asyncio.sleep(_PERIOD_S)

    async def ready(self) -> None:
        """Wait for the model."""
        core = self._app.chat.core
        await self.wait(lambda: core.chat_session.model, "the model is open", _LONGEST_START_S)

    async def send(self, text: str) -> None:
        """Send a message."""
        prompt = self._app.chat.prompt
        prompt.focus()
        prompt.show_text(text)
        await self.press("enter")
        await asyncio.sleep(_FRAME_S)

    async def press(self, *keys: str) -> None:
        """Press keys."""
        await self._pilot.press(*keys)

    async def measure_memory(self) -> None:
        """Open the performance screen until it knows the limit; a busy machine has none."""
        await self.press("f2")
        engine_thread = self._app.engine_thread
        with suppress(PictureError):
            await self.wait(lambda: engine_thread.state.figures.read_gbps, "the limit", _PROBE_S)
        await self.press("escape")

    async def tokens(self, n_tokens: int) -> None:
        """Wait until a number of tokens of the running reply is written."""

        def is_written() -> bool:
            status = self._app.engine_thread.status
            if status.meter is not None and status.meter.tokens >= n_tokens:
                return True
            if status.activity is Activity.READY:
                raise PictureError(f"the reply has fewer than {n_tokens} tokens: change QUESTION")
            return False

        await self.wait(is_written, f"{n_tokens} tokens are written", _LONGEST_REPLY_S)

    async def replied(self) -> None:
        """Wait until the reply to the last message is complete and drawn."""
        core = self._app.chat.core
        transcript = self._app.chat.transcript

        def is_drawn() -> bool:
            replies = transcript.replies()
            is_over = core.engine_thread.status.activity is Activity.READY
            return is_over and bool(replies) and replies[-1].body.is_final

        await self.wait(is_drawn, "the reply is complete", _LONGEST_REPLY_S)
        await asyncio.sleep(_FRAME_S)

    def draw(self, name: str) -> Path:
        """Save the screen as a picture and return its path."""
        drawn = self._app.export_screenshot(title="jalopy", simplify=True)
        # a picture must not load fonts from a server
        drawn = re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", drawn, flags=re.DOTALL)
        path = FOLDER / f"{name}.svg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(drawn, encoding="utf-8")
        return path


async def draw_pictures(model: Path) -> list[Path]:
    """Talk with a model and return the paths of the pictures.

    Raises PictureError: something that the pictures show did not happen.
    """
    from app.program.settings import built_in_settings, override
    from app.tui.app import JalopyApp

    settings = replace(built_in_settings(), write_titles="off", keep_kv_states="off", resume="new")
    settings = override(settings, "sampling.temperature", 0.0, "readme-pictures")
    app = JalopyApp(settings, model)
    async with app.run_test(size=SIZE) as pilot:
        session = Session(app, pilot)
        await session.ready()
        await session.measure_memory()
        for question in FIRST_QUESTIONS:
            await session.send(question)
            await session.replied()
        await session.send("/new")
        await session.press("ctrl+t")
        await session.send(QUESTION)
        await session.press("f2")
        await session.tokens(FEWER_THREADS_AT)
        await session.press("minus")
        await session.tokens(MORE_THREADS_AT)
        await session.press("plus")
        await session.tokens(BACK_AT)
        await session.press("escape")
        await session.tokens(CHAT_AT)
        chat = session.draw("chat")
        await session.press("f2")
        await session.tokens(SPEED_AT)
        speed = session.draw("speed")
    if _MARK not in speed.read_text(encoding="utf-8"):
        raise PictureError("the curve has no marks: this machine has one thread, or + and - failed")
    return [speed, chat]


def main(argv: list[str]) -> int:
    """Draw the pictures; return the exit code."""
    parser = argparse.ArgumentParser(prog="readme_pictures", description=__doc__)
    parser.add_argument("model", type=Path, help="GGUF file of a chat model")
    model = parser.parse_args(argv).model.resolve()
    if not model.is_file():
        print(f"readme_pictures: {model}: no such file", file=sys.stderr)
        return 2
    os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    with tempfile.TemporaryDirectory() as home:
        for base in ("CONFIG", "STATE", "DATA"):  # the cache has compiled kernels
            os.environ[f"XDG_{base}_HOME"] = home
        try:
            for path in asyncio.run(draw_pictures(model)):
                print(path)
        except PictureError as error:
            print(f"readme_pictures: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
