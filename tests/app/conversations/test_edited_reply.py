"""Tokens of an edited reply: unchanged text keeps its ids, new text is tokenised, and the decoded
text is exactly what the user wrote."""

from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.backend.local.edited_reply import edited_ids
from app.reply.thinking import tag_ids
from app.text.clean_text import clean_text
from engine.tokenizer import Tokenizer
from tests.engine.tiny_gguf import bpe_vocabulary, spm_vocabulary
from tests.engine.tokenizer.test_tokenizer import as_read

BYTES = Tokenizer.from_metadata(as_read(bpe_vocabulary()), "tiny.gguf")
PIECES = Tokenizer.from_metadata(as_read(spm_vocabulary()), "tiny.gguf")
BOTH = pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["bpe", "spm"])
TEXTS = st.text(st.sampled_from("the inre\n.,äß→🙂"), max_size=30)


def reply_text(
    tokenizer: Tokenizer, ids: list[int], spelled: Collection[int] = (), is_whole: bool = False
) -> str:
    stream = tokenizer.stream(spelled)
    text = "".join(stream.push(token_id) for token_id in ids)
    return clean_text(text + stream.flush() if is_whole else text)


def generated(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return ids that no tokenizer would choose for the text: one for each byte or character."""
    return [
        token_id for char in text for token_id in tokenizer.encode_text(char, after_special=False)
    ]


def with_tags() -> tuple[Tokenizer, frozenset[int]]:
    """Return a vocabulary in which the thinking tags are control tokens."""
    fields = as_read(bpe_vocabulary())
    for tag in (b"<think>", b"</think>"):
        fields["tokenizer.ggml.tokens"] = [*fields["tokenizer.ggml.tokens"], tag]
        fields["tokenizer.ggml.token_type"] = np.append(
            fields["tokenizer.ggml.token_type"], np.int32(3)
        )
    tokenizer = Tokenizer.from_metadata(fields, "tiny.gguf")
    return tokenizer, tag_ids(tokenizer.control_texts)


@BOTH
def test_a_reply_that_was_not_changed_keeps_all_its_ids(tokenizer: Tokenizer) -> None:
    ids = generated(tokenizer, "in the rain → 🙂")
    assert edited_ids(tokenizer, ids, "in the rain → 🙂", "") == ids


@BOTH
def test_unchanged_text_keeps_its_ids_and_new_text_is_encoded(tokenizer: Tokenizer) -> None:
    ids = generated(tokenizer, "in the rain")
    assert edited_ids(tokenizer, ids, "in the", "") == ids[: len(generated(tokenizer, "in the"))]
    assert edited_ids(tokenizer, ids, "in the rain, there", "") == [
        *ids,
        *tokenizer.encode_text(", there", after_special=False),
    ]


@BOTH
def test_a_changed_word_is_encoded_again_as_a_whole(tokenizer: Tokenizer) -> None:
    ids = generated(tokenizer, "in the rain")
    unchanged_ids = ids[: len(generated(tokenizer, "in the "))]
    assert edited_ids(tokenizer, ids, "in the rails", "") == [
        *unchanged_ids,
        *tokenizer.encode_text("rails", after_special=False),
    ]


@BOTH
@given(text=TEXTS, edited=TEXTS)
def test_any_edit_reads_as_the_user_wrote_it(tokenizer: Tokenizer, text: str, edited: str) -> None:
    assert (
        reply_text(tokenizer, edited_ids(tokenizer, generated(tokenizer, text), edited, ""))
        == edited
    )


@given(text=TEXTS, edited=TEXTS, cut=st.integers(0, 3))
def test_a_reply_that_ends_inside_a_character_can_be_edited(
    text: str, edited: str, cut: int
) -> None:
    ids = generated(BYTES, text + "🙂")[: -cut or None]
    assert reply_text(BYTES, edited_ids(BYTES, ids, edited, ""), is_whole=True) == edited


def test_text_cleaned_for_the_screen_keeps_the_model_tokens() -> None:
    ids = generated(BYTES, "a\x1b[1mb\r\nin the end")
    cleaned = clean_text("a\x1b[1mb\r\nin the end")
    assert edited_ids(BYTES, ids, cleaned.removesuffix(" end"), "") == ids[: -len(" end")]


def test_thinking_before_the_answer_is_not_touched() -> None:
    ids = generated(BYTES, "<think>\nhm\n</think>\n\nin the rain")
    head = generated(BYTES, "<think>\nhm\n</think>\n\n")
    assert edited_ids(BYTES, ids, "the", "") == [
        *head,
        *BYTES.encode_text("the", after_special=False),
    ]


def test_the_thinking_is_edited_if_there_is_no_answer() -> None:
    assert (
        reply_text(BYTES, edited_ids(BYTES, generated(BYTES, "<think>\nin there"), "in", ""))
        == "<think>\nin"
    )
    opened = edited_ids(
        BYTES, generated(BYTES, "\nin there"), "in", "<|im_start|>assistant\n<think>"
    )
    assert reply_text(BYTES, opened) == "\nin"


def test_control_tokens_for_tags_stay_control_tokens() -> None:
    tokenizer, tags = with_tags()
    begin, end = (tokenizer.control_texts[tag] for tag in ("<think>", "</think>"))
    ids = [begin, *generated(tokenizer, "hm"), end, *generated(tokenizer, "\nin the rain")]
    edited = edited_ids(tokenizer, ids, "</think> the", "", tags)
    assert edited[: len(ids) - len("in the rain")] == ids[: -len("in the rain")]
    assert (edited.count(begin), edited.count(end)) == (1, 1)  # tags that the user types are text
    assert reply_text(tokenizer, edited, tags) == "<think>hm</think>\n</think> the"
