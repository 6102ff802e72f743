"""A reply that comes back without its tokens is found among saved ones by its text and calls."""

from collections.abc import Sequence
from typing import cast

import pytest

from app.backend.local.model import LocalModel
from app.conversations.conversation import ASSISTANT, USER, PromptMessage
from app.program.settings import built_in_settings
from app.session.request import Request
from engine import Model
from engine.prompt.tools.calls import ToolCall
from tests.app.fake_engine import FakeModel, Script

TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "required": ["at"]}},
}
ARGUMENTS = '{"name": "look", "arguments": {"at": "sky"}}'
CALL = ToolCall("look", '{"at": "sky"}', "id3456789")
BEFORE = PromptMessage(USER, "How is it?")
AFTER = PromptMessage(USER, "Go on.")


def local_model(opening: str = "") -> LocalModel:
    model: FakeModel = Script(opening=opening).open_model()
    opened = cast(Model, model)
    local = LocalModel(opened, opened.session(100), opened.chat(), built_in_settings())
    local.use_tools([TOOL])
    return local


@pytest.mark.parametrize(
    ("reply", "opening", "written"),
    [
        (PromptMessage(ASSISTANT, "It rains."), "", "It rains."),
        (PromptMessage(ASSISTANT, "It rains."), "", "\n\nIt rains. "),
        (PromptMessage(ASSISTANT, "It rains."), "", "<think> Hm. </think> It rains."),
        (PromptMessage(ASSISTANT, "It rains."), "<think>", "Hm. </think> It rains."),
        (PromptMessage(ASSISTANT, "", (CALL,)), "", ARGUMENTS),
        (PromptMessage(ASSISTANT, "", (CALL,)), "", f"```json {ARGUMENTS} ```"),
        (PromptMessage(ASSISTANT, "Wait.", (CALL,)), "", f"Wait. <tool_call>{ARGUMENTS}"),
    ],
)
def test_a_reply_is_found_by_its_text_and_calls(
    reply: PromptMessage, opening: str, written: str
) -> None:
    local = local_model(opening)
    tokenizer = local.model.tokenizer
    written_ids = tokenizer.encode(written, bos=False)
    prompts: list[Sequence[int]] = []

    def saved_after(ids: Sequence[int]) -> list[list[int]]:
        prompts.append(ids)
        return [tokenizer.encode("It snows.", bos=False), written_ids]

    local.saved_after = saved_after
    prompt_ids = local.prompt(Request((BEFORE,))).ids
    ids = local.prompt(Request((BEFORE, reply, AFTER))).ids
    assert prompts == [prompt_ids]
    assert ids[len(prompt_ids) : len(prompt_ids) + len(written_ids)] == written_ids


@pytest.mark.parametrize("thought", ["", "<think> Hm. </think> "])
def test_words_that_were_not_saved_are_added(thought: str) -> None:
    local = local_model()
    tokenizer = local.model.tokenizer
    texts = ["It", "It rains", "It", "It snows"]
    saved_ids = [tokenizer.encode(thought + text, bos=False) for text in texts]
    local.saved_after = lambda ids: saved_ids
    n_prompt = len(local.prompt(Request((BEFORE,))).ids)
    reply = PromptMessage(ASSISTANT, "It rains here.")
    ids = local.prompt(Request((BEFORE, reply, AFTER))).ids
    written_ids = tokenizer.encode(f"{thought}It rains here.", bos=False)
    assert ids[n_prompt : n_prompt + len(written_ids)] == written_ids


@pytest.mark.parametrize(
    "reply",
    [
        PromptMessage(ASSISTANT, "It pours."),
        PromptMessage(ASSISTANT, "It rains.", (CALL,)),
        PromptMessage(ASSISTANT, "", (ToolCall("look", '{"at": "sea"}'),)),
        PromptMessage(ASSISTANT, ""),
    ],
)
def test_a_changed_reply_is_read_and_no_later_ones_are_looked_up(reply: PromptMessage) -> None:
    local = local_model()
    tokenizer = local.model.tokenizer
    n_lookups = 0

    def saved_after(ids: Sequence[int]) -> list[list[int]]:
        nonlocal n_lookups
        n_lookups += 1
        return [tokenizer.encode(text, bos=False) for text in ("It rains.", ARGUMENTS)]

    local.saved_after = saved_after
    messages = (BEFORE, reply, AFTER, PromptMessage(ASSISTANT, "It rains."), AFTER)
    ids = local.prompt(Request(messages)).ids
    assert n_lookups == 1
    assert ids == local_model_ids(local, messages)


def local_model_ids(local: LocalModel, messages: Sequence[PromptMessage]) -> Sequence[int]:
    """Return the ids of the same conversation without saved states."""
    other = LocalModel(local.model, local.session, local.model.chat(), local.settings)
    other.use_tools([TOOL])
    return other.prompt(Request(tuple(messages))).ids


def test_a_conversation_may_begin_with_a_reply() -> None:
    local = local_model()
    local.saved_after = lambda ids: [[7]]
    local.prompt(Request((PromptMessage(ASSISTANT, "Welcome."), BEFORE)))
    assert [message.content for message in local.chat.messages] == ["Welcome.", BEFORE.text]
