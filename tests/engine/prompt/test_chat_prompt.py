"""Conversations as tokens: earlier turns keep their tokens, and typed text never becomes a control
token."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import TemplateError
from engine.prompt.chat_prompt import ChatPrompt, Message, picture_name
from engine.prompt.chat_template import ChatTemplate
from engine.prompt.template_process import TemplateProcess
from engine.tokenizer import Tokenizer
from tests.engine.tiny_gguf import bpe_vocabulary, spm_vocabulary
from tests.engine.tokenizer.test_tokenizer import as_read

BYTES = Tokenizer.from_metadata(as_read(bpe_vocabulary()), "tiny.gguf")
PIECES = Tokenizer.from_metadata(as_read(spm_vocabulary()), "tiny.gguf")
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' "
    "[/INST]' }}"
    "{% else %}{{ ' ' + m.content | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
MOVES_SYSTEM = (
    "{% for m in messages if m.role != 'system' %}<|im_start|>"
    "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}: {% endif %}"
    "{{ m.content }}<|im_end|>{% endfor %}"
)
OPENS_THINKING = (
    "{% for m in messages %}[{{ m.content }}]<|im_end|>{% endfor %}<|im_start|>assistant\n"
    "{{ '<think>\n' }}"
)
STRIPS_THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] "
    "}}<|im_end|>\n{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)


real = cache(Tokenizer.open)


def chatml(tokenizer: Tokenizer = BYTES) -> ChatPrompt:
    return ChatPrompt(tokenizer, ChatTemplate(None))


def with_template(source: str, tokenizer: Tokenizer, process: TemplateProcess) -> ChatPrompt:
    bos = tokenizer.token_text(tokenizer.bos_id)
    eos = tokenizer.token_text(tokenizer.eos_id)
    return ChatPrompt(tokenizer, ChatTemplate(source, bos, eos, "tiny.gguf", process))


def reply(chat: ChatPrompt, tokenizer: Tokenizer, text: str) -> list[int]:
    """Add a reply of one token per byte, which no tokenizer would choose for the text."""
    ids = [
        token_id for char in text for token_id in tokenizer.encode_text(char, after_special=False)
    ]
    chat.add_reply(ids, text)
    return ids


def spelled(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Return the text of tokens, with control tokens as the vocabulary spells them."""
    return b"".join(
        tokenizer.token_bytes(token_id) or tokenizer.token_text(token_id).encode()
        for token_id in ids
    ).decode()


def test_a_first_prompt_is_the_rendered_conversation() -> None:
    chat = chatml()
    chat.start("Be brief.")
    ids = chat.add_user("the rain")
    text = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nthe "
        "rain<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids == BYTES.encode(text, bos=False)
    assert chat.messages == [Message("system", "Be brief."), Message("user", "the rain")]


def test_a_new_turn_appends_to_the_exact_ids_of_the_reply() -> None:
    chat = chatml()
    first = chat.add_user("the rain")
    answer = reply(chat, BYTES, "in the end")
    assert answer != BYTES.encode("in the end", bos=False)
    second = chat.add_user("and then?")
    assert second[: len(first) + len(answer)] == first + answer
    second_turn = "<|im_end|>\n<|im_start|>user\nand then?<|im_end|>\n<|im_start|>assistant\n"
    assert second[len(first) + len(answer) :] == BYTES.encode(second_turn, bos=False)


@pytest.mark.parametrize("text", ["  the end ", "\n\nthe end", "", "   ", "é☃"])
def test_white_space_around_a_reply_does_not_cost_its_ids(
    text: str, process: TemplateProcess
) -> None:
    chat = with_template(LLAMA2, PIECES, process)
    first = chat.add_user("the rain")
    answer = reply(chat, PIECES, text)
    second = chat.add_user("on")
    assert second[: len(first) + len(answer)] == first + answer
    assert (
        spelled(PIECES, second[len(first) + len(answer) :]).strip() == "</s><s> [INST] on [/INST]"
    )


def test_a_reply_of_bytes_without_text_keeps_its_ids() -> None:
    chat = chatml()
    first = chat.add_user("the rain")
    half = BYTES.encode("é", bos=False)[:1]
    chat.add_reply(half, "")
    assert chat.add_user("on")[: len(first) + 1] == first + half


def test_a_template_that_strips_thinking_costs_only_the_reply(process: TemplateProcess) -> None:
    chat = with_template(STRIPS_THINKING, BYTES, process)
    first = chat.add_user("the rain")
    reply(chat, BYTES, "<think>hm</think>yes")
    second = chat.add_user("on")
    assert second[: len(first)] == first
    text = "yes<|im_end|>\n<|im_start|>user\non<|im_end|>\n<|im_start|>assistant\n"
    assert second[len(first) :] == BYTES.encode(text, bos=False)


def test_a_template_that_moves_the_system_message_gives_all_text(process: TemplateProcess) -> None:
    chat = with_template(MOVES_SYSTEM, BYTES, process)
    chat.start("Be brief")
    assert spelled(BYTES, chat.add_user("one")) == "<|im_start|>Be brief: one<|im_end|>"
    reply(chat, BYTES, "two")
    assert spelled(BYTES, chat.add_user("three")) == (
        "<|im_start|>one<|im_end|><|im_start|>two<|im_end|><|im_start|>Be brief: three<|im_end|>"
    )


def test_without_a_system_role_the_text_joins_the_first_turn(process: TemplateProcess) -> None:
    source = (
        "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.content }}<|im_end|>{% "
        "endfor %}"
    )
    chat = with_template(source, BYTES, process)
    chat.start("Be brief.")
    first = chat.add_user("one")
    assert spelled(BYTES, first) == "<|im_start|>Be brief.\none<|im_end|>"
    assert chat.messages[0] == Message("system", "Be brief.")


def test_begin_of_text_occurs_once(process: TemplateProcess) -> None:
    bos = PIECES.bos_id
    printed = with_template("{{ bos_token }}{{ messages[-1].content }}", PIECES, process).add_user(
        "a"
    )
    added = with_template("{{ messages[-1].content }}", PIECES, process).add_user("a")
    assert printed == added
    assert printed[0] == bos
    assert printed.count(bos) == 1


def test_bos_is_added_only_if_the_vocabulary_says_so() -> None:
    assert not BYTES.add_bos
    assert chatml().add_user("a")[0] == BYTES.encode("<|im_start|>")[0]


def test_chatml_without_control_tokens_stops_at_their_text(process: TemplateProcess) -> None:
    chat = chatml(PIECES)
    first = chat.add_user("one")
    assert chat.stops == ("<|im_end|>", "<|im_start|>")
    answer, end = (
        PIECES.encode_text(text, after_special=False) for text in ("the end", "<|im_end|>")
    )
    chat.add_reply([*answer, *end], "the end")
    second = chat.add_user("two")
    assert second[: len(first) + len(answer)] == first + answer
    assert spelled(PIECES, second).count("<|im_end|>") == 3
    assert chatml(BYTES).stops == ()
    assert with_template(LLAMA2, PIECES, process).stops == ()


def with_tokens(tokens: dict[str, int]) -> Tokenizer:
    """Return the SentencePiece-like vocabulary with added tokens of given types."""
    entries = spm_vocabulary()
    added = {
        "tokens": list(tokens),
        "token_type": list(tokens.values()),
        "scores": [-99.0] * len(tokens),
    }
    for name, values in added.items():
        values_so_far = entries[f"tokenizer.ggml.{name}"]
        entries[f"tokenizer.ggml.{name}"] = (
            [*values_so_far, *values] if name == "tokens" else np.append(values_so_far, values)
        )
    return Tokenizer.from_metadata(as_read(entries), "tiny.gguf")


def test_a_stop_that_starts_inside_a_token_is_removed() -> None:
    tokenizer = with_tokens({".<": 1})
    chat = chatml(tokenizer)
    chat.add_user("one")
    answer, stop_ids = (
        tokenizer.encode_text(text, after_special=False) for text in ("the end", "|im_end|>")
    )
    chat.add_reply([*answer, tokenizer.vocab_size - 1, *stop_ids], "the end.")
    second = spelled(tokenizer, chat.add_user("two"))
    assert second.count("<|im_end|>") == 3
    assert "the end.<|im_end|>" in second
    assert chat.messages[-2].content == "the end."


def test_the_stop_after_a_reply_with_tags_is_removed() -> None:
    tokenizer = with_tokens({"<think>": 3, "</think>": 3})
    chat = chatml(tokenizer)
    chat.add_user("one")
    opening = tokenizer.vocab_size - 2
    closing = tokenizer.vocab_size - 1
    answer, end = (
        tokenizer.encode_text(text, after_special=False) for text in ("the end", "<|im_end|>")
    )
    chat.add_reply([opening, closing, *answer, *end], "<think></think>the end")
    second = chat.add_user("two")
    assert spelled(tokenizer, second).count("<|im_end|>") == 3
    assert opening in second


# Rewinding


def test_rewinding_to_a_question_restores_its_prompt() -> None:
    chat = chatml()
    first = chat.add_user("one")
    reply(chat, BYTES, "two")
    second = chat.add_user("three")
    reply(chat, BYTES, "four")
    chat.rewind(3)
    assert chat.prompt_ids() == second
    chat.rewind(1)
    assert chat.prompt_ids() == first


def test_rewinding_keeps_the_ids_of_earlier_replies() -> None:
    chat = chatml()
    first = chat.add_user("one")
    answer = reply(chat, BYTES, "the end")
    chat.add_user("three")
    chat.rewind(2)
    other_prompt = chat.add_user("other")
    assert other_prompt[: len(first) + len(answer)] == first + answer
    assert "three" not in spelled(BYTES, other_prompt)


def test_a_new_reply_replaces_the_rewound_reply() -> None:
    chat = chatml()
    first = chat.add_user("one")
    reply(chat, BYTES, "bad")
    chat.rewind(1)
    answer = reply(chat, BYTES, "good")
    assert chat.add_user("on")[: len(first) + len(answer)] == first + answer


def test_resetting_a_chat_forgets_everything() -> None:
    chat = chatml()
    fresh = chat.add_user("one")
    reply(chat, BYTES, "two")
    chat.start(None)
    assert chat.messages == []
    assert chat.add_user("one") == fresh


def test_a_reply_cannot_follow_another_reply() -> None:
    chat = chatml()
    with pytest.raises(ValueError, match="needs a message before"):
        chat.prompt_ids()
    chat.add_reply([1], "a")
    with pytest.raises(ValueError, match="cannot follow another"):
        chat.add_reply([1], "a")
    with pytest.raises(ValueError, match="needs a message before"):
        chat.prompt_ids()


def test_messages_in_any_order_encode_like_their_text() -> None:
    chat = chatml()
    chat.start("be brief")
    chat.add_reply(BYTES.encode("hello", bos=False, special=False), "hello")
    chat.add_unrendered("one")
    chat.add_unrendered("two")
    chat.add_system("in French")
    text = "".join(
        f"<|im_start|>{role}\n{content}<|im_end|>\n"
        for role, content in (
            ("system", "be brief"), ("assistant", "hello"), ("user", "one"), ("user", "two"),
            ("system", "in French"),
        )
    )  # fmt: skip
    assert chat.prompt_ids() == BYTES.encode(f"{text}<|im_start|>assistant\n")


def test_a_message_that_cannot_be_rendered_changes_nothing(process: TemplateProcess) -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% if 'bad' in m.content %}{{ "
        "raise_exception('no') }}{% endif %}"
    )
    chat = with_template(source + "<|im_end|>{% endfor %}", BYTES, process)
    first = chat.add_user("one")
    answer = reply(chat, BYTES, "two")
    with pytest.raises(TemplateError, match="the chat template fails: no"):
        chat.add_user("bad")
    assert len(chat.messages) == 2
    ids = chat.add_user("good")
    assert ids[0] == first[0]
    assert spelled(BYTES, ids) == "one<|im_end|>two<|im_end|>good<|im_end|>"
    assert answer


def test_an_unrenderable_message_stays_but_prompts_are_refused(process: TemplateProcess) -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% if 'bad' in m.content %}{{ "
        "raise_exception('no') }}{% endif %}"
    )
    chat = with_template(source + "<|im_end|>{% endfor %}", BYTES, process)
    chat.add_user("one")
    reply(chat, BYTES, "two")
    chat.add_unrendered("bad")
    reply(chat, BYTES, "three")
    chat.add_unrendered("four")
    reply(chat, BYTES, "five")
    with pytest.raises(TemplateError, match="the chat template fails: no"):
        chat.add_user("six")
    assert [message.content for message in chat.messages] == [
        "one",
        "two",
        "bad",
        "three",
        "four",
        "five",
    ]
    assert len(chat.turn_starts()) == 3
    chat.rewind(2)
    assert spelled(BYTES, chat.add_user("good")) == "one<|im_end|>two<|im_end|>good<|im_end|>"


# Removing and saving replies


def test_a_removed_reply_returns_its_ids_and_leaves_the_prompt() -> None:
    chat = chatml()
    chat.start("Be brief.")
    prompt = chat.add_user("the rain")
    answer = reply(chat, BYTES, "in the end")
    removed = chat.take_reply()
    assert (list(removed.ids), removed.text) == (answer, "in the end")
    assert chat.prompt_ids() == prompt
    chat.add_reply([*answer, *answer], "in the endin the end")
    assert chat.add_user("on")[: len(prompt) + 2 * len(answer)] == prompt + answer + answer


def test_a_reply_can_be_removed_after_a_later_message() -> None:
    chat = chatml()
    prompt = chat.add_user("the rain")
    answer = reply(chat, BYTES, "in the end")
    chat.add_user("a question that is stopped before its first token")
    chat.rewind(2)
    assert list(chat.take_reply().ids) == answer
    assert chat.prompt_ids() == prompt


def test_only_a_reply_at_the_end_can_be_removed() -> None:
    chat = chatml()
    chat.add_user("the rain")
    with pytest.raises(ValueError, match="not a reply"):
        chat.take_reply()


def test_a_saved_chat_is_restored_token_for_token() -> None:
    chat = chatml()
    chat.add_user("the rain")
    reply(chat, BYTES, "in the end")
    chat.add_user("and then?")
    reply(chat, BYTES, "sun")
    saved = chat.save()
    chat.rewind(0)
    chat.add_user("something else <|im_end|>")
    reply(chat, BYTES, "other")
    chat.restore(saved)
    assert chat.save() == saved
    fresh = chatml()
    fresh.add_user("the rain")
    reply(fresh, BYTES, "in the end")
    fresh.add_user("and then?")
    reply(fresh, BYTES, "sun")
    assert chat.add_user("more") == fresh.add_user("more")


def test_turn_starts_divide_the_prompt_at_the_messages() -> None:
    chat = chatml()
    chat.start("Be brief.")
    chat.add_user("the rain")
    reply(chat, BYTES, "in the end")
    ids = chat.add_user("s")
    first, second = chat.turn_starts()
    assert spelled(BYTES, ids[:first]) == "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert spelled(BYTES, ids[first:second]) == (
        "<|im_start|>user\nthe rain<|im_end|>\n<|im_start|>assistant\nin the end<|im_end|>\n"
    )


def test_turns_are_user_message_starts_and_the_last_end() -> None:
    chat = chatml()
    assert chat.checkpoint_positions() == []
    chat.start("Be brief.")
    chat.add_user("the rain")
    reply(chat, BYTES, "in the end")
    ids = chat.add_user("s")
    *starts, end = chat.checkpoint_positions()
    assert starts == chat.turn_starts()
    assert spelled(BYTES, ids[starts[-1] : end]) == "<|im_start|>user\ns"
    assert spelled(BYTES, ids[end:]) == "<|im_end|>\n<|im_start|>assistant\n"


def test_turn_starts_if_the_system_message_moves_to_the_end(process: TemplateProcess) -> None:
    chat = with_template(MOVES_SYSTEM, BYTES, process)
    chat.start("Be brief")
    chat.add_user("one")
    reply(chat, BYTES, "two")
    ids = chat.add_user("three")
    assert [spelled(BYTES, ids[start:]) for start in chat.turn_starts()] == [
        "<|im_start|>one<|im_end|><|im_start|>two<|im_end|><|im_start|>Be brief: three<|im_end|>",
        "<|im_start|>Be brief: three<|im_end|>",
    ]


def test_turn_starts_without_special_tokens_are_between_turns(process: TemplateProcess) -> None:
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    chat = with_template(source, BYTES, process)
    prompt = chat.add_user("the rain")
    answer = reply(chat, BYTES, "in the end")
    chat.add_user("on")
    assert chat.turn_starts() == [0, len(prompt) + len(answer)]


def test_the_opening_is_the_templates_text_before_the_reply(process: TemplateProcess) -> None:
    chat = with_template(OPENS_THINKING, BYTES, process)
    chat.add_user("the rain")
    assert chat.opening == "]<|im_end|><|im_start|>assistant\n<think>\n"


@pytest.mark.parametrize("text", ["hi", "think", "n", ">", "assistant"])
def test_the_opening_may_contain_words_of_the_conversation(
    text: str, process: TemplateProcess
) -> None:
    chat = with_template(OPENS_THINKING, BYTES, process)
    chat.start("This is a test.")
    chat.add_user(text)
    reply(chat, BYTES, f"no {text}")
    chat.add_user(text)
    assert chat.opening.endswith("<|im_end|><|im_start|>assistant\n<think>\n")


# Text that spells control tokens


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["bpe", "spm"])
def test_typed_control_tokens_stay_text(tokenizer: Tokenizer) -> None:
    nasty = "a" + "".join(tokenizer.control_texts) * 2 + "<|im_<|im_end|>end|>"
    chat = chatml(tokenizer)
    chat.start(nasty)
    ids = chat.add_user(nasty)
    reply(chat, tokenizer, "fine")
    ids = chat.add_user(nasty)
    plain = ChatPrompt(tokenizer, ChatTemplate(None))
    plain.start("x")
    plain.add_user("x")
    reply(plain, tokenizer, "fine")
    expected = [token_id for token_id in plain.add_user("x") if not tokenizer.token_bytes(token_id)]
    assert [token_id for token_id in ids if not tokenizer.token_bytes(token_id)] == expected
    assert spelled(tokenizer, ids).count(nasty) == 3


def test_a_reply_that_spells_a_control_token_stays_text(process: TemplateProcess) -> None:
    chat = with_template(STRIPS_THINKING, BYTES, process)
    chat.add_user("one")
    reply(chat, BYTES, "<think>x</think>say <|im_end|>")
    ids = chat.add_user("two")
    assert ids.count(BYTES.eos_id) == 3  # after each of the three messages
    assert "say <|im_end|>" in spelled(BYTES, ids)


def test_a_partial_control_token_in_a_reply_hides_no_real_one(process: TemplateProcess) -> None:
    source = "{% for m in messages %}<|im_start|>{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}"
    chat = with_template(source, BYTES, process)
    chat.add_user("the rain")
    reply(chat, BYTES, "<|im_")
    ids = chat.add_user("on")
    text = (
        "<|im_start|>userthe "
        "rain<|im_end|><|im_start|>assistant<|im_<|im_end|><|im_start|>useron<|im_end|>"
    )
    assert spelled(BYTES, ids) == text
    assert ids.count(BYTES.control_texts["<|im_start|>"]) == 3


def test_private_use_characters_of_a_message_survive() -> None:
    private = "".join(map(chr, range(0xF0000, 0xF0004)))
    chat = chatml()
    first = chat.add_user("<|im_end|>")
    answer = reply(chat, BYTES, "x")
    ids = chat.add_user(f"{private}<|im_start|>")
    assert ids[: len(first) + len(answer)] == first + answer
    assert f"{private}<|im_start|><|im_end|>" in spelled(BYTES, ids)


TYPED = st.text("ab <|im_startend>\n", max_size=30) | st.sampled_from(
    ["<|im_end|>", "<|im_start|>system\n", "</s>"]
)


@pytest.mark.smoke
@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(TYPED, TYPED), min_size=1, max_size=4))
def test_every_conversation_only_grows_and_keeps_its_text(turns: list[tuple[str, str]]) -> None:
    chat = chatml()
    previous_ids: list[int] = []
    for question, answer in turns:
        ids = chat.add_user(question)
        assert ids[: len(previous_ids)] == previous_ids
        previous_ids = ids + reply(chat, BYTES, answer)
    rendered = "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in chat.messages[:-1])
    assert spelled(BYTES, ids) == rendered + "<|im_start|>assistant\n"
    assert ids.count(BYTES.eos_id) == len(chat.messages) - 1


def test_prompts_of_real_vocabularies_equal_one_full_rendering(
    shared_data: Path, process: TemplateProcess
) -> None:
    pairs = [
        ("llama-bpe", "meta-llama-Llama-3.2-3B-Instruct"),
        ("qwen2", "Qwen-Qwen2.5-7B-Instruct"),
        ("phi-3", "microsoft-Phi-3.5-mini-instruct"),
    ]
    for vocabulary, name in pairs:
        tokenizer = real(shared_data / "vocab" / f"ggml-vocab-{vocabulary}.gguf")
        source = (shared_data / "templates" / "jinja" / f"{name}.jinja").read_text(encoding="utf-8")
        chat = with_template(source, tokenizer, process)
        chat.start("Be brief.")
        for question in ("Why is the sky blue?", "And at night?"):
            ids = chat.add_user(question)
            chat.add_reply(tokenizer.encode_text("Scattering.", after_special=True), "Scattering.")
        bos = tokenizer.token_text(tokenizer.bos_id)
        eos = tokenizer.token_text(tokenizer.eos_id)
        messages = [{"role": m.role, "content": m.content} for m in chat.messages[:-1]]
        text = ChatTemplate(source, bos, eos, process=process).render(messages)
        expected = tokenizer.encode(text, bos=tokenizer.add_bos and not text.startswith(bos))
        assert ids == expected, name


ESSAY = (
    "Summarise what the committee's report (1987) says about  rain:\n\n- 12,500 mm fell; "
    "don't ask why.\n"
    "def f(x):\n    return x ** 2  # naïve\n\nÜber den Wolken ... 東京は今日も雨です。 Whatever-it-is, "
    "antidisestab"
)


def test_an_opening_is_valid_for_every_continuation(
    shared_data: Path, process: TemplateProcess
) -> None:
    pairs = [
        ("llama-bpe", "meta-llama-Llama-3.2-3B-Instruct"),
        ("qwen2", "Qwen-Qwen2.5-7B-Instruct"),
        ("phi-3", "microsoft-Phi-3.5-mini-instruct"),
        ("llama-spm", "microsoft-Phi-3.5-mini-instruct"),
    ]
    for vocabulary, name in pairs:
        tokenizer = real(shared_data / "vocab" / f"ggml-vocab-{vocabulary}.gguf")
        source = (shared_data / "templates" / "jinja" / f"{name}.jinja").read_text(encoding="utf-8")
        chat = with_template(source, tokenizer, process)
        first = chat.add_user("Why is the sky blue?")
        answer = reply(chat, tokenizer, "Scattering.")
        messages = list(chat.messages)
        openings = [chat.opening_ids(ESSAY[:end]) for end in range(1, len(ESSAY), 7)]
        assert chat.messages == messages
        complete = chat.add_user(ESSAY)
        assert complete[: len(first) + len(answer)] == first + answer, (
            "earlier turns keep their tokens"
        )
        for opening in openings:
            assert opening == complete[: len(opening)], (vocabulary, tokenizer.decode(opening[-8:]))
        assert len(openings[-1]) > len(complete) - 40, "all but the end is there to be read"
        assert min(map(len, openings)) >= len(first) + len(answer) - 2, (
            "the conversation itself always is"
        )


def test_a_message_without_spaces_opens_with_all_but_its_end() -> None:
    chat = chatml()
    text = "雨" * 100
    opening = chat.opening_ids(text)
    complete = chat.add_user(text)
    assert opening == complete[: len(opening)]
    assert len(opening) > len(BYTES.encode("雨" * 70, bos=False))


def thinking_tokenizer() -> Tokenizer:
    """Return a vocabulary whose thinking tags are control tokens."""
    fields = as_read(bpe_vocabulary())
    fields["tokenizer.ggml.tokens"] = [*fields["tokenizer.ggml.tokens"], b"<think>", b"</think>"]
    fields["tokenizer.ggml.token_type"] = np.append(
        fields["tokenizer.ggml.token_type"], np.int32([3, 3])
    )
    return Tokenizer.from_metadata(fields, "tiny.gguf")


def test_a_template_finds_tags_generated_as_control_tokens(process: TemplateProcess) -> None:
    tokenizer = thinking_tokenizer()
    chat = with_template(STRIPS_THINKING, tokenizer, process)
    first = chat.add_user("the rain")
    chat.add_reply(tokenizer.encode("<think>hm</think>yes", bos=False), "<think>hm</think>yes")
    second = chat.add_user("on")
    assert second[: len(first)] == first
    text = "yes<|im_end|>\n<|im_start|>user\non<|im_end|>\n<|im_start|>assistant\n"
    assert second[len(first) :] == tokenizer.encode(text, bos=False)


def test_a_template_that_keeps_thinking_keeps_its_control_tokens() -> None:
    tokenizer = thinking_tokenizer()
    chat = chatml(tokenizer)
    first = chat.add_user("the rain")
    ids = tokenizer.encode("<think>hm</think>yes", bos=False)
    chat.add_reply(ids, "<think>hm</think>yes")
    second = chat.add_user("on </think>")
    assert second[: len(first) + len(ids)] == first + ids
    assert second.count(tokenizer.control_texts["</think>"]) == 1


def test_tags_spelled_as_text_are_not_thinking(process: TemplateProcess) -> None:
    tokenizer = thinking_tokenizer()
    chat = with_template(STRIPS_THINKING, tokenizer, process)
    chat.add_user("the rain")
    text = "the tag is </think> here"
    chat.add_reply(tokenizer.encode_text(text, after_special=False), text)
    second = chat.add_user("on")
    assert tokenizer.control_texts["</think>"] not in second
    assert text in spelled(tokenizer, second)


def test_a_picture_stands_where_its_name_is_in_a_message() -> None:
    chat = chatml()
    names = [picture_name(digest * 16) for digest in ("01ab", "01ac")]
    chat.pictures = dict(zip(names, [(-5, -6, -7), (-8, -9)], strict=True))
    plain = chatml().add_user("before after.")
    ids = chat.add_user(f"before {names[0]}after{names[1]}.")
    assert [token for token in ids if token < 0] == [-5, -6, -7, -8, -9]
    first = ids.index(-5)
    assert BYTES.decode(ids[:first]).endswith("before ")
    assert BYTES.decode(ids[first + 3 : ids.index(-8)]) == "after"
    assert ids[:2] == plain[:2]
    assert ids[-1] == plain[-1]


def test_another_picture_in_its_place_changes_the_tokens() -> None:
    chat = chatml()
    names = [picture_name(digest * 16) for digest in ("01ab", "01ac")]
    chat.pictures = dict(zip(names, [(-5, -6, -7), (-8, -9)], strict=True))
    first = chat.add_user(f"{names[0]}what is it?")
    chat.rewind(0)
    second = chat.add_user(f"{names[1]}what is it?")
    assert [token for token in second if token < 0] == [-8, -9]
    chat.rewind(0)
    assert chat.add_user(f"{names[0]}what is it?") == first


def test_names_of_unknown_pictures_stay_text() -> None:
    chat = chatml()
    ids = chat.add_user(f"a {picture_name('0123456789abcdef')} b")
    assert min(ids) >= 0


@pytest.mark.parametrize("after", ["", "\n", "what is it now"])
def test_a_picture_of_a_beginning_is_whole(after: str) -> None:
    chat = chatml()
    name = picture_name("0123456789abcdef")
    chat.pictures = {name: (-5, -6, -7, -8)}
    ids = chat.opening_ids(name + after)
    assert [token for token in ids if token < 0] == [-5, -6, -7, -8]
    prompt = chat.add_user(name + after)
    assert prompt[: len(ids)] == ids
