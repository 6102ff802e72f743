import re

import pytest

from app.backend.local.context_room import turns_to_drop
from app.backend.local.model import LocalModel
from app.conversations.conversation import ASSISTANT, SYSTEM, USER, PromptMessage
from app.conversations.store import Store
from app.program.settings import built_in_settings
from app.session.request import Request
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Gate, Script

pytestmark = pytest.mark.slow


def tokens(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)


@pytest.mark.parametrize(
    ("starts", "n_tokens", "n_ctx", "n_turns"),
    [
        ([10, 30, 50, 70], 95, 100, 1),  # dropping 20 of 75 frees a quarter
        ([10, 30, 50, 70], 140, 100, 3),
        ([10, 90], 99, 100, 1),
        ([10], 99, 100, 0),
        ([], 99, 100, 0),
        ([10, 12, 14, 90], 120, 100, 3),
    ],
)
def test_turns_are_dropped_until_a_quarter_is_free(starts, n_tokens, n_ctx, n_turns):
    assert turns_to_drop(starts, n_tokens, n_ctx, 8) == n_turns


def test_turns_are_kept_if_dropping_them_frees_too_little():
    assert turns_to_drop([0, 10, 20], 98, 100, 8) == 1


def test_whole_turns_are_dropped_and_others_keep_their_tokens():
    model = Script().open_model()
    local = LocalModel(model, model.session(22), model.chat(), built_in_settings())
    messages = [PromptMessage(SYSTEM, "Be brief.")]
    for n in range(3):
        messages += [
            PromptMessage(USER, f"question {n}"),
            PromptMessage(ASSISTANT, "", ids=(50 + n,), raw=""),
        ]
    prompt = local.prompt_with_room(Request((*messages, PromptMessage(USER, "next"))))
    assert prompt.dropped_turns == 2
    assert [message.content for message in local.chat.messages] == [
        "Be brief.",
        "question 2",
        "",
        "next",
    ]
    assert 52 in prompt.ids
    assert 51 not in prompt.ids


def texts(driver: Driver) -> list[str]:
    return [message.text for message in driver.chat.core.chat_session.conversation.messages]


async def fill(driver: Driver, n_turns: int) -> None:
    for n in range(n_turns):
        await driver.ask(f"question {n} of some words more")


async def test_a_full_context_is_reported_and_drops_old_turns():
    script = Script(replies=[tokens("a reply of six words here")], n_ctx=110)
    async with chatting(script, size=(80, 40), system_prompt="Be brief.") as driver:
        await fill(driver, 8)
        assert "oldest" in await driver.note("The context was full")
        context_notes = [note for note in driver.notes() if "% full" in note or "was full" in note]
        assert "tokens left" in context_notes[0]
        assert "dropped from it" in context_notes[1]
        assert len(texts(driver)) == 16
        await driver.note("no longer sees what is above")
        conversation = driver.chat.core.chat_session.conversation
        assert 0 < conversation.n_dropped < 16
        session = script.opened[0].sessions[0]
        cached = script.opened[0].tokenizer.decode(session.tokens)
        assert cached.startswith("Be brief.question")
        assert "question 0" not in cached
        assert session.length <= 110
        assert max(session.fed_counts[1:]) < 30, "the remaining tokens were moved, not fed again"
        n_dropped = conversation.n_dropped
    assert Store().read("000001").conversation.n_dropped == n_dropped
    script = Script(replies=script.replies, n_ctx=110)
    async with chatting(script, size=(80, 60), system_prompt="Be brief.") as driver:
        assert driver.chat.core.chat_session.conversation.n_dropped == n_dropped
        await driver.ask("one more")
        assert "question 0" not in script.opened[0].tokenizer.decode(
            script.opened[0].sessions[0].tokens
        )
        # Dropped messages can be copied, but not edited.
        await driver.say("/edit 1")
        await driver.note("the model no longer sees this message")
        driver.transcript.messages()[0].focus()
        await driver.pilot.press("f")
        await driver.until(lambda: len(texts(driver)) == 2)
        assert driver.chat.core.chat_session.conversation.n_dropped == 0
        await driver.ask("and then?")
        cached = script.opened[0].tokenizer.decode(script.opened[0].sessions[0].tokens)
        assert cached.startswith("Be brief.question 0")


@pytest.mark.smoke
async def test_dropped_turns_stay_dropped_and_no_others_are_dropped():
    """Stop a turn that dropped others, and send a message longer than the whole context."""
    script = Script(replies=[tokens("a reply of six words here")], n_ctx=100)
    async with chatting(script, system_prompt="Be brief.") as driver:
        await fill(driver, 5)
        script.prefill_gate = Gate()
        await driver.say("a question that needs the room of others " * 2)
        await driver.note("The context was full")
        n_dropped = driver.chat.core.chat_session.conversation.n_dropped
        await driver.pilot.press("escape")
        await driver.until(lambda: not driver.chat.core.chat_session.is_busy)
        script.prefill_gate = None
        await driver.ask("shorter")
        assert driver.chat.core.chat_session.conversation.n_dropped == n_dropped
        cached = script.opened[0].tokenizer.decode(script.opened[0].sessions[0].tokens)
        assert cached.count("question") == (len(texts(driver)) - n_dropped) // 2 - 1
        texts_before = texts(driver)
        await driver.say("word " * 120)
        assert "the context holds 100" in await driver.note("Not sent")
        assert driver.chat.core.chat_session.conversation.n_dropped == n_dropped
        assert texts(driver) == texts_before
