import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversations.thinking import TAGS, ThinkingSplitter, opened_by


def split(text: str, closing: str | None = None, sizes: int = 1) -> tuple[str, str, bool]:
    splitter = ThinkingSplitter(closing)
    parts = [splitter.push(text[at : at + sizes]) for at in range(0, len(text), sizes)]
    is_thinking = splitter.is_thinking
    parts.append(splitter.flush())
    return "".join(part.thought for part in parts), "".join(part.answer for part in parts), is_thinking


@pytest.mark.parametrize(("opening", "closing"), TAGS.items())
@pytest.mark.parametrize("sizes", [1, 3, 1000])
def test_a_block_at_the_start_is_told_apart_from_the_answer(opening: str, closing: str, sizes: int) -> None:
    text = f"\n{opening}\n# no heading < tag\n{closing}\n\nAnswer {opening}"
    assert split(text, sizes=sizes) == ("# no heading < tag\n", f"Answer {opening}", False)


def test_text_without_a_block_is_answer_to_the_letter() -> None:
    assert split("\n\n  <thin ice> </think>") == ("", "\n\n  <thin ice> </think>", False)
    assert split("<th") == ("", "<th", False)
    assert split("") == ("", "", False)


def test_a_block_that_never_ends_is_all_thinking() -> None:
    assert split("<think>on and on </thi") == ("on and on </thi", "", True)


def test_the_prompt_may_have_opened_the_block() -> None:
    assert split("hm\n</think>\n\nyes", closing="</think>") == ("hm\n", "yes", False)
    assert split("<think>\nhm</think>yes", closing="</think>") == ("hm", "yes", False)
    assert split("  <", closing="</think>") == ("<", "", True)


def test_an_empty_block_leaves_no_thought() -> None:
    assert split("<think>\n\n</think>\n\nyes") == ("", "yes", False)


def test_only_a_tag_at_the_very_end_of_the_prompt_opens_a_block() -> None:
    assert opened_by("<|im_start|>assistant\n<think>\n") == "</think>"
    assert opened_by("<|im_start|>assistant\n[THINK]") == "[/THINK]"
    assert opened_by("<|im_start|>assistant\n<think>\n\n</think>\n\n") is None
    assert opened_by("") is None


@given(st.text("<think>/ \nab", max_size=40), st.integers(1, 9), st.sampled_from([None, "</think>"]))
def test_how_the_text_is_cut_changes_nothing(text: str, sizes: int, closing: str | None) -> None:
    assert split(text, closing, sizes) == split(text, closing, max(1, len(text)))
