"""Tests of thinking blocks in replies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.reply.thinking import ThinkingSplitter, answer_start, tag_ids
from engine.prompt.thinking import HARMONY, THOUGHT_MARKERS, ThoughtMarker, opened_by

THINK = THOUGHT_MARKERS[0]
CHANNELS = (
    "<|channel|>analysis<|message|>hm <|end|><|start|>assistant<|channel|>final<|message|>Yes."
)


def split(text: str, opened: ThoughtMarker | None = None, sizes: int = 1) -> tuple[str, str, bool]:
    splitter = ThinkingSplitter(opened)
    pieces = [splitter.push(text[index : index + sizes]) for index in range(0, len(text), sizes)]
    is_thinking = splitter.is_thinking
    pieces.append(splitter.flush())
    return (
        "".join(piece.thought for piece in pieces),
        "".join(piece.answer for piece in pieces),
        is_thinking,
    )


@pytest.mark.parametrize("marker", THOUGHT_MARKERS, ids=lambda marker: marker.opening)
@pytest.mark.parametrize("sizes", [1, 3, 1000])
def test_a_block_at_the_start_is_a_thought(marker: ThoughtMarker, sizes: int) -> None:
    behind = f"{marker.closing}{marker.next_part}{marker.answer}\n\nAnswer {marker.opening}"
    text = f"\n{marker.opening}\n# no heading < tag\n{behind}"
    assert split(text, sizes=sizes) == ("# no heading < tag\n", f"Answer {marker.opening}", False)
    assert text[answer_start(text, None) :] == f"Answer {marker.opening}"


def test_text_without_a_block_is_an_unchanged_answer() -> None:
    assert split("\n\n  <thin ice> </think>") == ("", "\n\n  <thin ice> </think>", False)
    assert split("<th") == ("", "<th", False)
    assert split("") == ("", "", False)


def test_a_block_that_never_ends_is_all_thinking() -> None:
    assert split("<think>on and on </thi") == ("on and on </thi", "", True)


def test_the_prompt_may_have_opened_the_block() -> None:
    assert split("hm\n</think>\n\nyes", opened=THINK) == ("hm\n", "yes", False)
    assert split("<think>\nhm</think>yes", opened=THINK) == ("hm", "yes", False)
    assert split("  <", opened=THINK) == ("<", "", True)


def test_an_empty_block_leaves_no_thought() -> None:
    assert split("<think>\n\n</think>\n\nyes") == ("", "yes", False)


def test_only_a_tag_at_the_very_end_of_the_prompt_opens_a_block() -> None:
    assert opened_by("<|im_start|>assistant\n<think>\n") is THINK
    assert opened_by("<|im_start|>assistant\n[THINK]") is not None
    assert opened_by("<|im_start|>assistant\n<think>\n\n</think>\n\n") is None
    assert opened_by("") is None


@pytest.mark.parametrize("sizes", [1, 5, 1000])
def test_channels_of_a_reply_are_thought_and_answer(sizes: int) -> None:
    assert split(CHANNELS, sizes=sizes) == ("hm ", "Yes.", False)
    assert split("<|channel|>final<|message|>Yes.", sizes=sizes) == ("", "Yes.", False)
    again = CHANNELS.replace("final", "analysis", 1)
    assert split(
        f"{again}<|end|><|start|>assistant<|channel|>final<|message|>No.", sizes=sizes
    ) == (
        "hm Yes.",
        "No.",
        False,
    )
    assert split("<|channel|>analysis<|message|>hm<|end|>", sizes=sizes) == ("hm", "", True)
    assert split("<|end|>a plain answer", sizes=sizes) == ("", "<|end|>a plain answer", False)
    assert CHANNELS[answer_start(CHANNELS, None) :] == "Yes."


@pytest.mark.parametrize("frame", ["response", "answer"])
@pytest.mark.parametrize("sizes", [1, 4, 1000])
def test_the_frame_around_an_answer_is_left_out(frame: str, sizes: int) -> None:
    begin = f"<{frame}>"
    end = f"</{frame}>"
    assert split(f"<think>\nhm</think>\n{begin}\nYes {end} no.\n{end}\n", sizes=sizes) == (
        "hm",
        f"Yes {end} no.",
        False,
    )
    assert split(f"<think>hm</think>{begin}Yes", sizes=sizes) == ("hm", "Yes", False)
    assert split(f"{begin}Yes{end}", sizes=sizes) == ("", f"{begin}Yes{end}", False)
    text = f"<think>hm</think>{begin}\nYes\n{end}"
    assert text[answer_start(text, None) :] == f"Yes\n{end}"


def test_the_answer_begins_after_the_thought_if_there_is_one() -> None:
    assert answer_start("<think>hm</think>", None) == len("<think>hm</think>")
    assert answer_start("<think>hm", None) == len("<think>")
    assert answer_start("hm</think>yes", THINK) == len("hm</think>")
    assert answer_start("yes", None) == 0


def test_only_a_vocabulary_of_channels_has_tokens_of_channels() -> None:
    tokens = {"<think>": 1, "<|end|>": 2, "<|message|>": 3, "<|im_end|>": 4}
    assert tag_ids(tokens) == {1}
    assert tag_ids(tokens | {"<|channel|>": 5}) == {1, 2, 3, 5}


PARTS = ["<", "think>", "/think>", "<response>", "</response>", " ", "\n", "a", "b"]
PARTS += ["<|channel|>", "analysis", "final", "<|message|>", "<|end|>", "<|start|>assistant"]


@given(
    st.lists(st.sampled_from(PARTS), max_size=14),
    st.integers(1, 9),
    st.sampled_from([None, THINK, HARMONY]),
)
def test_the_result_does_not_depend_on_the_pieces(
    fragments: list[str], sizes: int, opened: ThoughtMarker | None
) -> None:
    text = "".join(fragments)
    assert split(text, opened, sizes) == split(text, opened, max(1, len(text)))
    thought, answer, _ = split(text, opened)
    assert text[answer_start(text, opened) :].lstrip().startswith(answer.strip())
    assert len(thought) + len(answer) <= len(text)
