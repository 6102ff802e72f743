"""Pictures by the terminal's own graphics: what is asked, sent and drawn, and what never is."""

from __future__ import annotations

import os
import re
import signal
import zlib
from base64 import standard_b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from textual.events import Paste

from app.documents.thumbnails import Thumbnail
from app.program.settings import built_in_settings
from app.tui.terminal_graphics import (
    MOST_PICTURES,
    GraphicsAnswer,
    Protocol,
    TerminalGraphics,
    cell_size,
    may_ask,
)
from app.tui.terminal_input import TerminalDriver
from app.tui.widgets.picture_preview import PicturePreview
from tests.app.chat_driver import Driver, chatting
from tests.app.chat_terminal import LEFT_ALTERNATE_SCREEN, Terminal
from tests.app.fake_engine import Script
from tests.app.tui.terminal_hand import Hand, split

QUESTION = "\x1b[>0q\x1b[16t\x1b[c"
KITTY = (b"\x1bP>|kitty(0.41.1)\x1b\\", b"\x1b[6;20;10t", b"\x1b[?62;c")
GHOSTTY = (b"\x1bP>|ghostty 1.2.0\x1b\\", b"\x1b[6;20;10t", b"\x1b[?62;22c")
OLD_KITTY = (b"\x1bP>|kitty(0.26.5)\x1b\\", b"\x1b[6;20;10t", b"\x1b[?62;c")
XTERM = (b"\x1bP>|XTerm(379)\x1b\\", b"\x1b[?63;1;2;4;6;9;15;16;22;28c")
MLTERM = (b"\x1b[6;20;10t", b"\x1b[?63;1;2;3;4;6;7;15;18;22;29c")
ALACRITTY = (b"\x1b[6;20;10t", b"\x1b[?6c")
FIRST_ID = 0x123456
CELL = 10, 20
_COMMAND = re.compile("\x1b_G([^;]*);([^\x1b]*)\x1b\\\\")


class FakeTerminal:
    """Graphics on a terminal that answers what it is told to."""

    def __init__(self, *answers: bytes, cell: tuple[int, int] | None = CELL) -> None:
        self.written = ""
        self.cell = cell
        self.graphics = TerminalGraphics(self.write, lambda: self.cell, True, FIRST_ID)
        self.graphics.ask()
        assert self.take_written() == QUESTION
        for answer in answers:
            self.graphics.take(answer)

    def write(self, data: str) -> None:
        self.written += data

    def take_written(self) -> str:
        written = self.written
        self.written = ""
        return written

    def hold(self, key: object, columns: int = 3, rows: int = 2, seed: int = 0) -> Thumbnail:
        """Hold a picture of few colours."""
        size = self.graphics.pixel_size(columns, rows)
        assert size is not None
        width, height = size
        levels = np.random.default_rng(seed).integers(0, 2, (height, width, 3), np.uint8) * 255
        picture = Thumbnail(width, height, levels.tobytes())
        sixels = self.graphics.encode(picture, columns, rows)
        self.graphics.hold(key, (columns, rows), picture, sixels)
        return picture

    def confirm(self, number: int = FIRST_ID, text: str = "OK") -> bool:
        return self.graphics.take(f"\x1b_Gi={number};{text}\x1b\\".encode())


def commands(written: str) -> list[tuple[dict[str, str], str]]:
    """Return keys and data of the commands of Kitty's protocol, which must be all of a text."""
    assert _COMMAND.sub("", written) == ""
    return [
        (dict(key.split("=") for key in keys.split(",")), data)
        for keys, data in _COMMAND.findall(written)
    ]


def decoded(sixels: str) -> np.ndarray:
    """Return the pixels of sixels that a terminal would show."""
    match = re.fullmatch('\x1bP0;1;0q"1;1;(\\d+);(\\d+)(.*)\x1b\\\\', sixels)
    assert match is not None
    pixels = np.full((int(match[2]), int(match[1]), 3), 77, np.uint8)
    palette: dict[int, list[int]] = {}
    top = x = colour = 0
    for token in re.finditer(
        r"#(\d+);2;(\d+);(\d+);(\d+)|#(\d+)|!(\d+)([?-~])|([?-~])|([-$])", match[3]
    ):
        number, red, green, blue, chosen, count, repeated, single, move = token.groups()
        if number:
            palette[int(number)] = [round(int(part) * 2.55) for part in (red, green, blue)]
        elif chosen:
            colour = int(chosen)
        elif move:
            x = 0
            top += 6 * (move == "-")
        else:
            bits = ord(repeated or single) - 63
            width = int(count or 1)
            for row in range(6):
                if bits >> row & 1:
                    pixels[top + row, x : x + width] = palette[colour]
            x += width
    return pixels


# ---- what the terminal has


@pytest.mark.parametrize(
    ("answers", "cell", "protocol"),
    [
        (KITTY, None, Protocol.KITTY),
        (GHOSTTY, None, Protocol.KITTY),
        (OLD_KITTY, CELL, Protocol.HALF_BLOCKS),
        (XTERM, CELL, Protocol.SIXEL),
        (XTERM, None, Protocol.HALF_BLOCKS),
        (MLTERM, None, Protocol.SIXEL),
        ((*XTERM, MLTERM[0]), None, Protocol.SIXEL),
        (ALACRITTY, CELL, Protocol.HALF_BLOCKS),
        ((b"\x1b[?4c",), CELL, Protocol.HALF_BLOCKS),
        ((), CELL, Protocol.HALF_BLOCKS),
        ((b"\x1bP>|\xff\x1b\\", b"\x1b[?c", b"\x1b[6;0;0t", b"\x1b_G;OK\x1b\\"), CELL,
         Protocol.HALF_BLOCKS),
        ((*MLTERM[1:], b"\x1b[6;9999;9999t"), None, Protocol.HALF_BLOCKS),
    ],
)  # fmt: skip
def test_the_answers_choose_the_graphics(
    answers: tuple[bytes, ...], cell: tuple[int, int] | None, protocol: Protocol
) -> None:
    terminal = FakeTerminal(*answers, cell=cell)
    assert terminal.graphics.protocol is protocol
    terminal.graphics.ask()
    assert terminal.written == "", "it is asked once"


def test_answers_that_were_not_asked_for_change_nothing() -> None:
    terminal = FakeTerminal()
    unasked = TerminalGraphics(terminal.write, lambda: CELL, True)
    assert not any(unasked.take(answer) for answer in (*KITTY, *XTERM))
    refused = TerminalGraphics(terminal.write, lambda: CELL, False)
    refused.ask()
    assert terminal.written == ""
    assert unasked.protocol is refused.protocol is Protocol.HALF_BLOCKS


@pytest.mark.parametrize(
    ("environ", "may"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm-kitty", "SSH_CONNECTION": "here there"}, True),
        ({"TERM": "linux"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
        ({"TERM": "tmux-256color"}, False),
        ({"TERM": "screen.xterm"}, False),
        ({"TERM": "xterm-256color", "TMUX": "/tmp/socket"}, False),
        ({"TERM": "xterm-256color", "STY": "1.tty"}, False),
        ({"TERM": "xterm-256color", "ZELLIJ": "0"}, False),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "Apple_Terminal"}, False),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm-256color", "JALOPY_CONSOLE": "1"}, False),
    ],
)
def test_only_terminals_that_may_have_graphics_are_asked(
    environ: Mapping[str, str], may: bool
) -> None:
    assert may_ask(environ) == may


def test_the_size_of_a_cell_is_plausible_or_unknown() -> None:
    assert cell_size(80, 24, 800, 480) == (10, 20)
    assert cell_size(80, 24, 0, 0) is None
    assert cell_size(0, 0, 800, 480) is None
    assert cell_size(1, 1, 65535, 65535) is None


def asking_hand() -> Hand:
    hand = Hand()
    hand.input.takes_answers = lambda: True
    return hand


@pytest.mark.parametrize("answers", [KITTY, XTERM, MLTERM, (b"\x1b_Gi=5;ENOENT:no\x1b\\",)])
@pytest.mark.parametrize("n_bytes", [1, 7, 1000])
def test_answers_are_taken_out_of_the_keys(answers: tuple[bytes, ...], n_bytes: int) -> None:
    data = b"ab" + b"".join(answers) + b"cd"
    hand = asking_hand().send(*split(data, range(0, len(data), n_bytes)))
    assert hand.typed == "abcd"
    taken = [message.sequence for message in hand.messages if isinstance(message, GraphicsAnswer)]
    assert taken == list(answers)


def test_a_broken_answer_is_never_typed() -> None:
    hand = asking_hand().send(b"\x1bP>|kitty(0.4", b"").wait(2.0).send(b"1.1)\x1b\\")
    hand.send(b"\x1b[?62;c").wait(2.0).send(b"x")
    assert hand.typed.endswith("x")
    assert "kitty" not in hand.typed


# ---- Kitty's protocol


def test_a_picture_is_sent_once_and_shown_when_confirmed() -> None:
    terminal = FakeTerminal(*KITTY)
    picture = terminal.hold("cat", 16, 6)
    sent = commands(terminal.take_written())
    keys, _ = sent[0]
    assert keys == {
        "a": "T", "U": "1", "f": "24", "o": "z", "t": "d", "i": str(FIRST_ID), "s": "160",
        "v": "120", "c": "16", "r": "6", "m": "1",
    }  # fmt: skip
    assert [keys["m"] for keys, _ in sent] == ["1"] * (len(sent) - 1) + ["0"]
    assert len(sent) > 1
    assert all(len(data) <= 4096 for _, data in sent)
    data = standard_b64decode("".join(data for _, data in sent))
    assert zlib.decompress(data) == picture.pixels

    assert terminal.graphics.row("cat", 0) == "", "half blocks until the terminal has it"
    assert not terminal.confirm(FIRST_ID + 1)
    assert terminal.confirm()
    assert not terminal.confirm()
    assert len(terminal.graphics.row("cat", 0)) == 16
    assert terminal.written == ""


def test_a_picture_that_the_terminal_refuses_stays_half_blocks() -> None:
    terminal = FakeTerminal(*KITTY)
    terminal.hold("cat")
    terminal.confirm(text="ENOSPC:no memory")
    assert terminal.graphics.row("cat", 0) == ""
    assert terminal.graphics.expand("as it is") == "as it is"


def test_cells_become_placeholders_in_the_colour_of_the_picture() -> None:
    terminal = FakeTerminal(*KITTY)
    terminal.hold("cat")
    terminal.confirm()
    row = terminal.graphics.row("cat", 1)
    cell = "\U0010eeee\u030d"
    colour = "\x1b[38;2;18;52;86m"
    assert terminal.graphics.expand(f"<{row}>") == (
        f"<{colour}{cell}\u0305{cell}\u030d{cell}\u030e\x1b[39m>"
    )
    covered = f"{row[0]}dialog{row[2]}"
    assert terminal.graphics.expand(covered) == (
        f"{colour}{cell}\u0305\x1b[39mdialog{colour}{cell}\u030e\x1b[39m"
    )


def test_pictures_next_to_each_other_and_rows_are_told_apart() -> None:
    terminal = FakeTerminal(*KITTY)
    terminal.hold("cat")
    terminal.hold("dog")
    terminal.confirm()
    terminal.confirm(FIRST_ID + 1)
    graphics = terminal.graphics
    drawn = graphics.expand(
        graphics.row("cat", 0) + graphics.row("cat", 1) + graphics.row("dog", 0)
    )
    assert drawn.count("\x1b[38;2;18;52;86m") == 2
    assert drawn.count("\x1b[38;2;18;52;87m") == 1
    assert drawn.count("\U0010eeee") == 9


def test_a_dropped_picture_is_deleted_and_its_cells_are_blank() -> None:
    terminal = FakeTerminal(*KITTY)
    terminal.hold("cat")
    terminal.hold("dog")
    terminal.confirm()
    row = terminal.graphics.row("cat", 0)
    terminal.take_written()
    terminal.graphics.drop("cat")
    terminal.graphics.drop("cat")
    assert commands(terminal.take_written()) == [
        ({"a": "d", "d": "I", "i": str(FIRST_ID), "q": "2"}, "")
    ]
    assert terminal.graphics.expand(f"a{row}b") == "a   b"


def test_the_terminal_holds_a_limited_number_of_pictures() -> None:
    terminal = FakeTerminal(*KITTY)
    for number in range(MOST_PICTURES):
        terminal.hold(number)
        terminal.confirm(FIRST_ID + number)
    assert terminal.graphics.row(0, 0), "the first one was drawn last"
    terminal.take_written()
    terminal.hold("one more")
    deletion, *_ = commands(terminal.take_written())
    assert deletion == ({"a": "d", "d": "I", "i": str(FIRST_ID + 1), "q": "2"}, "")
    assert terminal.graphics.row(0, 0)
    assert not terminal.graphics.row(1, 0)


def test_large_cells_and_large_previews_are_bounded() -> None:
    kitty = FakeTerminal(*KITTY, cell=(60, 120))
    assert kitty.graphics.pixel_size(20, 6) == (300, 180)
    assert kitty.graphics.pixel_size(48, 24) is None
    assert kitty.graphics.pixel_size(60, 2) is None
    sixel = FakeTerminal(*XTERM, cell=(60, 120))
    assert sixel.graphics.pixel_size(20, 6) is None


def test_another_program_gets_a_terminal_without_pictures() -> None:
    terminal = FakeTerminal(*KITTY)
    terminal.hold("cat")
    terminal.confirm()
    sent = terminal.take_written()
    terminal.graphics.release()
    assert [keys["a"] for keys, _ in commands(terminal.take_written())] == ["d"]
    terminal.graphics.restore()
    assert terminal.take_written() == sent
    assert terminal.graphics.row("cat", 0)


# ---- sixels


def test_rows_of_sixels_show_the_pixels() -> None:
    terminal = FakeTerminal(*XTERM)
    picture = terminal.hold("cat")
    pixels = np.frombuffer(picture.pixels, np.uint8).reshape(40, 30, 3)
    for row in range(2):
        drawn = terminal.graphics.expand(terminal.graphics.row("cat", row))
        beginning = "\x1b7   \x1b8"
        end = "\x1b8\x1b[3C"
        assert drawn.startswith(beginning)
        assert drawn.endswith(end)
        sixels = drawn[len(beginning) : -len(end)]
        assert np.array_equal(decoded(sixels), pixels[20 * row : 20 * row + 20])
    assert terminal.written == "", "sixels are drawn, not sent ahead"


def test_a_covered_part_of_a_row_is_cut_out_of_the_sixels() -> None:
    terminal = FakeTerminal(*XTERM)
    picture = terminal.hold("cat")
    pixels = np.frombuffer(picture.pixels, np.uint8).reshape(40, 30, 3)
    row = terminal.graphics.row("cat", 1)
    drawn = terminal.graphics.expand(f"{row[0]}box{row[2]}")
    left, right = re.findall("\x1bP.*?\x1b\\\\", drawn)
    assert np.array_equal(decoded(left), pixels[20:, :10])
    assert np.array_equal(decoded(right), pixels[20:, 20:])


def test_another_size_of_the_cells_makes_other_sixels() -> None:
    terminal = FakeTerminal(*XTERM)
    picture = terminal.hold("cat")
    assert not terminal.graphics.resize()
    terminal.cell = 8, 16
    assert terminal.graphics.resize()
    assert terminal.graphics.row("cat", 0) == ""
    assert terminal.graphics.pixel_size(3, 2) == (24, 32)
    terminal.graphics.hold("cat", (3, 2), picture, None)
    assert terminal.graphics.row("cat", 0) == "", "it was read for the other size"
    terminal.cell = None
    assert not terminal.graphics.resize()
    assert terminal.take_written() == "\x1b[16t"
    assert terminal.graphics.take(b"\x1b[6;18;9t")
    assert terminal.graphics.pixel_size(3, 2) == (27, 36)


# ---- previews


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "cat.png"
    pixels = np.full((64, 128, 3), 90, np.uint8)
    pixels[:, :64] = 200
    Image.fromarray(pixels).save(path)
    return path


async def preview_of(driver: Driver, picture: Path) -> PicturePreview:
    driver.prompt.post_message(Paste(f"'{picture}'"))
    line = driver.chat.composer.pictures.line
    await driver.until(lambda: bool(line.query(PicturePreview)), "the preview")
    preview = line.query_one(PicturePreview)
    await driver.until(lambda: preview.has_pixels, "the pixels")
    return preview


def text_of(preview: PicturePreview) -> str:
    return preview.render_line(0).text


@pytest.mark.parametrize("answers", [KITTY, XTERM])
async def test_a_preview_is_drawn_by_the_terminal(
    picture: Path, answers: tuple[bytes, ...]
) -> None:
    terminal = FakeTerminal()
    async with chatting(Script(sees=True)) as driver:
        driver.app.graphics = terminal.graphics
        preview = await preview_of(driver, picture)
        assert text_of(preview) == "▀" * 16
        for answer in answers:
            driver.app.post_message(GraphicsAnswer(answer))
        if answers is KITTY:
            await driver.until(
                lambda: text_of(preview) == "▀" * 16 and "\x1b_Ga=T" in terminal.written,
                "the picture is sent",
            )
            driver.app.post_message(GraphicsAnswer(f"\x1b_Gi={FIRST_ID};OK\x1b\\".encode()))
        await driver.until(lambda: text_of(preview) != "▀" * 16, "the cells")
        assert text_of(preview) == terminal.graphics.row(preview, 0)
        preview.remove()
        await driver.until(lambda: not terminal.graphics.row(preview, 0), "it is dropped")
        assert ("\x1b_Ga=d" in terminal.written) == (answers is KITTY)


async def test_a_late_answer_finds_the_pictures_of_messages(picture: Path) -> None:
    terminal = FakeTerminal()
    async with chatting(Script(sees=True)) as driver:
        driver.app.graphics = terminal.graphics
        await preview_of(driver, picture)
        await driver.pilot.press("enter")
        await driver.until(lambda: bool(driver.transcript.query(PicturePreview)), "the message")
        preview = driver.transcript.query_one(PicturePreview)
        await driver.until(lambda: preview.has_pixels, "the pixels")
        assert text_of(preview) == "▀" * 20
        for answer in XTERM:
            driver.app.post_message(GraphicsAnswer(answer))
        await driver.until(lambda: text_of(preview) != "▀" * 20, "the cells")


async def test_another_size_of_the_cells_repaints_the_screen(
    picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixels for larger cells would remain around the new ones."""
    terminal = FakeTerminal(*XTERM)
    async with chatting(Script(sees=True)) as driver:
        driver.app.graphics = terminal.graphics
        preview = await preview_of(driver, picture)
        await driver.until(lambda: text_of(preview) != "▀" * 16, "the cells")
        repainted: list[object] = []
        monkeypatch.setattr(driver.app, "refresh", lambda **options: repainted.append(options))
        driver.app.on_resize()
        assert not repainted
        terminal.cell = 8, 16
        driver.app.on_resize()
        assert repainted == [{"layout": True}]
        monkeypatch.undo()
        assert text_of(preview) == "▀" * 16
        await driver.until(lambda: text_of(preview) != "▀" * 16, "the new cells")


@pytest.mark.parametrize("setting", ["blocks", "off"])
async def test_the_setting_sends_nothing(picture: Path, setting: str) -> None:
    written: list[str] = []
    pictures = replace(built_in_settings().pictures, preview=setting)
    async with chatting(Script(sees=True), pictures=pictures) as driver:
        driver.app.graphics = TerminalGraphics(written.append, lambda: CELL, True)
        if setting == "blocks":
            assert text_of(await preview_of(driver, picture)) == "▀" * 16
        await driver.pilot.press("enter")
        await driver.pilot.pause()
    assert written == []


# ---- the program on a terminal


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Terminal]]:
    terminals: list[Terminal] = []
    for name in ("TMUX", "STY", "ZELLIJ", "NO_COLOR", "TERM_PROGRAM", "JALOPY_CONSOLE"):
        monkeypatch.delenv(name, raising=False)

    def start(extra: str = "") -> Terminal:
        terminals.append(Terminal(f"script.sees = True\n{extra}", tmp_path))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()


def paste(terminal: Terminal, picture: Path) -> None:
    terminal.read_until(b"ready")
    assert QUESTION.encode() not in terminal.output, "nothing is asked without a picture"
    terminal.send(f"\x1b[200~{picture}\x1b[201~".encode())


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["ctrl+c", "SIGTERM", "SIGINT"])
def test_the_end_deletes_the_pictures(
    start: Callable[[str], Terminal], picture: Path, ending: str
) -> None:
    terminal = start("")
    paste(terminal, picture)
    terminal.read_until(QUESTION.encode())
    terminal.send(b"".join(KITTY))
    terminal.read_until(b"\x1b_Ga=T")
    terminal.read_until(b"m=0;")
    number = re.findall(rb"\x1b_Ga=T[^;]*i=(\d+)", terminal.output)[-1]
    terminal.send(b"\x1b_Gi=%b;OK\x1b\\" % number)
    terminal.read_until("\U0010eeee".encode())
    if ending == "ctrl+c":
        terminal.type("\x03")
        terminal.read(0.5)
        terminal.type("\x03")
    else:
        terminal.process.send_signal(getattr(signal, ending))
    terminal.wait()
    assert terminal.is_restored()
    before, after = terminal.output.rsplit(LEFT_ALTERNATE_SCREEN, 1)
    assert b"\x1b_Ga=d,d=I,i=%b,q=2;" % number in before
    assert b"\x1b_G" not in after
    assert "\U0010eeee".encode() not in after
    assert b"kitty" not in terminal.output, "no answer was typed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "answers",
    [(), (b"\x1bP>|what(", b"\x1b[?6", b"\x1b_G"), XTERM[:1], (b"\xff\xfe\x00 42\x1b[;;;c",)],
    ids=["silent", "broken", "partly", "garbage"],
)
def test_a_terminal_that_does_not_answer_shows_half_blocks(
    start: Callable[[str], Terminal], picture: Path, answers: tuple[bytes, ...]
) -> None:
    terminal = start("")
    paste(terminal, picture)
    terminal.read_until(QUESTION.encode())
    terminal.send(b"".join(answers))
    terminal.read_until("▀▀▀▀".encode()[:3])
    terminal.read(1.5)
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.wait() == 143
    assert terminal.is_restored()
    assert b"\x1b_G" not in terminal.output
    assert not re.search(rb"\x1bP", terminal.output)


def test_a_driver_reads_the_size_of_cells_from_the_system() -> None:
    handle, other = os.openpty()
    try:
        driver = SimpleNamespace(fileno=other)
        assert TerminalDriver._read_cell_size(driver) is None  # type: ignore[arg-type]
    finally:
        os.close(handle)
        os.close(other)
