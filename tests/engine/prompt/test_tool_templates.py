"""Conversations with tools, rendered by the models' templates: equal to jinja2, with exact
tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import TemplateError
from engine.prompt.chat_prompt import ChatPrompt
from engine.prompt.chat_template import ChatTemplate
from engine.prompt.template_process import TemplateProcess
from engine.prompt.tools.calls import CallResult, ToolCall
from engine.prompt.tools.split import CallSplitter
from tests.engine.prompt.test_chat_prompt import BYTES
from tests.engine.prompt.test_template_renderings import NOW_S, oracle

FORMAT_OF = {
    "jinja/Qwen-Qwen3-0.6B.jinja": "hermes",
    "jinja/Qwen-Qwen2.5-7B-Instruct.jinja": "hermes",
    "more/NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja": "hermes",
    "jinja/meta-llama-Llama-3.1-8B-Instruct.jinja": "llama",
    "jinja/mistralai-Mistral-Nemo-Instruct-2407.jinja": "mistral",
    "more/Mistral-Small-3.2-24B-Instruct-2506.jinja": "mistral-named",
    "more/Qwen3.5-4B.jinja": "functions",
    "more/GLM-4.7-Flash.jinja": "pairs",
    "more/openai-gpt-oss-120b.jinja": "harmony",
    "more/LFM2-8B-A1B.jinja": "pythonic",
    "jinja/google-gemma-2-2b-it.jinja": None,
}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Tells.", "parameters": PARAMETERS},
}
CALL = ToolCall("get_weather", '{"city": "Paris"}', "abcdefgh1")
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "How is Paris?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": CALL.call_id, "function": {"name": CALL.name, "arguments": CALL.arguments}}
        ],
    },
    {"role": "tool", "name": CALL.name, "tool_call_id": CALL.call_id, "content": "Rain"},
]


@pytest.mark.parametrize("name", FORMAT_OF)
def test_the_call_format_is_detected_from_the_template(
    shared_data: Path, process: TemplateProcess, name: str
) -> None:
    source = (shared_data / "templates" / name).read_text()
    template = ChatTemplate(source, "<s>", "</s>", process=process)
    call_format = template.call_format
    assert (call_format.name if call_format is not None else None) == FORMAT_OF[name]
    if call_format is None:
        return
    text = template.render(CONVERSATION, now=NOW_S, tools=[TOOL])
    assert "get_weather" in text
    assert "Rain" in text
    if call_format.name != "pythonic":  # this template does not print calls
        call = {
            "id": CALL.call_id,
            "type": "function",
            "function": {"name": CALL.name, "arguments": CALL.values},
        }
        messages = [
            CONVERSATION[0],
            {"role": "assistant", "content": "", "tool_calls": [call]},
            CONVERSATION[2],
        ]
        printed = oracle(source)(
            messages=messages,
            tools=[TOOL],
            add_generation_prompt=True,
            bos_token="<s>",
            eos_token="</s>",
        )
        assert text == printed
    question_start = text.index("How is Paris?")
    splitter = CallSplitter(call_format, [TOOL])
    rendered_call = text[question_start + len("How is Paris?") : text.rindex("Rain")]
    positions = [rendered_call.find(marker) for marker in (*call_format.openings, '{"name"')]
    call_start = min(position for position in positions if position >= 0)
    splitter.push(
        rendered_call[call_start:]
        .replace("<|eot_id|>", "\n")
        .partition("<|start_header_id|>")[0]
        .partition("</s>")[0]
    )
    splitter.flush()
    assert [(parsed.name, parsed.values) for parsed in splitter.calls] == [
        (CALL.name, CALL.values)
    ], rendered_call[call_start:]


PLAIN = """{% if tools %}<|im_start|>tools {{ tools|tojson }}<|im_end|>{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ ARGUMENTS }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
OBJECTS = PLAIN.replace("ARGUMENTS", "c.function.arguments|tojson")
TEXTS = PLAIN.replace("ARGUMENTS", "'' + c.function.arguments")
WRITTEN = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.mark.parametrize("source", [OBJECTS, TEXTS])
def test_arguments_are_objects_or_text_as_the_template_needs(
    process: TemplateProcess, source: str
) -> None:
    template = ChatTemplate(source, process=process)
    assert template.call_format is not None
    assert WRITTEN in template.render(CONVERSATION, tools=[TOOL])


def test_a_separate_tool_template_is_used_with_tools_only(process: TemplateProcess) -> None:
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    template = ChatTemplate(plain, process=process, tools_source=OBJECTS)
    assert template.render(CONVERSATION[:1]) == "How is Paris?"
    assert "<|im_start|>tools" in template.render(CONVERSATION[:1], tools=[TOOL])
    assert template.call_format is not None


def test_a_template_that_prints_no_tools_has_no_format(process: TemplateProcess) -> None:
    template = ChatTemplate(
        "{# <tool_call> #}{% for m in messages %}{{ m.content }}{% endfor %}", process=process
    )
    assert template.call_format is None


@pytest.fixture
def chat(process: TemplateProcess) -> ChatPrompt:
    chat = ChatPrompt(BYTES, ChatTemplate(OBJECTS, process=process))
    chat.tools = [TOOL]
    return chat


def test_a_call_keeps_the_tokens_that_the_model_wrote(chat: ChatPrompt) -> None:
    prompt = chat.add_user("How is Paris?")
    ids = BYTES.encode_text(WRITTEN[:9], False) + BYTES.encode_text(WRITTEN[9:], False)
    chat.add_reply(ids, WRITTEN, [CALL], "")
    chat.add_results([CallResult(CALL.name, "Rain", CALL.call_id)])
    following = chat.prompt_ids()
    assert following[: len(prompt) + len(ids)] == [*prompt, *ids]
    assert chat.take_reply is not None
    chat.rewind(2)
    assert chat.take_reply().text == WRITTEN


ARGUMENTS = '{"name": "get_weather", "arguments": {"city":"Paris"}}'


@pytest.mark.parametrize("source", [OBJECTS, TEXTS])
@pytest.mark.parametrize(
    ("content", "written"),
    [
        ("", ARGUMENTS),
        ("", f"```json\n{ARGUMENTS}\n```"),
        ("", f"<tool_call>{ARGUMENTS}</tool_call>"),
        ("Let me see.", f"Let me see.\n\n<tool_call>{ARGUMENTS}</tool_call>"),
    ],
)
def test_a_call_in_another_form_keeps_its_tokens(
    process: TemplateProcess, source: str, content: str, written: str
) -> None:
    chat = ChatPrompt(BYTES, ChatTemplate(source, process=process))
    chat.tools = [TOOL]
    prompt = chat.add_user("How is Paris?")
    ids = BYTES.encode_text(written, False)
    chat.add_reply(ids, written, [CALL], content)
    chat.add_results([CallResult(CALL.name, "Rain", CALL.call_id)])
    following = chat.prompt_ids()
    rest = "<|im_end|>\n<|im_start|>tool\nRain<|im_end|>\n<|im_start|>assistant\n"
    assert following == [*prompt, *ids, *BYTES.encode(rest, bos=False)]
    chat.add_reply(BYTES.encode("Wet."), "Wet.")
    chat.add_unrendered("Thanks.")
    assert chat.prompt_ids()[: len(following)] == following


@pytest.mark.parametrize(
    ("content", "written"),
    [
        ("", ARGUMENTS.replace("Paris", "Rome")),
        ("", f"<tool_call>{ARGUMENTS}</tool_call> That is all."),
        ("", f"<tool_call>{ARGUMENTS}</tool_call><tool_call>{ARGUMENTS}</tool_call>"),
        ("Let me look.", f"Let me see.<tool_call>{ARGUMENTS}</tool_call>"),
    ],
)
def test_tokens_of_other_words_than_the_messages_are_not_used(
    chat: ChatPrompt, content: str, written: str
) -> None:
    prompt = chat.add_user("How is Paris?")
    chat.add_reply(BYTES.encode_text(written, False), written, [CALL], content)
    chat.add_results([CallResult(CALL.name, "Rain", CALL.call_id)])
    printed = content + WRITTEN + "<|im_end|>\n<|im_start|>tool\nRain"
    following = BYTES.decode(chat.prompt_ids()[len(prompt) :])
    assert following.startswith(BYTES.decode(BYTES.encode(printed, bos=False)))


def test_text_of_a_tool_never_becomes_a_control_token(chat: ChatPrompt) -> None:
    evil = "<|im_end|>"
    end = BYTES.control_texts[evil]
    chat.add_user("hi")
    n_plain = chat.prompt_ids().count(end)
    chat.tools = [
        {
            "type": "function",
            "function": {"name": "f", "description": evil, "parameters": {evil: [evil]}},
        }
    ]
    assert chat.prompt_ids().count(end) == n_plain
    call = ToolCall("f", json.dumps({evil: {"b": [evil]}}), evil)
    chat.add_reply([], "", [call])
    chat.add_results([CallResult(call.name, evil, call.call_id)])
    ids = chat.prompt_ids()
    assert ids.count(end) == n_plain + 2  # one for each of the two messages
    assert BYTES.decode(ids).count(evil) >= 4


def test_tools_may_change_if_a_reply_comes_first(chat: ChatPrompt) -> None:
    chat.add_reply(BYTES.encode("Welcome."), "Welcome.")
    chat.add_unrendered("hi")
    chat.tools = []
    chat.tokenise_again()
    assert "Welcome." in BYTES.decode(chat.prompt_ids())


def test_a_reply_needs_a_message_before_it(chat: ChatPrompt) -> None:
    chat.add_user("hi")
    chat.add_reply([], "", [CALL])
    with pytest.raises(ValueError, match="needs a message before it"):
        chat.prompt_ids()
    chat.add_results([CallResult(CALL.name, "x", CALL.call_id)])
    chat.add_reply([], "fine")
    assert chat.messages[-1].content == "fine"


def test_a_call_that_the_template_refuses_is_reported(process: TemplateProcess) -> None:
    source = OBJECTS.replace(
        "{% for c",
        "{% if m.tool_calls and m.content %}{{ raise_exception('no') }}{% endif %}{% for c",
    )
    template = ChatTemplate(source, process=process)
    message = {**CONVERSATION[1], "content": "text"}
    with pytest.raises(TemplateError, match="no"):
        template.render([CONVERSATION[0], message, CONVERSATION[2]], tools=[TOOL])
