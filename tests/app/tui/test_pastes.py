"""Terminal input as messages: any bytes, split anywhere, at any pace."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from textual import constants
from textual.events import AppFocus, Key, MouseMove, Paste

from app.text.clean_text import clean_text
from app.tui import terminal_input
from app.tui.chat.draft import MAX_PASTE_CHARS
from app.tui.chat.messages import PasteRefused, PasteUnended
from app.tui.terminal_input import KEY_PAUSE_S, MAX_PASTE_BYTES, PASTE_PATIENCE_S
from tests.app.tui.terminal_hand import Hand, split

BEGIN = b"\x1b[200~"
END = b"\x1b[201~"
# Of what matters inside a paste more than chance would bring.
_PIECES = [
    b"\x1b",
    b"[",
    b"[20",
    b"[201",
    b"~",
    BEGIN,
    b"\x1b[I",
    b"\x1b[<0;1;1M",
    b"\x1b[M !!",
    b"\x1b[13u",
    b"\r\n",
    b"\r",
]
_PIECES += [b"\n", b"\0", b"\x07", b"\x9b", b"\xc2\x9b201~", b"\xc3", "é€😀".encode(), b"word"]
PAYLOADS = st.lists(st.sampled_from(_PIECES) | st.binary(max_size=4), max_size=30).map(b"".join)
CUTS = st.lists(st.integers(0, 1000), max_size=20)


def shown(payload: bytes) -> list[str]:
    text = payload.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return [clean_text(text)] if payload else []


@given(PAYLOADS.filter(lambda payload: END not in payload + END[:-1]), CUTS)
@example(b"hello \x1b x \x07" + b" " * 40_000 + b"\x1b:!touch file\r\r", [])
@example(BEGIN, range(100))
@example(b"\x1b[201", range(100))
def test_text_between_paste_marks_presses_no_key(payload: bytes, cuts: list[int]) -> None:
    hand = Hand().send(*split(BEGIN + payload + END, cuts))
    assert hand.messages == [message for message in hand.messages if isinstance(message, Paste)]
    assert hand.pasted == shown(payload)
    hand.send(b"x\r")
    assert hand.keys == ["x", "enter"]


@pytest.mark.smoke
@pytest.mark.slow
@given(
    PAYLOADS.filter(lambda payload: END not in payload + END[:-1]),
    CUTS,
    st.sampled_from([0.15, 0.5, 2.9]),
)
def test_a_pause_in_a_paste_presses_no_key(payload: bytes, cuts: list[int], pause_s: float) -> None:
    hand = Hand().send(BEGIN[:3])
    for chunk in [BEGIN[3:], *split(payload + END, cuts)]:
        hand.wait(pause_s).send(chunk)
    assert hand.messages == [message for message in hand.messages if isinstance(message, Paste)]
    assert hand.pasted == shown(payload)


@given(st.binary(max_size=200), CUTS)
def test_any_bytes_are_accepted(data: bytes, cuts: list[int]) -> None:
    hand = Hand().send(*split(data, cuts)).wait(1).wait(10).wait(10).send(END).wait(1)
    hand.messages.clear()
    assert hand.send(b"x").typed == "x"


def test_input_may_be_split_anywhere() -> None:
    payload = b"a\x1b[201\x1b[31m\x1b[200~\r\xc3\xa9\x1b"
    whole = b"k" + BEGIN + payload + END + b"\x1b[I" + b"\x1b[<35;5;5M" + b"z"
    for cut in range(len(whole)):
        hand = Hand().send(whole[:cut], whole[cut:])
        assert (hand.keys, hand.pasted) == (["k", "z"], shown(payload)), cut
        assert [type(message) for message in hand.messages] == [
            Key,
            Paste,
            AppFocus,
            MouseMove,
            Key,
        ]
    assert Hand().send(*(bytes([byte]) for byte in whole)).keys == ["k", "z"]


def test_a_split_paste_mark_starts_a_paste() -> None:
    for cut in range(1, len(BEGIN)):
        hand = Hand().send(BEGIN[:cut]).wait(60).wait(60).send(BEGIN[cut:] + b"\r!\x07").send(END)
        assert hand.pasted == ["\n!␇"]
        assert hand.keys == {1: ["escape"], 2: ["left_square_bracket"]}.get(cut, [])


def test_escape_alone_is_a_key_after_its_delay() -> None:
    hand = Hand().send(b"\x1b")
    assert hand.keys == []
    assert hand.wait(constants.ESCAPE_DELAY).keys == ["escape"]
    assert hand.send(b"\x1b").wait(constants.ESCAPE_DELAY).keys == ["escape", "escape"]
    assert hand.send(b"\x1b[A\x1b[2~\x1bOP").keys[2:] == ["up", "insert", "f1"]


def test_an_unfinished_paste_is_delivered_without_keys() -> None:
    hand = Hand().send(BEGIN + b"half\x1b[20")
    assert hand.pasted == []
    hand.wait(PASTE_PATIENCE_S)
    assert hand.pasted == ["half"]
    assert sum(isinstance(message, PasteUnended) for message in hand.messages) == 1
    hand.wait(60).send(b"1~")  # its end was held up within
    assert (hand.pasted, hand.keys) == (["half"], [])
    assert hand.send(b"\r").keys == ["enter"]


def test_the_rest_of_a_delayed_paste_is_text() -> None:
    hand = Hand().send(BEGIN + b"one\r").wait(60).send(b"\x1b:!touch file\r\r").wait(60)
    hand.send(b"three\r").send(END).send(b"\r")
    assert "".join(hand.pasted) == "one\n␛:!touch file\n\nthree\n"
    assert hand.keys == ["enter"]
    assert sum(isinstance(message, PasteUnended) for message in hand.messages) == 1


@pytest.mark.parametrize(
    ("pressed", "key"), [(b"\x03", "ctrl+c"), (b"a", "a"), (b"\x1b[A", "up"), (b"\x1b", "escape")]
)
def test_keys_work_again_after_an_unfinished_paste(pressed: bytes, key: str) -> None:
    hand = Hand().send(BEGIN + b"half").wait(PASTE_PATIENCE_S).wait(60).send(pressed)
    assert hand.keys == []
    assert hand.wait(KEY_PAUSE_S).wait(KEY_PAUSE_S).keys == [key]
    assert hand.send(b"b").keys == [key, "b"]
    assert hand.pasted == ["half"]


def test_an_unfinished_paste_takes_bounded_memory() -> None:
    hand = Hand().send(BEGIN)
    tracemalloc.start()
    for _ in range(100):
        hand.send(b"x" * (1 << 20))
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 3 * MAX_PASTE_BYTES
    hand.send(b"\r\x07\x1b", END, b"y")
    assert [type(message) for message in hand.messages] == [PasteRefused, Key]


@pytest.mark.parametrize(
    ("unit", "n_chars"),
    [(b"0123456789", 10), (b"\r\n", 1), ("\U0001f600".encode(), 1), (b"\xff", 1), (b"\xcc\x81", 1)],
)
def test_a_paste_that_is_too_long_is_refused(
    monkeypatch: pytest.MonkeyPatch, unit: bytes, n_chars: int
) -> None:
    most_chars = MAX_PASTE_CHARS
    if n_chars == 1:  # one character after the other takes long: their limit is a hundredth
        most_chars //= 100
        monkeypatch.setattr(terminal_input, "MAX_PASTE_CHARS", most_chars)
        monkeypatch.setattr(terminal_input, "MAX_PASTE_BYTES", 4 * (most_chars + 1))
    n_fitting = most_chars // n_chars
    for n_units, kind in (
        (n_fitting, Paste),
        (n_fitting + 1, PasteRefused),
        (3 * n_fitting, PasteRefused),
    ):
        chunks = split(BEGIN + unit * n_units + END + b"\r", range(0, 60 << 20, 1 << 16))
        hand = Hand().send(*chunks)
        assert [type(message) for message in hand.messages] == [kind, Key]
        assert hand.keys == ["enter"]


def test_invalid_bytes_are_shown_and_mouse_reports_dropped() -> None:
    assert Hand().send(b"caf\xe9!", b"\xc3", b"\xa9\xff").typed == "caf�!é�"
    assert Hand().send(b"a\x1b[M\x40\xff\x21b\x1b[M", b"\xc3", b"\xa9\xc3", b"c").typed == "abc"


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"a\n", ["a", "enter"]),
        (b"a\nb\n", ["a", "ctrl+j", "b", "enter"]),
        (b"a\nb", ["a", "ctrl+j", "b"]),
        (b"a\n\x1b[I\x1b[?2026;2$y", ["a", "enter"]),
        (b"", []),
    ],
)
def test_a_line_end_typed_ahead_is_enter(data: bytes, keys: list[str]) -> None:
    hand = Hand()
    hand.messages += hand.input.feed_typed_ahead(data)
    assert hand.keys == keys
    assert hand.send(b"\n").keys == [*keys, "ctrl+j"]


def test_a_line_end_in_a_paste_across_a_stop_is_not_enter() -> None:
    hand = Hand().send(BEGIN + b"one")
    hand.messages += hand.input.feed_typed_ahead(b"two\n")
    assert (hand.send(END).pasted, hand.keys) == (["onetwo\n"], [])


# ---- pastes without marks


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"one\rtwo\rthree", "one\ntwo\nthree"),
        (b"one\r\ntwo\r\nthree\r\n", "one\ntwo\nthree\n"),
        (b"\tone\r\r two\r", "\tone\n\n two\n"),
        ("é€😀\rß".encode(), "é€😀\nß"),
    ],
)
def test_several_lines_in_one_read_are_a_paste(sent: bytes, text: str) -> None:
    hand = Hand().send(sent)
    assert (hand.keys, hand.pasted) == ([], [text])
    hand.wait(0.2).send(b"\r")
    assert hand.keys == ["enter"]


def test_a_paste_without_marks_may_come_in_several_reads() -> None:
    hand = Hand()
    for piece in (b"one\rtwo\r", b"three\r", "é".encode()[:1], "é".encode()[1:] + b"\rfour\r"):
        hand.send(piece).wait(0.01)
    assert hand.keys == []
    assert "".join(hand.pasted) == "one\ntwo\nthree\né\nfour\n"


@pytest.mark.parametrize(
    "sent",
    [b"\r", b"hello\r", b"hello\r\r", b"hello\r\x11", b"a\nb\r", b"/new\r\x0f", b"x\x1b[A\ry"],
)
def test_fast_keys_of_one_read_are_keys(sent: bytes) -> None:
    hand = Hand().send(sent)
    assert hand.pasted == []
    assert "enter" in hand.keys


# ---- sequences that are held up


@pytest.mark.parametrize(
    ("pieces", "keys"),
    [
        ([b"\x1b", b"[106;5u"], ["escape", "ctrl+j"]),
        ([b"\x1b", b"[A"], ["escape", "up"]),
        ([b"\x1b", b"OP"], ["escape", "f1"]),
        ([b"\x1b", b"[106", b";5u"], ["escape", "ctrl+j"]),
        ([b"\x1b[106", b";5u"], ["ctrl+j"]),
        ([b"\x1b[1", b"06;5", b"u"], ["ctrl+j"]),
        ([b"\x1b", b"[<35;10;10M"], ["escape"]),
    ],
)
def test_a_key_split_by_a_slow_line_is_complete_or_dropped(
    pieces: list[bytes], keys: list[str]
) -> None:
    hand = Hand()
    for piece in pieces:
        hand.send(piece).wait(0.35)
    hand.send(b"x")
    assert hand.keys == [*keys, "x"]


def test_text_typed_after_escape_is_text() -> None:
    hand = Hand().send(b"\x1b").wait(0.2)
    for letter in b"[106;5u":
        hand.send(bytes([letter])).wait(0.05)
    assert hand.typed == "\x1b[106;5u"
    hand = Hand().send(b"\x1b").wait(0.2).send(b"[hello world")
    assert hand.typed == "\x1b[hello world"
    hand = Hand().send(b"\x1b").wait(2.0).send(b"[A")
    assert hand.typed == "\x1b[A"


def test_a_long_line_and_its_successors_are_a_paste() -> None:
    hand = Hand().send(b"a" * 4000).wait(0.01).send(b"\rb\r")
    assert hand.keys == []
    assert "".join(hand.pasted) == "a" * 4000 + "\nb\n"
