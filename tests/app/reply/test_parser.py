"""Tests of the parser of replies: thoughts, text and tool calls, however the stream is split."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.reply.parser import ParsedPiece, ReplyParser
from app.text.clean_text import clean_text
from engine.prompt.thinking import THOUGHT_MARKERS, ThoughtMarker
from engine.prompt.tools.formats import format_of
from engine.prompt.tools.split import CallSplitter

THINK = THOUGHT_MARKERS[0]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
FRAGMENTS = [
    "<think>", "\n", "</think>", "hm", "<", "th", "yes \r\n", "\x1b[1m", CALL, "<tool_call>",
    "</tool_call>", '{"name": "add", "arguments": {}}', "e\u0301" + "\u0301" * 9, "  ", "[THINK]",
    "[/THINK]",
]  # fmt: skip
"""Fragments of replies, including all markers of the parser."""


def make_splitter() -> CallSplitter:
    """Return a splitter for calls in the Hermes format."""
    call_format = format_of("<tool_call>")
    assert call_format is not None
    return CallSplitter(call_format, TOOLS)


def parse(parser: ReplyParser, pieces: Sequence[str]) -> ParsedPiece:
    """Return the parsed texts of a whole reply, joined."""
    parsed = [*map(parser.feed, pieces), parser.finish()]
    return ParsedPiece(
        "".join(piece.thought for piece in parsed),
        "".join(piece.answer for piece in parsed),
        tuple(call for piece in parsed for call in piece.calls),
    )


@st.composite
def replies(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Return a reply, and the same reply split at random positions."""
    text = "".join(draw(st.lists(st.sampled_from(FRAGMENTS), max_size=8)))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return text, pieces


@given(
    reply=replies(),
    opened=st.sampled_from([None, THINK]),
    has_calls=st.booleans(),
    has_thoughts=st.booleans(),
    cleans=st.booleans(),
    prefix=st.sampled_from(["", "<think>", "<th", "<think>hm</think>", "yes"]),
)
@example(
    (f"<think>a</think>{CALL}", ["<thi", "nk>a</think><tool_c", CALL[7:]]),
    None,
    True,
    True,
    True,
    "",
)
def test_pieces_join_to_the_same_reply_in_any_split(
    reply: tuple[str, list[str]],
    opened: ThoughtMarker | None,
    has_calls: bool,
    has_thoughts: bool,
    cleans: bool,
    prefix: str,
) -> None:
    def make_parser() -> ReplyParser:
        return ReplyParser(
            opened,
            make_splitter() if has_calls else None,
            has_thoughts=has_thoughts,
            cleans=cleans,
            prefix=prefix,
        )

    text, pieces = reply
    whole_parser = make_parser()
    split_parser = make_parser()
    assert parse(split_parser, pieces) == parse(whole_parser, [text])
    assert split_parser.is_thinking == whole_parser.is_thinking
    assert split_parser.has_thought == whole_parser.has_thought
    assert split_parser.call_doubt == whole_parser.call_doubt
    assert split_parser.call_chars == whole_parser.call_chars


@given(reply=replies())
def test_a_parser_that_looks_for_nothing_returns_the_text(reply: tuple[str, list[str]]) -> None:
    text, pieces = reply
    assert parse(ReplyParser(has_thoughts=False), pieces) == ParsedPiece("", text)
    assert parse(ReplyParser(has_thoughts=False, cleans=True), pieces) == ParsedPiece(
        "", clean_text(text)
    )


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_thought_answer_and_call_are_separated(size: int) -> None:
    text = f"<think>\nhm\n</think>\n\nI add.\n{CALL}\n"
    parser = ReplyParser(None, make_splitter(), cleans=True)
    parsed = parse(parser, [text[start : start + size] for start in range(0, len(text), size)])
    assert (parsed.thought, parsed.answer) == ("hm\n", "I add.")
    assert [(call.name, call.arguments) for call in parsed.calls] == [("add", '{"a": 1}')]
    assert text[-parser.call_chars :] == f"{CALL}\n"
    assert parser.has_thought
    assert not parser.is_thinking


def test_a_prefix_is_followed_and_not_repeated() -> None:
    parser = ReplyParser(prefix="<think>\nhm")
    assert parser.is_thinking
    assert parse(parser, ["mm</think>", "yes"]) == ParsedPiece("mm", "yes")


def test_an_invalid_call_is_text_with_a_doubt() -> None:
    parser = ReplyParser(None, make_splitter())
    parsed = parse(parser, ["<tool_call>no call</tool_call>"])
    assert parsed == ParsedPiece("", "no call")
    assert parser.call_doubt
    assert parser.call_chars == 0
