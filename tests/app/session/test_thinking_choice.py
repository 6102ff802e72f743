"""Thinking choice: it is set in the chat, saved for a model, and its token limit ends thinking."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.backend.local import engine_access
from app.backend.local.model import LocalModel
from app.backend.reply import Reply, ThoughtLimit
from app.conversations.conversation import ASSISTANT, USER, Ending, PromptMessage
from app.conversations.store import model_key
from app.program import state
from app.program.refusals import Refusal
from app.program.settings import built_in_settings, override
from app.reply.thinking import Thinking, answer_start, is_opening_of
from app.session.commands import choose_thinking
from app.session.events import GenerationFinished, ThinkingFinished, ThoughtGenerated
from app.session.reply_options import describe_thinking
from app.session.request import Continuation, Request
from engine import Model, Sampling
from engine.prompt.chat_prompt import ChatPrompt
from engine.prompt.chat_template import ChatTemplate
from engine.prompt.thinking import THOUGHT_MARKERS, ThinkingMode, opened_by
from tests.app.backend.engine_driver import Engine, texts
from tests.app.fake_engine import Script
from tests.engine import tiny_gguf

THINK = THOUGHT_MARKERS[0]
CHATTY = [["<think>", "a", "b", "c", "d", "e"], ["Yes", "."]]


@pytest.fixture
def script() -> Script:
    return Script(replies=list(CHATTY))


def choose(engine: Engine, mode: str) -> str:
    return choose_thinking(engine.chat_session, mode)


def test_a_choice_is_used_from_the_next_message_and_saved(engine: Engine) -> None:
    assert engine.chat_session.request_options.thinking == ""
    assert engine.load().thinking == "auto"
    assert (
        choose(engine, "off") == "thinking off from the next message on; remembered for this model"
    )
    assert engine.chat_session.request_options.thinking == "off"
    engine.ask("hi")
    assert engine.script.opened[-1].chats[-1].thinking == ThinkingMode(False)
    assert engine.load().thinking == "off"
    assert engine.script.opened[-1].chats[-1].thinking == ThinkingMode(False)


def test_a_choice_without_a_model_changes_nothing(engine: Engine) -> None:
    with pytest.raises(Refusal, match="no model is loaded"):
        choose(engine, "off")
    assert engine.load().thinking == "auto"


def test_thinking_at_its_token_limit_ends_before_the_answer(engine: Engine) -> None:
    engine.load()
    choose(engine, "3")
    messages = engine.hear("hi")
    assert (texts(messages, ThoughtGenerated), texts(messages)) == ("ab\n", "Yes.")
    finished = next(m for m in messages if isinstance(m, ThinkingFinished))
    assert (finished.tokens, finished.is_closed) == (3, True)
    reply = messages[-1]
    assert isinstance(reply, GenerationFinished)
    assert (reply.ending, reply.raw) == (Ending.COMPLETE, "<think>ab\n</think>\n\nYes.")
    assert reply.figures.tokens == 5
    tokenizer = engine.script.opened[-1].tokenizer
    assert tokenizer.decode(reply.ids) == reply.raw
    assert engine.session.tokens[-len(reply.ids) :] == list(reply.ids)


def test_thinking_within_its_budget_is_not_changed(engine: Engine) -> None:
    engine.script.replies = [["<think>", "a", "</think>", "Yes", "."]]
    engine.load()
    choose(engine, "3")
    assert engine.ask("hi").raw == "<think>a</think>Yes."


def test_a_continued_reply_counts_its_earlier_thinking(engine: Engine) -> None:
    engine.load()
    assert engine.stop_after(3, lambda: engine.chat_session.submit("hi")).raw == "<think>ab"
    choose(engine, "2")
    engine.chat_session.continue_reply()
    assert engine.wait_for(GenerationFinished).raw == "<think>abc\n</think>\n\nYes."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tiny_gguf.write(
        tmp_path_factory.mktemp("model") / "tiny.gguf", "llama", "F32", context_length=2048
    )
    opened = Model.open(path, threads=1)
    yield opened
    opened.close()


def limited_reply(model: Model, budget: int, n_ctx: int = 256, max_tokens: int = 24) -> Reply:
    limit = ThoughtLimit(model.tokenizer, budget, THINK)
    session = model.session(n_ctx=n_ctx)
    prompt = [1, 2, 3, 4, 5]
    reply = Reply(session, prompt, Sampling.greedy(), max_tokens=max_tokens, limit=limit)
    reply.heard = "".join(reply)  # type: ignore[attr-defined]
    assert session.tokens == [*prompt, *reply.ids][: session.length]
    assert session.length >= len(prompt) + len(reply.ids) - 1
    return reply


@pytest.mark.slow
def test_the_engine_continues_after_the_end_of_thinking(model: Model) -> None:
    free = limited_reply(model, 1000)
    reply = limited_reply(model, 4)
    end = model.tokenizer.encode(THINK.end, bos=False)
    end_index = next(n for n in range(4, 8) if reply.ids[n : n + len(end)] == end)
    assert reply.ids[:end_index] == free.ids[:end_index]
    assert reply.meter.tokens == 24
    assert len(reply.ids) == 24 + len(end)
    assert reply.heard == reply.text  # type: ignore[attr-defined]
    assert reply.text.count(THINK.end) == 1
    assert THINK.end not in free.text


@pytest.mark.slow
def test_reply_limits_apply_at_the_end_of_thinking(model: Model) -> None:
    end = model.tokenizer.encode(THINK.end, bos=False)
    full = limited_reply(model, 4, n_ctx=5 + 4 + len(end) - 1)
    assert (full.meter.finish_reason, full.meter.tokens, len(full.ids)) == ("context", 4, 4)
    short = limited_reply(model, 4, max_tokens=4)
    assert (short.meter.finish_reason, short.meter.tokens) == ("length", 4)


@pytest.mark.smoke
@pytest.mark.slow
def test_a_reply_continues_after_its_original_opening(model: Model) -> None:
    """A continued reply keeps its opening in every current thinking mode.

    Its tokens are then in the cache, and its thinking stays thinking.
    """
    source = (
        "{% for m in messages %}[{{ m.content.split('</think>')[-1] }}]{% endfor %}"
        "{{ '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' if enable_thinking "
        "is defined else '>' }}"
    )
    chat = ChatPrompt(model.tokenizer, ChatTemplate(source, file_name="tiny.gguf"))
    local = LocalModel(model, model.session(n_ctx=512), chat, built_in_settings())
    openings = {"on": "<think>\n", "off": "<think>\n\n</think>\n\n", "auto": ">"}
    cases = [
        ("on", "hm", Thinking("hm")),
        ("on", "hm</think>yes", Thinking("hm", is_closed=True)),
        ("off", "yes", None),
        ("auto", "<think>hm</think>yes", Thinking("hm", is_closed=True)),
    ]
    for first_mode, text, thinking in cases:
        for current_mode in openings:
            local.clear_messages()
            chat.thinking = ThinkingMode.parse(first_mode)
            messages = (PromptMessage(USER, "why"),)
            prompt = local.prompt(Request(messages)).ids
            ids = model.tokenizer.encode(text, bos=False)
            reply = PromptMessage(ASSISTANT, text, ids=tuple(ids), raw=text)
            chat.thinking = ThinkingMode.parse(current_mode)
            continued = local.prompt(Request(messages, Continuation(reply, thinking)))
            # The opening of a plain answer contains no thinking.
            if first_mode == "off" != current_mode:
                assert opened_by(chat.opening) is None
            else:
                assert list(continued.ids) == list(prompt), (first_mode, current_mode)
            assert continued.prefix is not None
            assert list(continued.prefix.ids) == ids
            assert str(chat.thinking) == current_mode
            edited = local.prompt(Request(messages, Continuation(reply, thinking, "no")))
            assert list(edited.ids) == list(continued.ids)
            assert edited.prefix is not None
            thinking_text = text[: answer_start(text, opened_by(chat.opening))]
            # the vocabulary's words begin with a space
            assert edited.prefix.text.replace(" ", "") == f"{thinking_text}no"


def test_which_opening_fits_a_reply() -> None:
    assert is_opening_of("", "<think>\n", has_thought=False)
    assert is_opening_of("yes", "assistant\n", has_thought=False)
    assert not is_opening_of("yes", "<think>\n", has_thought=False)
    assert is_opening_of("\n</think>yes", "<think>\n", has_thought=False)
    assert not is_opening_of("<think>hm", "<think>\n\n</think>\n\n", has_thought=True)
    assert not is_opening_of("<think>hm", "<think>\n", has_thought=True)
    assert not is_opening_of("hm", "assistant\n", has_thought=True)


def test_settings_override_saved_choices(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    settings = built_in_settings()
    assert engine_access.recall_thinking(settings, path) == "auto"
    assert state.remember_thinking(model_key(path), "low") is None
    assert engine_access.recall_thinking(settings, path) == "low"
    assert engine_access.recall_thinking(settings, tmp_path / "other.gguf") == "auto"
    assert (
        engine_access.recall_thinking(override(settings, "thinking", "off", "--think"), path)
        == "off"
    )
    assert state.remember_thinking(model_key(path), "auto") is None
    assert engine_access.recall_thinking(settings, path) == "auto"


def test_a_mode_in_words(engine: Engine) -> None:
    assert describe_thinking("auto") == "thinking is left to the model"
    assert describe_thinking("500") == "thinking at most 500 tokens"
    engine.load()
    assert choose(engine, "HIGH").startswith("thinking high from the next message on")
    with pytest.raises(Refusal, match="'loud' is not a way to think") as refused:
        choose(engine, "loud")
    assert str(refused.value).isprintable()
