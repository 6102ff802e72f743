"""Scenes of the pictures, each with the steps that lead to it.

A line in ``SCENES`` adds the pictures of a new screen.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image
from textual.events import Paste

from app.conversations.mark_rows import Marks, put_marks
from app.conversations.store import Store
from app.documents.passages import whole
from app.documents.read import Document
from app.machine.tuning.battery_life import EnergyRun, EnergySample
from app.machine.tuning.race import Race, RaceLane
from app.models.library.scan import ScanResult
from app.program import paths
from app.tools.toolbox import OWN
from app.tui.chat.writer_choice import WriterChoice
from app.tui.screens.question import (
    DeleteBranchScreen,
    OpenConversationScreen,
    SendFilesScreen,
)
from app.tui.speed.watch import PerformanceView, PerformanceWatch
from app.tui.widgets.call_question import CallQuestion
from app.tui.widgets.message_view import ToolView
from app.tui.widgets.picture_preview import PicturePreview, PreviewRow
from app.tui.widgets.reply_body import ReplyBody
from engine.prompt.tools.calls import ToolCall
from tests.app import chat_driver, scripted_models
from tests.app.chat_driver import Driver, chatting, shown_source
from tests.app.fake_engine import Gate, Script
from tests.app.machine.sensors import core_views
from tests.app.machine.sensors.views import changed_view, empty_view, view
from tests.app.scripted_host import examination, stand_in

FIRST = """# Old laptops

Mostly they do not get **slow**: the programs got heavier.

- browsers use several gigabytes
- spinning disks are busy with `small` files

```sh
free -m
```
"""
SECOND = (
    "<think>\nThe user wants to clean it. Power first.\n</think>\n\nPower it off and take out the "
    "battery first."
)
LAPTOP_SPEEDS = {1: 1.0, 2: 1.7, 3: 1.5, 4: 1.4}
MANY_CORES = {n: min(n, 8) + 0.01 * n for n in range(1, 25)}
PERSONAS = {"teacher.md": "You explain with examples.", "terse.txt": "Answer in one sentence."}


def tokens(text: str) -> list[str]:
    """Split a text into the pieces that the scripted engine returns."""
    return re.findall(r"\s*\S+|\s+$", text)


def two_turns(**changes: Any) -> Script:
    """Return a script with a plain reply, then one with thinking."""
    return Script(**{"replies": [tokens(FIRST), tokens(SECOND)], "n_ctx": 256, **changes})


def swept(speeds: dict[int, float], **changes: Any) -> Script:
    """Return a script of an engine with the given speed for each thread count."""
    return Script(seconds_per_prompt_token=0.02, thread_speeds=speeds, **changes)


SIZES = ((80, 24), (60, 20), (200, 60))

Play = Callable[[Driver], Awaitable[None]]


@dataclass(frozen=True)
class Scene:
    """State of a screen."""

    play: Play
    """Function that brings the application from its start to the scene."""
    screen: str = "ChatScreen"
    """Name of the class of the final screen."""
    script: Callable[[], Script] = two_turns
    model: str | None = "model.gguf"
    is_ready: bool = True
    """Whether the model is loaded at the start."""
    machine: str = "laptop"
    view: Callable[[], PerformanceView] = view
    """Function that returns the figures of the performance views."""
    found: ScanResult = scripted_models.FOUND
    """Models in the list."""
    settings: dict[str, object] = field(default_factory=dict)
    sizes: tuple[tuple[int, int], ...] = SIZES


@asynccontextmanager
async def playing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[Driver]:
    """Run the application up to a scene, on the scripted machine."""
    script = scene.script()
    # where the model's file is named in full, it is always the same name
    monkeypatch.chdir(tmp_path.anchor)
    stand_in(monkeypatch, tmp_path / "machine", scene.machine, scene.view(), script.clock)
    scripted_models.stand_in(monkeypatch, tmp_path / "models", scene.found)
    options = chat_driver.options_for
    with monkeypatch.context() as patched:
        patched.setattr(
            chat_driver,
            "options_for",
            lambda script: dataclasses.replace(options(script), examine=lambda *_: examination()),
        )
        async with chatting(script, size, scene.model, scene.is_ready, **scene.settings) as driver:
            await scene.play(driver)
            await driver.until(
                lambda: type(driver.app.screen).__name__ == scene.screen, scene.screen
            )
            yield driver


# ---- how to get there


def press(*keys: str, sees: str = "") -> Play:
    """Press keys and wait for a text."""

    async def play(driver: Driver) -> None:
        await driver.pilot.press(*keys)
        await driver.until(lambda: sees in driver.screen_text(), f"the screen shows {sees!r}")

    return play


def say(text: str, sees: str = "") -> Play:
    """Send a message or a command and wait for a text."""

    async def play(driver: Driver) -> None:
        await driver.say(text)
        await driver.until(lambda: sees in driver.screen_text(), f"the screen shows {sees!r}")

    return play


def after(*plays: Play) -> Play:
    """Return a scene with several steps."""

    async def play(driver: Driver) -> None:
        for step in plays:
            await step(driver)

    return play


async def nothing(driver: Driver) -> None:
    """Stay at the start of the application."""


async def compiling(driver: Driver) -> None:
    """Wait until the first of two kernels is compiled."""
    gate = driver.script.open_gate
    assert gate is not None
    gate.allow(2)
    await driver.until(lambda: "First-time setup" in driver.screen_text())


async def listed(driver: Driver) -> None:
    """Save two conversations on a fixed day."""
    driver.chat.core.chat_session.journal.clock_text = lambda: "2026-11-21T10:00:00+00:00"
    await driver.ask("Why do old laptops get slow?")
    await driver.say("/new")
    await driver.note("New conversation")
    driver.chat.core.chat_session.journal.clock_text = lambda: "2026-11-21T10:05:00+00:00"
    await driver.ask("How do I clean the fan of one?")
    await driver.until(lambda: driver.chat.core.chat_session.journal.wait_until_saved(0), "saved")


async def marked(driver: Driver) -> None:
    """Save two conversations, pin the older one and tag it."""
    await listed(driver)
    Store().change_marks("000001", put_marks(Marks(True, ("fans", "laptop"))))


async def compacted(driver: Driver) -> None:
    """Hold a conversation whose first two turns are summarized."""
    for question in ("My laptop is called Kea. Why is it hot?", "And its fan?", "And its battery?"):
        await driver.ask(question)
    await driver.say("/compact")
    await driver.note("The model now reads a summary")
    await driver.until(lambda: not driver.chat.core.chat_session.is_busy)


def long_turns() -> Script:
    """Three long replies, and a summary of the first two."""
    words = [[f" word{n}" for n in range(110)] for _ in range(3)]
    return Script(replies=[*words, tokens("- Kea is hot: dust in the fan.")], n_ctx=1024)


async def shelved(driver: Driver) -> None:
    """Ask a question with a document."""
    driver.chat.core.chat_session.journal.clock_text = lambda: "2026-11-21T10:00:00+00:00"
    lines = "\n".join(f"Clean fan {n}." for n in range(12))
    driver.prompt.attach(whole([Document("fans.txt", Path("fans.txt"), lines)]))
    await driver.pilot.press(*"why?", "enter")
    await driver.last_reply()
    await driver.until(lambda: driver.chat.core.chat_session.journal.wait_until_saved(0), "saved")


async def cited(driver: Driver) -> None:
    """Show a reply that cites two passages of a document."""
    driver.script.replies.insert(0, tokens("After the fan (fans.txt, line 5); see lines 9-10 too."))
    await shelved(driver)


async def resumed(driver: Driver) -> None:
    """Reopen a conversation."""
    await listed(driver)
    driver.chat.call_later(driver.chat.conversations.open, "000001")
    await driver.note("read with your next message")
    body = driver.transcript.replies()[-1].body
    await driver.until(lambda: shown_source(body) == body.text, "it is shown")
    await driver.until(lambda: "# Old" not in driver.screen_text())


async def talk(driver: Driver) -> None:
    """Hold a conversation of two turns."""
    await driver.ask("Why do old laptops get slow?")
    await driver.ask("And how do I clean it?")


def held(message: str, n_tokens: int, *then: str, sees: str = "") -> Play:
    """Ask, and pause the reply after ``n_tokens`` tokens."""

    async def play(driver: Driver) -> None:
        gate = driver.script.token_gate
        assert gate is not None
        await driver.say(message)
        gate.allow(n_tokens)
        await driver.until(gate.waiting.is_set, "the reply is held")
        await driver.pilot.press(*then)
        await driver.until(lambda: sees in driver.screen_text(), f"the screen shows {sees!r}")

    return play


def dealt(message: str, n_tokens: int) -> Play:
    """Ask, and show each of ``n_tokens`` tokens before the next, for deterministic parsing."""

    async def play(driver: Driver) -> None:
        gate = driver.script.token_gate
        assert gate is not None
        reply = driver.script.replies[0]
        await driver.say(message)
        for n in range(n_tokens):
            gate.allow()
            text = "".join(reply[: n + 1])
            await driver.until(
                lambda text=text: shown_of_reply(driver) == text, f"{text!r} is shown"
            )

    return play


def shown_of_reply(driver: Driver) -> str:
    """Return the visible text of the newest reply."""
    bodies = driver.app.screen.query(ReplyBody)
    return shown_source(bodies.last()) if bodies else ""


async def read_slowly(driver: Driver) -> None:
    """Send a long prompt that is not read yet."""
    gate = driver.script.prefill_gate
    assert gate is not None
    await driver.say("word " * 400)
    gate.allow(150)
    await driver.until(lambda: "150" in driver.screen_text())


async def measured(driver: Driver) -> None:
    """Open the threads screen with a finished search."""
    await driver.pilot.press("f4", "enter")
    await driver.until(
        lambda: (
            driver.app.engine_thread.state.tuning is not None
            and driver.app.engine_thread.state.tuning.is_over
        ),
        "measured",
    )
    measured_s = time.mktime((2025, 3, 7, 21, 14, 0, 0, 0, -1))
    driver.app.engine_thread._link.update(tuning_unix_s=measured_s)


async def measuring(driver: Driver) -> None:
    """Open the threads screen in the middle of a search."""
    gate = driver.script.prefill_gate
    assert gate is not None
    await driver.until(
        lambda: driver.app.performance.pace.cost is not None, "the interface was measured"
    )
    await driver.pilot.press("f4", "enter")
    gate.allow(60)
    await driver.until(lambda: "round 1" in driver.screen_text())
    await driver.until(gate.waiting.is_set)


async def raced(driver: Driver) -> None:
    """Show a race of three lanes in the middle of its replay."""
    await driver.pilot.press("f4", "a")
    engine_thread = driver.app.engine_thread
    await driver.until(
        lambda: engine_thread.state.race is not None and engine_thread.state.race.is_over, "raced"
    )
    words = tuple(f"{' ' * (n > 0)}{word}" for n, word in enumerate(SENTENCE.split()))
    lanes = tuple(
        RaceLane(n_threads, tuple(n / tps for n in range(len(words))), words)
        for n_threads, tps in ((1, 3.0), (2, 5.1), (4, 4.2))
    )
    engine_thread._link.update(race=Race((1, 2, 4), lanes))
    await driver.shows("1 thread 3.0 tok/s")
    driver.script.clock.advance(3.0)


async def saving_energy(driver: Driver) -> None:
    """Show the energy per token of three thread counts."""
    with patch.object(PerformanceWatch, "measures_energy", True):
        await driver.pilot.press("f4", "b")
        await driver.shows("does not tell its power")
        samples = [
            EnergySample(count, joules * factor, tps)
            for factor in (0.98, 1.02)
            for count, joules, tps in ((1, 1.21, 13.4), (2, 0.64, 23.1), (4, 0.98, 25.1))
        ]
        run = EnergyRun((1, 2, 4), tuple(samples), "whole machine", 6, is_over=True)
        driver.app.engine_thread._link.update(energy=run)
        await driver.shows("less energy per token")


async def asked_about_call(driver: Driver) -> None:
    """Let the model request a tool."""
    call = ToolCall("read_file", json.dumps({"path": "notes/todo.txt"}))
    question = CallQuestion(driver.chat.core.keymap, lambda: 0.0)
    driver.transcript.add(ToolView("", 'list_files {"path": "notes"}', question))
    driver.chat.run_worker(question.ask(OWN, call))
    driver.chat.core.edge.is_asking = True
    driver.chat.core.edge.show_keys()
    await driver.shows("Run read_file")
    question.focus()  # not before it is shown
    await driver.until(lambda: driver.app.screen.focused is question, "it has the focus")


async def asked_about_writer(driver: Driver) -> None:
    """Ask which model continues a conversation."""
    choice = WriterChoice(
        "Why do old laptops get slow?",
        "Qwen3 4B",
        Path("qwen.gguf"),
        "It loads 2.5 GB and goes on at once: its KV cache is on disk.",
        "model",
        "It reads about 2,000 tokens, 40 s.",
    )
    driver.app.push_screen(OpenConversationScreen(choice, driver.chat.core.keymap))
    await driver.shows("Which model")


async def asked_about_file(driver: Driver) -> None:
    """Ask to send a file to a server."""
    files = "notes/todo.txt, 1.2 kB, 40 lines"
    driver.app.push_screen(
        SendFilesScreen(files, "api.example:8000", driver.chat.core.keymap, lambda: 0.0)
    )
    await driver.shows("todo.txt")


async def with_picture(driver: Driver) -> None:
    """Show a message with a picture, with the number of its tokens."""
    await drop_picture(driver)
    await driver.shows("5 tokens ")


async def drop_picture(driver: Driver) -> None:
    """Drop a picture of a red disc on blue ground into the message."""
    y, x = np.mgrid[:48, :64]
    pixels = np.full((48, 64, 3), (20, 40, 160), np.uint8)
    pixels[(x - 32) ** 2 + (y - 24) ** 2 < 324] = 220, 40, 30
    with TemporaryDirectory() as directory:
        path = Path(directory, "disc.png")
        Image.fromarray(pixels).save(path)
        driver.prompt.post_message(Paste(str(path)))
        await driver.shows("disc.png: 64 x 48")
    await shown_pixels(driver)


async def shown_pixels(driver: Driver) -> None:
    """Wait for the pixels of all previews."""
    await driver.until(
        lambda: all(preview.has_pixels for preview in driver.chat.query(PicturePreview)),
        "the pixels",
    )


async def with_sent_picture(driver: Driver) -> None:
    """Ask about a picture."""
    await drop_picture(driver)
    await driver.pilot.press(*"Who?", "enter")
    await driver.shows("you ")
    await driver.shows("there")
    await driver.until(lambda: driver.chat.query(PreviewRow), "the preview")
    await shown_pixels(driver)


async def asked_about_branch(driver: Driver) -> None:
    """Ask to delete a branch."""
    question = "Delete this branch < 1/2 > from message 1, with the 3 messages after it?"
    keymap = driver.chat.core.keymap
    driver.app.push_screen(DeleteBranchScreen(question, keymap, lambda: 0.0))
    await driver.shows("Delete this branch")


async def with_personas(driver: Driver) -> None:
    """Save two personas."""
    folder = paths.personas_dir()
    assert folder is not None
    folder.mkdir(parents=True)
    for name, text in PERSONAS.items():
        (folder / name).write_text(text)


def threads(machine: str, speeds: dict[int, float] = MANY_CORES) -> Scene:
    """Open the threads screen of a machine."""
    return Scene(measured, "ThreadsScreen", lambda: swept(speeds), machine=machine)


SENTENCE = (
    "The old computer on the desk still hums along, and it writes every word of this by itself."
)


def cores(machine: Callable[[], PerformanceView]) -> Scene:
    """Open the performance screen on a machine whose cores have lanes."""
    sizes = ((80, 24), (120, 40), (200, 50))
    return Scene(press("f2", sees="Writing"), "PerformanceScreen", view=machine, sizes=sizes)


SPOKEN = {"system_prompt": "Be brief."}

priced = after(
    press("f3", sees="Qwen3 4B"),
    press(*"qwen", sees="filter: qwen_"),
    press("enter", sees="licence: apache-2.0"),
)
"""Cost of a model that is not downloaded."""

offered = after(
    press("f3", sees="Qwen3 4B"),
    press(*"nemo", sees="make a smaller one"),
    press("ctrl+s", sees="of work"),
)
"""Cost of a smaller file of a model that does not fit."""

SCENES: dict[str, Scene] = {
    "first-start": Scene(press(sees="No model is loaded"), model=None),
    "compiling": Scene(compiling, script=lambda: Script(open_gate=Gate()), is_ready=False),
    "empty": Scene(press(sees="room for")),
    "chat": Scene(talk, settings=SPOKEN, sizes=(*SIZES, (40, 15), (100, 30))),
    "strip": Scene(after(talk, press("ctrl+t", sees="Memory")), settings=SPOKEN),
    "reading": Scene(
        read_slowly,
        script=lambda: Script(prefill_gate=Gate(), n_ctx=2000, seconds_per_prompt_token=0.5),
    ),
    "writing": Scene(
        dealt("Why do old laptops get slow?", 22), script=lambda: two_turns(token_gate=Gate())
    ),
    "thinking": Scene(
        held("Why?", 120),
        script=lambda: Script(
            replies=[tokens("<think>\n" + "First this. # Then that.\n" * 40)], token_gate=Gate()
        ),
    ),
    "queued": Scene(
        after(held("Why?", 12), say("And then?", sees="queued")),
        script=lambda: two_turns(token_gate=Gate()),
    ),
    "stopped": Scene(
        held("Why do old laptops get slow?", 12, "escape", sees=">model"),
        script=lambda: two_turns(token_gate=Gate()),
    ),
    "find": Scene(after(talk, say("/find old", sees="n next")), settings=SPOKEN),
    "run-shell": Scene(say("!git diff", sees="Run a command"), "RunShellScreen"),
    "outline": Scene(
        after(talk, say("/outline", sees="go to it")), "OutlineScreen", settings=SPOKEN
    ),
    "editing": Scene(after(talk, say("/edit 1", sees=" keeps ")), settings=SPOKEN),
    "editing-reply": Scene(after(talk, say("/edit reply", sees=" keeps ")), settings=SPOKEN),
    "nearly-full": Scene(
        say("Talk.", sees="nearly full"),
        script=lambda: Script(replies=[[f" word{n}" for n in range(230)]], n_ctx=256),
    ),
    "context": Scene(
        after(compacted, say("/context", sees="Context:")),
        script=long_turns,
        sizes=((80, 24), (60, 20), (120, 40)),
    ),
    "summary": Scene(
        after(compacted, say("/compact show", sees="Summary of")),
        script=long_turns,
        sizes=((80, 24), (60, 20), (120, 40)),
    ),
    "commands": Scene(press("slash", "t", sees="/think")),
    "help": Scene(press("f1", sees="Help"), "HelpScreen"),
    "help-message": Scene(after(talk, press("ctrl+up", "f1", sees="Help")), "HelpScreen"),
    "help-threads": Scene(
        after(measured, press("f1", sees="Help")), "HelpScreen", script=lambda: swept(LAPTOP_SPEEDS)
    ),
    "palette": Scene(after(with_personas, press("ctrl+p", sees="Type to search")), "Palette"),
    "themes": Scene(say("/theme", sees="Colours"), "ThemePicker"),
    "speed": Scene(
        press("f2", sees="Writing"),
        "PerformanceScreen",
        sizes=((80, 24), (60, 20), (120, 40), (200, 60)),
    ),
    "live-tuning": Scene(
        after(press("f2", sees="times as fast"), press("minus", sees="Q4_K_M · 1 thread")),
        "PerformanceScreen",
        view=changed_view,
        sizes=((80, 24), (120, 40), (200, 50)),
    ),
    "live-tuning-compared": Scene(
        press("f2", sees="times as fast"), "PerformanceScreen", view=changed_view
    ),
    "cores-laptop": cores(core_views.laptop),
    "cores-hybrid": cores(core_views.hybrid),
    "cores-two-caches": cores(core_views.two_caches),
    "cores-pi": cores(core_views.raspberry_pi),
    "speed-empty": Scene(
        press("f2", sees="Writing"), "PerformanceScreen", model=None, view=empty_view
    ),
    "models": Scene(press("f3", sees="Qwen3 4B"), "ModelsScreen"),
    "models-none": Scene(
        press("f3", sees="No model found"),
        "ModelsScreen",
        model=None,
        found=scripted_models.NOTHING,
    ),
    "conversations": Scene(
        after(marked, press("f8", sees="old laptops get slow")), "ConversationsScreen"
    ),
    "conversations-search": Scene(
        after(
            listed,
            press("f8", sees="old laptops get slow"),
            press(*"battery", sees="... Power it off"),
        ),
        "ConversationsScreen",
    ),
    "conversations-none": Scene(press("f8", sees="No saved conversations"), "ConversationsScreen"),
    "documents": Scene(
        after(shelved, press("f6", sees="0 %"), press("delete", sees="Delete fans.txt")),
        "DocumentsScreen",
    ),
    "answers": Scene(
        after(
            say("Why do old laptops get slow?", sees="tokens ·"),
            say("/regen 2", sees="keep the first"),
        ),
        "AnswersScreen",
        # The threads of two answers share the clock, which is stopped.
        script=lambda: two_turns(seconds_per_token=0.0, seconds_per_prompt_token=0.0),
        sizes=((80, 24), (120, 40)),
    ),
    "answers-models": Scene(
        after(
            say("Why do old laptops get slow?", sees="tokens ·"),
            say("/regen other.gguf", sees="keep the first"),
        ),
        "AnswersScreen",
        script=lambda: two_turns(seconds_per_token=0.0, seconds_per_prompt_token=0.0),
        sizes=((80, 24), (120, 40)),
    ),
    "place": Scene(after(cited, say("/place", sees="1 of 2")), "PlaceScreen"),
    "documents-none": Scene(press("f6", sees="No documents yet"), "DocumentsScreen"),
    "resumed": Scene(resumed, settings=SPOKEN),
    "inspect": Scene(
        after(press("f3", sees="Qwen3 4B"), press("tab", sees="vocabulary")), "InspectScreen"
    ),
    "offers": Scene(press("f7", sees="best that fits"), "OffersScreen"),
    "download": Scene(priced, "DownloadScreen"),
    "downloading": Scene(after(priced, press("enter", sees="background")), "DownloadScreen"),
    "smaller": Scene(offered, "DownloadScreen"),
    "models-shrinking": Scene(
        after(offered, press("enter", sees="background"), press("escape", sees="show the")),
        "ModelsScreen",
    ),
    "models-downloading": Scene(
        after(priced, press("enter", sees="background"), press("escape", sees="show the download")),
        "ModelsScreen",
    ),
    "picture": Scene(with_picture, script=lambda: Script(sees=True)),
    "picture-sent": Scene(with_sent_picture, script=lambda: Script(sees=True), settings=SPOKEN),
    "question": Scene(after(talk, asked_about_call)),
    "tools": Scene(
        after(
            talk,
            say("/tools", sees="turns them on"),
            say("/tools on", sees="on from the next message"),
        )
    ),
    "send-file": Scene(after(talk, asked_about_file), "SendFilesScreen"),
    "delete-branch": Scene(after(talk, asked_about_branch), "DeleteBranchScreen"),
    "writer": Scene(after(talk, asked_about_writer), "OpenConversationScreen"),
    "manual": Scene(say("/help tools", sees="back"), "ManualScreen"),
    "switch": Scene(
        after(talk, press("f3", sees="Qwen3 4B"), press("enter", sees="Switch model")),
        "SwitchModelScreen",
    ),
    "settings": Scene(say("/settings", sees="Folders of models"), "SettingsScreen"),
    "doctor": Scene(press("f5", sees="Models for this machine"), "DoctorScreen"),
    "threads": threads("laptop", LAPTOP_SPEEDS),
    "threads-hybrid": threads("hybrid"),
    "threads-two-sockets": threads("two-sockets"),
    "threads-virtual-machine": threads("virtual-machine"),
    "threads-quota": threads("quota"),
    "threads-measuring": Scene(
        measuring, "ThreadsScreen", lambda: swept(LAPTOP_SPEEDS, prefill_gate=Gate())
    ),
    "threads-race": Scene(raced, "ThreadsScreen", lambda: swept(LAPTOP_SPEEDS)),
    "threads-better": Scene(
        measured, "ThreadsScreen", lambda: swept(LAPTOP_SPEEDS, weight_speeds={"huge": 1.18})
    ),
    "threads-battery": Scene(saving_energy, "ThreadsScreen", lambda: swept(LAPTOP_SPEEDS)),
    "threads-no-model": Scene(press("f4", sees="No model is loaded"), "ThreadsScreen", model=None),
}
"""All scenes, by the names of their files in ``pictures/``."""
