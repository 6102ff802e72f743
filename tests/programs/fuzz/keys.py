"""Keys, mouse reports, pastes and resizes on every screen: the application goes on, runs nothing,
draws no control.

An input is the name of a scene (``tests/app/scenes.py``), a newline, and the bytes that a terminal
sends then. They go through the program's reading of a terminal into the application, which runs
without one over the scripted engine.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from textual.message import Message

from app.tui.chat import external_editor
from app.tui.terminal_input import TerminalInput
from tests.app.chat_driver import Driver
from tests.app.scenes import SCENES, playing
from tests.programs.fuzz.target import Fault, Target, Watch

_MOST_BYTES = 1200
_CHUNK_BYTES = 48
_CPU_S = 90.0
_MEMORY_BYTES = 300 << 20
_PATIENCE_S = 60.0
_PASTE = re.compile("\x1b\\[200~.*?(?:\x1b\\[201~|\\Z)", re.DOTALL)
_MAY_EDIT = re.compile("\x07|\x10|\x1b\\[(?:103|71)[;:]|;(?:103|71)~|/e", re.IGNORECASE)
"""Outside a paste: ctrl+g, the palette that lists the editor too, or a command that may be it."""
_KEYS = (
    "\r", "\n", "\t", "\x7f", "\x1b", "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D", "\x1b[H", "\x1b[F",
    "\x1b[5~",
    "\x1b[6~", "\x1b[3~", "\x1bOP", "\x1bOQ", "\x1bOR", "\x1bOS", "\x1b[15~", "\x1b[17~",
    "\x1b[19~", "\x1b[Z",
    "\x1b[1;5A", "\x1b[1;5B", "\x1b[1;3A", "\x1b[1;2C", "\x1b\r", "\x10", "\x14", "\x0f", "\x12",
    "\x13", "\x04",
    "\x18", "\x07", "\x01", "\x17", "\x15", "\x0b", "\x1a", "\x05", "\x16", "\x00", "\x1c", "\x1bb",
    "\x03",
)  # fmt: skip
_TYPED = (
    "hello ", "/", "/help\r", "/new\r", "/threads 2 4\r", "/system be brief\r", "/edit 1\r",
    "/theme\r", "/copy\r",
    "/title x\r", "/read nothing.txt\r", "/persona x\r", "/regen\r", "/continue\r", "/think\r",
    "/model\r",
    "/strip\r", "qwen", "q", "r", "k", "y", "u", "c", "e", "t", "f", "m",
    "\x1b[<0;1;1M\x1b[<0;1;1m", "é☃",
    "👩‍👩‍👧", "\u202e", "[red]", "[/]", "\\", "\u0301" * 20, "\ue000", "日本語", "\U000e0041",
)  # fmt: skip
_REPORTS = (
    "\x1b[I", "\x1b[O", "\x1b[?2026;2$y", "\x1b[1;1R", "\x1b[?1;2c",
    "\x1b]11;rgb:0000/0000/0000\x07", "\x1b[",
    "\x1bP1$r0m\x1b\\", "\x1b[48;24;80;480;800t", "\x1b[97;5u", "\x1b[13;2u",
    "\x1b[999999999999999999u",
    "\x1b[55296u", "\x1b[?", "\x1b]52;c;aGVsbG8=\x07", "\x1b[>0;0;0c", "\x1b[<", "\x1b[M   ",
    "\x1b[0n", "\x1bO",
    "\x1b[27;5;99~",
)  # fmt: skip
_PASTED = (
    "hello", "line\n" * 30, "x" * 5000, "/quit\r", "\x07", "\x03\x03", "a\tb", "\r\r\r", "",
    "\u202eabc", "\x9b31m",
    "rm -rf ~\n", "\x10editor\r", "\x00", "日本語" * 200, "\x0b\x0c\x85\u2028", "[link=x]y[/link]",
)  # fmt: skip


_NUMBERS = (
    "",
    "0",
    "1",
    "2",
    "3",
    "48",
    "80",
    "201",
    "-1",
    "NaN",
    "Infinity",
    "1.5",
    "65536",
    "1114112",
    "9" * 25,
)
_STRINGS = (
    "11;rgb:1e1e/1e1e/2e2e", "52;c;aGVsbG8=", ">|XTerm(390)", "1$r0m", "1+r544e=78", "!|00000000",
    "Gi=31;OK",
    "/quit\r", "l/model /etc/passwd\r", "x" * 5000,
)  # fmt: skip


def seeds() -> list[bytes]:
    """Every screen with nothing typed, and with one of each kind of input."""
    tour = "".join(
        (
            "hello\r",
            "\x1bOP",
            "\x1b",
            "\x10",
            "\x1b",
            _paste("line\n" * 30),
            "\r",
            "\x1b[48;5;20;100;200t",
        )
    )
    return [_pack(name, "") for name in SCENES] + [
        _pack("chat", tour),
        _pack("threads", tour),
        _pack("models", tour),
    ]


def _pack(scene: str, typed: str) -> bytes:
    return scene.encode() + b"\n" + typed.encode("utf-8", "replace")[:_MOST_BYTES]


def _paste(text: str) -> str:
    return f"\x1b[200~{text}\x1b[201~"


def mutate(rng: Random, data: bytes, inputs: Sequence[bytes]) -> bytes:
    """More is typed, some of it left out or exchanged, perhaps on another screen."""
    scene, _, raw = data.partition(b"\n")
    name = rng.choice(list(SCENES)) if rng.random() < 0.5 else scene.decode()
    typed = raw.decode("utf-8", "replace")
    pieces = [_some(rng) for _ in range(rng.randrange(1, 25))]
    choice = rng.randrange(4)
    index = rng.randrange(len(typed) + 1)
    if choice == 0:
        typed = "".join(pieces)
    elif choice == 1:
        typed = typed[:index] + "".join(pieces[:3]) + typed[index + rng.randrange(8) :]
    elif choice == 2:
        typed += "".join(pieces)
    else:
        typed = typed[:index] + rng.choice(inputs).partition(b"\n")[2].decode("utf-8", "replace")
    packed = _pack(name, typed)
    return packed + rng.randbytes(3) if rng.random() < 0.3 else packed


def _some(rng: Random) -> str:
    choice = rng.randrange(15)
    if choice < 4:
        return rng.choice(_KEYS)
    if choice < 7:
        return rng.choice(_TYPED)
    if choice == 7:
        return rng.choice(_REPORTS)
    if choice == 8:
        return _paste(rng.choice(_PASTED))
    if choice == 9:
        button = rng.choice((0, 1, 2, 32, 35, 64, 65, 66, 4, 16))
        x = rng.randrange(-1, 130)
        y = rng.randrange(-1, 50)
        return "".join(
            f"\x1b[<{button};{x};{y}{state}" for state in rng.choice(("M", "m", "Mm", "MmMm"))
        )
    if choice == 10:
        rows = rng.choice((1, 2, 5, 12, 24, 60, 200))
        columns = rng.choice((1, 2, 5, 20, 40, 80, 130, 300))
        return f"\x1b[48;{rows};{columns};{rows * 16};{columns * 8}t"
    if choice == 11:
        return _key_report(rng)
    if choice == 12:
        return _string(rng)
    if choice == 13:
        prefix = rng.choice(("", "?", ">", "<", "="))
        numbers = [rng.choice(_NUMBERS) for _ in range(rng.randrange(5))]
        return f"\x1b[{prefix}{rng.choice(';:').join(numbers)}{rng.choice(('', ' ', '$'))}{chr(rng.randrange(64, 127))}"
    return chr(
        rng.choice(
            (rng.randrange(128), rng.randrange(0xA0, 0x3000), rng.randrange(0x1F300, 0x1FA00))
        )
    )


def _key_report(rng: Random) -> str:
    """A key as the Kitty protocol or xterm's modifyOtherKeys reports it, with all that may stand in
    its parameters."""
    code = rng.choice(
        ("97", "13", "27", "9", "127", "32", "1", "57441", "103", "0", str(rng.randrange(0x120000)))
    )
    codes = [code]
    states = [rng.choice(("1", "2", "3", "5", "6", "65", "129", rng.choice(_NUMBERS)))]
    codes += [rng.choice(("65", "", "97", rng.choice(_NUMBERS))) for _ in range(rng.randrange(3))]
    states += [rng.choice(("1", "2", "3", rng.choice(_NUMBERS))) for _ in range(rng.randrange(3))]
    texts = [
        rng.choice(("65", "20320", "7", rng.choice(_NUMBERS))) for _ in range(rng.randrange(3))
    ]
    parameters = [":".join(codes), ":".join(states), ":".join(texts), rng.choice(_NUMBERS)]
    end = rng.choice("uuuuu~~ABCDEFHPQRS")
    return f"\x1b[{';'.join(parameters[: rng.randrange(1, 5)])}{end}"


def _string(rng: Random) -> str:
    """OSC, DCS, APC, PM or SOS with any end, or none."""
    content = (
        rng.choice(_STRINGS)
        if rng.random() < 0.7
        else "".join(chr(rng.randrange(32, 300)) for _ in range(40))
    )
    end = rng.choice(("\x1b\\", "\x1b\\", "\x1b\\", "\x07", "\x18", "\x1b", "", "\x1b[A", "\x9c"))
    return f"\x1b{rng.choice(']P_^X')}{content}{end}"


# ---- what must hold


def run(data: bytes, folder: Path, watch: Watch) -> str:
    """Play the scene, type, and see whether the prompt still takes what is typed."""
    scene, _, raw = data.partition(b"\n")
    name = scene.decode("utf-8", "replace")
    if name not in SCENES:
        return "no scene"
    old_directory = Path.cwd()
    try:
        with (
            pytest.MonkeyPatch.context() as patched,
            watch.bounded("typing", _CPU_S, _MEMORY_BYTES),
        ):
            for variable in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
                patched.setenv(variable, str(folder / variable.lower()))
            for variable in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_TTY"):
                patched.delenv(variable, raising=False)
            patched.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
            patched.setenv("EDITOR", "no-such-editor")
            return asyncio.run(_played(name, raw, folder, patched))
    finally:
        os.chdir(old_directory)


async def _played(name: str, raw: bytes, folder: Path, patched: pytest.MonkeyPatch) -> str:
    commands: list[Any] = []

    async def note(command: list[str]) -> int:
        commands.append(command)
        return 0

    patched.setattr(external_editor, "_run", note)
    work = folder / "work"
    work.mkdir()
    async with playing(SCENES[name], patched, folder) as driver:
        os.chdir(work)
        await _type(driver, raw)
        if commands and not _MAY_EDIT.search(
            _PASTE.sub("", codecs.decode(raw, "utf-8", "replace"))
        ):
            raise Fault(f"an editor was run that no one asked for: {commands}")
        if driver.app._exit:
            if driver.app.crash_line:
                raise Fault(driver.app.crash_line)
            return f"{name}: left"
        ended_on = type(driver.app.screen).__name__
        await _require_prompt(driver)
        return f"{name}: {ended_on}"


async def _type(driver: Driver, raw: bytes) -> None:
    now_s = [0.0]
    terminal = driver.app._driver
    typing = TerminalInput(lambda: now_s[0])
    assert terminal is not None

    async def take(messages: Iterator[Message]) -> None:
        for message in messages:
            terminal.process_message(message)
        await asyncio.sleep(0)
        if not driver.app._exit:
            await driver.pilot.pause()
        _require_sane(driver)

    for start in range(0, len(raw), _CHUNK_BYTES):
        await take(typing.feed(raw[start : start + _CHUNK_BYTES]))
    for _ in range(2):  # what is held back for the end of a key or of a paste
        now_s[0] += 10.0
        await take(typing.tick())


def _require_sane(driver: Driver) -> None:
    error = driver.app._exception
    if error is not None:
        raise error
    if driver.app._exit:
        return
    controls = {
        char
        for char in driver.screen_text()
        if unicodedata.category(char) in ("Cc", "Cs") and char != "\n"
    }
    if controls:
        raise Fault(f"the screen shows control characters: {sorted(controls)}")


async def _require_prompt(driver: Driver) -> None:
    """Go back to the chat and type a word."""
    app = driver.app
    for gate in (driver.script.open_gate, driver.script.prefill_gate, driver.script.token_gate):
        if gate:
            gate.open()
    while len(app.screen_stack) > 1 and app.screen is not driver.chat:
        app.pop_screen()
        await driver.pilot.pause()
    if app.current_mode != app.DEFAULT_MODE:
        app.switch_mode(app.DEFAULT_MODE)
    await driver.until(lambda: app.screen is driver.chat, "the chat is back")
    driver.prompt.focus()
    driver.prompt.show_text("")
    await driver.pilot.press("o", "k")
    await driver.until(lambda: driver.prompt.text == "ok", "the prompt takes what is typed")
    _require_sane(driver)


TARGET = Target(seeds, mutate, run, hang_s=300.0)
