"""How many files a message passes from Enter to the first piece of its reply, and which of them
lead it."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

from tests.app.chat_driver import chatting
from tests.app.fake_engine import Gate, Script

ROOT = Path(__file__).resolve().parents[3]
MOST_FILES = 60
MOST_ON_SPINE = 12
LAST = "append", "reply_body.py"
"""Shows the first piece."""


def spine() -> list[str]:
    """The files that lead a message, as the page of the application lists them."""
    page = (ROOT / "app/README.md").read_text(encoding="utf-8")
    return re.findall(r"^\d+\. `(app/[\w/.]+\.py)`", page, re.MULTILINE)


async def passed_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the files of the program that run between Enter and the first piece on the screen, in
    order."""
    passed: dict[str, None] = {}
    is_watched = False
    # the screen's and the engine's; what others do meanwhile, as saving, is not on it
    ways = {threading.main_thread()}

    def watch(frame: FrameType, event: str, _: object) -> None:
        nonlocal is_watched
        name = frame.f_code.co_filename
        if is_watched and event == "call" and name.startswith((f"{ROOT}/app/", f"{ROOT}/engine/")):
            thread = threading.current_thread()
            if thread in ways or thread.name == "jalopy-engine":
                passed.setdefault(str(Path(name).relative_to(ROOT)))
            if (frame.f_code.co_name, Path(name).name) == LAST:
                is_watched = False

    script = Script()
    for period in (
        "screen.SAVE_PERIOD_S",
        "screen.DOCUMENTS_PERIOD_S",
        "events.MEASURE_PERIOD_S",
        "composer.DRAFT_PERIOD_S",
        "composer.SENT_DRAFT_PERIOD_S",
    ):  # what the clock begins is no part of the way
        monkeypatch.setattr(f"app.tui.chat.{period}", 3600.0)
    monkeypatch.setattr("app.tui.app.INTERFACE_COST_PERIOD_S", 3600.0)
    monkeypatch.setattr("app.tui.app.DOWNLOAD_LOOK_S", 3600.0)
    monkeypatch.setattr("app.tui.speed.watch.PerformanceWatch.sample_reply", lambda watch: None)
    monkeypatch.setattr("app.backend.kernel_build.PERIOD_S", 3600.0)
    threading.setprofile(watch)  # the engine's thread begins with it
    try:
        async with chatting(script, size=(80, 40)) as driver:  # a scroll bar is no part of the way
            await driver.note("room for")  # the welcome is no part of the way
            await driver.ask("the first one imports and compiles")
            driver.prompt.focus()
            driver.prompt.show_text("hello")
            await driver.pilot.pause()
            await driver.until(lambda: not driver.app.engine_thread.status.is_busy)
            script.token_gate = Gate()
            is_watched = True
            sys.setprofile(watch)
            await driver.pilot.press("enter")
            await driver.until(script.token_gate.waiting.is_set)
            script.token_gate.allow(1)
            await driver.until(lambda: not is_watched, "the first piece is shown")
            sys.setprofile(None)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(passed)


@pytest.mark.usefixtures("every_frame")  # those before are no part of its way
async def test_a_message_can_be_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = await passed_files(monkeypatch)
    leading = spine()
    assert len(passed) <= MOST_FILES, passed
    assert 5 < len(leading) <= MOST_ON_SPINE
    assert [name for name in leading if name not in passed] == []
