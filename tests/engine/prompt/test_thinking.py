"""The thinking mode sets the switch of a template, or adds an empty thought if it has none."""

from pathlib import Path

import pytest

from engine.prompt.chat_prompt import ChatPrompt
from engine.prompt.chat_template import ChatTemplate
from engine.prompt.template_process import TemplateProcess
from engine.prompt.thinking import (
    HARMONY,
    SOLAR,
    THOUGHT_MARKERS,
    ThinkingMode,
    closed_by,
    opened_by,
    split_channels,
)
from tests.engine.prompt.test_chat_prompt import spelled
from tests.engine.tokenizer.test_tokenizer import CONTROL, with_special

USER = [{"role": "user", "content": "Hello"}]
PLAIN = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
STRIPS = "{% for m in messages %}[{{ m.content.split('</think>')[-1] }}]{% endfor %}>"
OPENS = PLAIN + "{{ '<think>\n' }}"
SHOWS = PLAIN + (
    "{% if thinking is defined %}"
    "{{ [enable_thinking, thinking, thinking_budget, reasoning_effort] | tojson }}"
    "{% endif %}"
)


def prompt(source: str, mode: str, process: TemplateProcess) -> str:
    template = ChatTemplate(source, "<s>", "</s>", "model.gguf", process)
    text = template.render(USER, thinking=ThinkingMode.parse(mode))
    assert template.notice is None
    return text


@pytest.mark.parametrize("text", ["auto", "on", "off", "low", "medium", "high", "500", "1048576"])
def test_a_mode_is_printed_as_it_is_parsed(text: str) -> None:
    assert str(ThinkingMode.parse(f" {text.upper()} ")) == text


def test_zero_tokens_means_no_thinking() -> None:
    assert ThinkingMode.parse("0") == ThinkingMode.parse("off")


@pytest.mark.parametrize("text", ["", "yes", "-1", "1.5", "1048577", "9" * 5000, "٣", "low high"])
def test_other_modes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^"):
        ThinkingMode.parse(text)


def test_switches_of_templates_are_set_together(process: TemplateProcess) -> None:
    assert prompt(SHOWS, "auto", process) == "[Hello]"
    assert prompt(SHOWS, "off", process) == '[Hello][false, false, 0, "low"]'
    assert (
        prompt(SHOWS.replace(", thinking_budget", ""), "high", process)
        == '[Hello][true, true, "high"]'
    )
    assert (
        prompt(SHOWS.replace(", reasoning_effort", ""), "500", process)
        == "[Hello][true, true, 500]"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (PLAIN, "[Hello]"),
        (STRIPS, "[Hello]><think>\n\n</think>\n\n"),
        (OPENS, "[Hello]<think>\n\n</think>\n\n"),
        (OPENS + "{{ '\n</think>' if not enable_thinking }}", "[Hello]<think>\n\n</think>"),
        (STRIPS + "{{ '<think>' if enable_thinking }}", "[Hello]>"),
        (PLAIN + "{{ '[/THINK]' if false }}", "[Hello][THINK][/THINK]"),
    ],
)
def test_without_a_switch_the_reply_starts_with_an_empty_thought(
    source: str, expected: str, process: TemplateProcess
) -> None:
    assert prompt(source, "off", process) == expected


def test_a_level_that_a_template_refuses_is_not_requested(process: TemplateProcess) -> None:
    picky = PLAIN + (
        "{% if reasoning_effort is defined and reasoning_effort not in ['a', 'high'] %}{{ "
        "raise_exception('no') }}"
        "{% endif %}{{ reasoning_effort }}"
    )
    assert prompt(picky, "medium", process) == "[Hello]high"
    assert prompt(picky, "low", process) == "[Hello]"


def test_a_history_without_generation_prompt_gets_no_opening(process: TemplateProcess) -> None:
    template = ChatTemplate(STRIPS, file_name="model.gguf", process=process)
    assert (
        template.render(USER, add_generation_prompt=False, thinking=ThinkingMode(False))
        == "[Hello]>"
    )


@pytest.mark.parametrize("marker", THOUGHT_MARKERS, ids=lambda marker: marker.opening)
def test_markers_open_and_close(marker) -> None:
    assert opened_by(f"assistant\n{marker.opening}\n") is marker
    assert opened_by(f"assistant\n{marker.empty}") is None
    if not marker.next_part:
        assert closed_by(f"assistant\n{marker.empty}") is marker
    assert marker.empty.startswith(marker.opening)
    assert marker.empty.endswith(marker.end)


def test_channels_are_split() -> None:
    reply = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    )
    assert split_channels(reply) == ("hm", "Yes.")
    assert split_channels("<|channel|>analysis<|message|>hm") == ("hm", "")
    assert split_channels("<|channel|>final<|message|>Yes.") == ("", "Yes.")
    assert split_channels("it writes <|channel|>final<|message|> first") is None
    assert split_channels("<think>hm</think>Yes.") is None


EMPTY = "<think>\n\n</think>\n\n"
KNOWN = {
    "Qwen-Qwen3-0.6B": {"off": EMPTY, "on": "assistant\n"},
    "HuggingFaceTB-SmolLM3-3B": {"off": "<think>\n\n</think>\n", "on": "assistant\n"},
    "Qwen3.5-4B": {"off": EMPTY, "on": "<think>\n"},
    "openbmb-MiniCPM5-1B": {"off": EMPTY, "on": "<think>\n", "auto": "assistant\n"},
    "GLM-4.7-Flash": {"off": "</think>", "on": "<think>"},
    "google-gemma-4-31B-it": {"off": "<|channel>thought\n<channel|>", "on": "<|turn>model\n"},
    "ibm-granite-granite-3.3-2B-Instruct": {"off": "<|end_of_role|>", "on": "<|end_of_role|>"},
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": {"off": EMPTY, "on": "<think>\n"},
    "LFM2.5-Instruct": {"off": EMPTY, "on": "assistant\n"},
    "mistralai-Ministral-3-14B-Reasoning-2512": {"off": "[THINK][/THINK]", "on": "[/INST]"},
    "Qwen-QwQ-32B": {"off": "<think>\n</think>", "on": "<think>\n"},
    "tencent-Hy3": {"on": "<think:opensource>", "off": "<think:opensource></think:opensource>"},
    "google-gemma-2-2b-it": {"off": "<start_of_turn>model\n", "on": "<start_of_turn>model\n"},
    "openai-gpt-oss-120b": {"off": "<|start|>assistant", "on": "<|start|>assistant"},
}
EFFORTS = {
    "openai-gpt-oss-120b": {
        "off": "low",
        "low": "low",
        "on": "medium",
        "medium": "medium",
        "high": "high",
    },
    "muse-glimmer": {"off": "low", "low": "low", "on": "high", "medium": "medium", "high": "high"},
}


def test_templates_of_models_in_use_are_switched(
    shared_data: Path, process: TemplateProcess
) -> None:
    sources = {
        path.stem: path.read_text(encoding="utf-8")
        for path in (shared_data / "templates").glob("*/*.jinja")
    }
    for name, modes in KNOWN.items():
        for mode, expected in modes.items():
            assert prompt(sources[name], mode, process).endswith(expected), (name, mode)
    for name, efforts in EFFORTS.items():
        for mode, effort in efforts.items():
            text = prompt(sources[name], mode, process)
            assert f"Reasoning: {effort}\n" in text or f"Reasoning strength: {effort}." in text, (
                name,
                mode,
            )


@pytest.mark.slow
def test_replies_in_channels_are_rendered_again(
    shared_data: Path, process: TemplateProcess
) -> None:
    source = (shared_data / "templates" / "more" / "openai-gpt-oss-120b.jinja").read_text(
        encoding="utf-8"
    )
    reply = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    )
    template = ChatTemplate(source, "<s>", "</s>", "model.gguf", process)
    text = template.render([*USER, {"role": "assistant", "content": reply}, *USER])
    assert "<|start|>assistant<|channel|>final<|message|>Yes.<|end|>" in text
    assert "hm" not in text.partition("Hello")[2]


REPLIES = {
    "Qwen-Qwen3-0.6B": "<think>\nhm\n</think>\n\nYes.",
    "Qwen3.5-4B": "hm\n</think>\n\nYes.",
    "HuggingFaceTB-SmolLM3-3B": "<think>\nhm\n</think>\nYes.",
    "google-gemma-4-31B-it": "<|channel>thought\nhm\n<channel|>Yes.",
    "ibm-granite-granite-3.3-2B-Instruct": "<think>hm</think><response>Yes.</response>",
    "mistralai-Ministral-3-14B-Reasoning-2512": "[THINK]hm[/THINK]Yes.",
    "LFM2.5-Instruct": "<think>hm</think>Yes.",
    "openai-gpt-oss-120b": HARMONY.empty.replace("<|end|>", "hm<|end|>") + "Yes.",
    "upstage-Solar-Open-100B": SOLAR.empty.replace("<|end|>", "hm<|end|>") + "Yes.",
}


@pytest.mark.smoke
@pytest.mark.slow
def test_a_growing_conversation_equals_its_templates_rendering(
    shared_data: Path, process: TemplateProcess
) -> None:
    """This holds even if the template drops earlier thoughts or the mode changes in between."""
    sources = {
        path.stem: path.read_text(encoding="utf-8")
        for path in (shared_data / "templates").glob("*/*.jinja")
    }
    spelt = [
        "<think>",
        "</think>",
        "[THINK]",
        "[/THINK]",
        "<|channel>",
        "<channel|>",
        *HARMONY.tokens,
        *SOLAR.tokens,
    ]
    tokenizer = with_special(*((text, CONTROL) for text in dict.fromkeys(spelt)))
    for name, reply in REPLIES.items():
        template = ChatTemplate(sources[name], "<s>", "</s>", name, process)
        chat = ChatPrompt(tokenizer, template)
        for mode in ("auto", "on", "off", "high", "500"):
            chat.start("Be brief.")
            for chosen in (mode, mode, "auto", mode):
                chat.thinking = ThinkingMode.parse(chosen)
                ids = chat.add_user("why")
                messages = [{"role": m.role, "content": m.content} for m in chat.messages]
                expected = template.render(messages, now=chat._now, thinking=chat.thinking)
                assert spelled(tokenizer, ids) == expected, (name, mode, chosen)
                chat.add_reply(tokenizer.encode(reply, bos=False), reply)
