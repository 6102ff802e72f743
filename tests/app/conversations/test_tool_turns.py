"""Tool calls and their results in a conversation: on disk, in later prompts, and in a full
context."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from app.backend.engine_link import EngineLink
from app.backend.local.model import LocalModel
from app.backend.options import ChatOptions
from app.backend.tools import EngineTools
from app.conversations.conversation import USER, ChatMessage, Conversation, Ending, PromptMessage
from app.conversations.message_row import UnsoundError, message_of, row_of
from app.program.settings import built_in_settings
from app.session.request import Request
from engine.prompt.chat_prompt import ChatPrompt
from engine.prompt.chat_template import ChatTemplate
from engine.prompt.template_process import TemplateProcess
from engine.prompt.tools.calls import CallResult, ToolCall
from engine.tokenizer import Tokenizer
from tests.engine.prompt.test_chat_prompt import BYTES
from tests.engine.prompt.test_tool_templates import CALL, OBJECTS, TOOL, WRITTEN
from tests.engine.tiny_gguf import bpe_vocabulary
from tests.engine.tokenizer.test_tokenizer import as_read

RESULT = CallResult("get_weather", "18 degrees", CALL.call_id)


@pytest.fixture(scope="module")
def process() -> Iterator[TemplateProcess]:
    shared = TemplateProcess()
    yield shared
    shared.close()


def tool_conversation() -> Conversation:
    """Return a conversation: a question, a call after some words, its result, and the answer."""
    conversation = Conversation("Be brief.")
    conversation.add_user("How is Paris?")
    raw = f"I look.{WRITTEN}"
    reply = conversation.add_reply("I look.", Ending.COMPLETE, None)
    reply.ids = ids_of(raw)
    reply.raw = raw
    reply.calls = (CALL,)
    reply.calls_at = len("I look.")
    conversation.add_results((RESULT,))
    answer = conversation.add_reply("Mild.", Ending.COMPLETE, None)
    answer.ids = ids_of("Mild.")
    answer.raw = "Mild."
    return conversation


def ids_of(text: str) -> tuple[int, ...]:
    """Return tokens that no tokenizer would choose, to distinguish them from others."""
    return tuple(token for char in text for token in BYTES.encode_text(char, after_special=False))


def read_again(messages: list[ChatMessage], system: str | None = "Be brief.") -> Conversation:
    rows = map(row_of, messages)
    return Conversation(
        system, [message_of(role, text, fields_json) for role, _, _, text, fields_json in rows]
    )


def prompt_of(conversation: Conversation, process: TemplateProcess) -> tuple[ChatPrompt, list[int]]:
    local = local_model(process)
    prompt = local.prompt(
        Request(
            (*conversation.prompt_messages(with_unanswered=False), PromptMessage(USER, "And Rome?"))
        )
    )
    return local.chat, list(prompt.ids)


def local_model(process: TemplateProcess) -> LocalModel:
    """Return a model that knows the tool and has no engine."""
    chat = ChatPrompt(BYTES, ChatTemplate(OBJECTS, process=process))
    chat.tools = [TOOL]
    model: Any = SimpleNamespace(
        path="m.gguf",
        tokenizer=BYTES,
        chat_template=SimpleNamespace(call_format=None, names_date=True),
    )
    return LocalModel(model, cast(Any, SimpleNamespace(n_ctx=10_000)), chat, built_in_settings())


def test_a_resumed_conversation_has_the_same_prompt(process: TemplateProcess) -> None:
    conversation = tool_conversation()
    live = ChatPrompt(BYTES, ChatTemplate(OBJECTS, process=process))
    live.start(conversation.system)
    live.tools = [TOOL]
    live.add_user("How is Paris?")
    first = conversation.messages[1]
    live.add_reply(list(first.ids), first.raw, first.calls, "I look.")
    live.add_results([RESULT])
    live.prompt_ids()
    live.add_reply(list(conversation.messages[3].ids), "Mild.")
    expected = live.add_user("And Rome?")
    resumed = read_again(conversation.messages)
    assert resumed.messages == conversation.messages
    chat, ids = prompt_of(resumed, process)
    assert ids == expected
    index = ids.index(first.ids[0])
    assert ids[index : index + len(first.ids)] == list(first.ids)
    assert len(chat.turn_starts()) == 3


@pytest.mark.parametrize(
    "markers", [(), ("<tool_call>", "</tool_call>")], ids=["text", "control tokens"]
)
def test_tools_known_from_the_first_message_cost_no_tokens(
    process: TemplateProcess, markers: tuple[str, ...]
) -> None:
    vocabulary = bpe_vocabulary()
    vocabulary["tokenizer.ggml.tokens"] += markers
    types = vocabulary["tokenizer.ggml.token_type"]
    vocabulary["tokenizer.ggml.token_type"] = np.concatenate(
        [types, np.full(len(markers), 3, types.dtype)]
    )
    tokenizer = Tokenizer.from_metadata(as_read(vocabulary), "tiny.gguf")
    conversation = tool_conversation()
    if markers:
        conversation.messages[1].ids = (*ids_of("I look."), *tokenizer.encode(WRITTEN, bos=False))
    template = ChatTemplate(OBJECTS, process=process)
    model: Any = SimpleNamespace(path="m.gguf", tokenizer=tokenizer, chat_template=template)
    box: Any = SimpleNamespace(
        is_on=True, definitions=[], start=lambda *_: box.definitions.append(TOOL)
    )
    tools = EngineTools(
        EngineLink(lambda: 0.0), ChatOptions(cast(Any, None), cast(Any, None), tools=box)
    )
    prompts = []
    for knows_tools in (True, False):
        chat = ChatPrompt(tokenizer, template)
        chat.tools = [TOOL] if knows_tools else []
        local = LocalModel(
            model, cast(Any, SimpleNamespace(n_ctx=10_000)), chat, built_in_settings()
        )
        local.set_messages(conversation.prompt_messages())
        assert knows_tools or tools.offer(local, has_form=False)
        prompts.append(
            list(
                local.prompt(
                    Request((*conversation.prompt_messages(), PromptMessage(USER, "And Rome?")))
                ).ids
            )
        )
    assert prompts[0] == prompts[1]
    for reply in conversation.messages[1::2]:
        index = prompts[1].index(reply.ids[0])
        assert tuple(prompts[1][index : index + len(reply.ids)]) == reply.ids


def test_without_the_first_turn_its_result_is_a_message(process: TemplateProcess) -> None:
    conversation = tool_conversation()
    _, whole_ids = prompt_of(conversation, process)
    conversation.n_dropped = 2
    _, ids = prompt_of(conversation, process)
    assert len(ids) < len(whole_ids)
    assert "user\n18 degrees" in BYTES.decode(ids)
    assert "get_weather" in BYTES.decode(whole_ids)


def test_calls_without_results_are_read_as_text(process: TemplateProcess) -> None:
    conversation = tool_conversation()
    conversation.cut(2)
    conversation.add_user("Never mind.")
    conversation.add_reply("Fine.", Ending.COMPLETE, None)
    chat, ids = prompt_of(conversation, process)
    assert [message.calls for message in chat.messages if message.role == "assistant"] == [(), ()]
    assert WRITTEN in BYTES.decode(ids)


def test_a_reply_becomes_a_call_when_its_results_come(process: TemplateProcess) -> None:
    conversation = tool_conversation()
    _, whole_ids = prompt_of(conversation, process)
    local = local_model(process)
    messages = conversation.prompt_messages()
    reply = replace(messages[2], calls=())
    local.set_messages(messages[:2])
    local.add_reply(reply)
    assert local.chat.messages[-1].calls == ()
    ids = local.prompt(Request(messages[:4])).ids
    assert local.chat.messages[-2].calls == (CALL,)
    n_shared = len(ids) - len("<|im_start|>assistant\n")
    assert list(ids[:n_shared]) == whole_ids[:n_shared]
    local.set_messages((*messages[:2], reply))
    assert local.chat.messages[-1].calls == ()


def test_remaining_turns_keep_their_calls(process: TemplateProcess) -> None:
    conversation = tool_conversation()
    conversation.messages[:0] = [*earlier("Hello", "Hi.")]
    _, whole_ids = prompt_of(conversation, process)
    conversation.n_dropped = 2
    _, ids = prompt_of(conversation, process)
    assert len(ids) < len(whole_ids)
    assert WRITTEN in BYTES.decode(ids)


def earlier(question: str, answer: str) -> list[ChatMessage]:
    conversation = Conversation()
    conversation.add_user(question)
    conversation.add_reply(answer, Ending.COMPLETE, None)
    return conversation.messages


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (1, {"calls": 5}),
        (1, {"calls": [5]}),
        (1, {"calls": [{"name": "a b", "arguments": "{}"}]}),
        (1, {"calls": [{"name": "f", "arguments": "["}]}),
        (1, {"calls": [{"name": "f", "arguments": "{}"}] * 65}),
        (1, {"calls_at": -1}),
        (2, {"results": {}}),
        (2, {"results": [{"name": "\x1b", "text": "x"}]}),
        (2, {"results": [{"name": "f", "text": 5}]}),
    ],
)
def test_a_row_with_unsound_calls_is_refused(message: int, fields: dict[str, Any]) -> None:
    role, _, _, text, fields_json = row_of(tool_conversation().messages[message])
    with pytest.raises(UnsoundError):
        message_of(role, text, json.dumps({**json.loads(fields_json), **fields}))


def test_results_need_their_calls() -> None:
    conversation = tool_conversation()
    with pytest.raises(ValueError, match="need the calls"):
        conversation.add_results((RESULT,))
    conversation.cut(2)
    with pytest.raises(ValueError, match="need the calls"):
        conversation.add_results((CallResult("get_weather", "x", "other"),))
    conversation.messages[-1].calls = (ToolCall("get_weather", "{}", CALL.call_id),)
    assert conversation.add_results((RESULT,)).text == "get_weather: 18 degrees"
