"""Streamed text: any split of the bytes gives the same text, and no piece ends inside a
character."""

from hypothesis import given
from hypothesis import strategies as st

from engine.tokenizer.stream import TextStream


def streamed(pieces: list[bytes]) -> list[str]:
    stream = TextStream(pieces.__getitem__)
    return [*(stream.push(i) for i in range(len(pieces))), stream.flush()]


def test_a_character_of_several_tokens_appears_with_the_last() -> None:
    assert streamed([b"a\xe2", b"\x98", b"\x83b"]) == ["a", "", "☃b", ""]


def test_an_unfinished_character_is_replaced_at_the_end() -> None:
    assert streamed([b"a", b"\xe2\x98"]) == ["a", "", "\ufffd"]


def test_invalid_bytes_are_replaced_at_once() -> None:
    assert streamed([b"\xff", b"a", b"\xc3", b"b"]) == ["\ufffd", "a", "", "\ufffdb", ""]


def test_flush_resets_the_stream() -> None:
    pieces = [b"\xe2", b"\x98\x83"]
    stream = TextStream(pieces.__getitem__)
    assert stream.push(0) == ""
    assert stream.flush() == "\ufffd"
    assert stream.push(1) == "\ufffd\ufffd"


@given(st.lists(st.binary(max_size=6), max_size=12))
def test_any_split_of_any_bytes_gives_the_same_text(pieces: list[bytes]) -> None:
    assert "".join(streamed(pieces)) == b"".join(pieces).decode("utf-8", "replace")


@given(st.text(max_size=20), st.integers(1, 4))
def test_valid_text_is_never_replaced(text: str, size: int) -> None:
    raw = text.encode()
    pieces = [raw[i : i + size] for i in range(0, len(raw), size)]
    assert "".join(streamed(pieces)) == text


def test_a_token_that_ends_inside_a_character_is_detected() -> None:
    stream = TextStream([b"a", b"\xc3", b"\xa4"].__getitem__)
    assert [(stream.push(token), stream.is_within_character) for token in range(3)] == [
        ("a", False),
        ("", True),
        ("ä", False),
    ]
