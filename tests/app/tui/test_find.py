"""Find a text in the open conversation: ctrl+f or /find, marks, and keys that go through places."""

from __future__ import annotations

from app.conversations.conversation import ChatMessage, Conversation, Ending, Role
from app.conversations.journal import Journal
from app.conversations.store import Store
from app.reply.thinking import Thinking
from app.tui.chat.text_search import FoundPlace, TextSearch
from app.tui.widgets.found_text import FOUND, FOUND_NOW
from app.tui.widgets.message_view import ReplyView, UserView
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Script
from tests.app.scenes import tokens


def script(*replies: str) -> Script:
    return Script(replies=[tokens(reply) for reply in replies])


def search_in(*texts: str) -> TextSearch:
    return TextSearch([ChatMessage(Role.USER, text) for text in texts])


def test_places_are_counted_by_message_ignoring_case():
    search = search_in("A lantern and a Lantern", "nothing", "LANTERN")
    search.search("lantern", first_index=1)
    assert [(place.index, place.number) for place in search.places] == [(0, 0), (0, 1), (2, 0)]
    assert search.count_line == "3 of 3"
    search.step(1)
    assert search.count_line == "1 of 3"
    search.step(-1)
    assert search.count_line == "3 of 3"


def test_words_are_found_across_a_line_break_and_signs_are_plain():
    search = search_in("one\ntwo a+b (c)")
    for text in ("one two", "a+b", "(c)"):
        search.search(text, first_index=0)
        assert search.count_line == "1 of 1", text
    search.search("  ", first_index=0)
    assert search.count_line == ""
    search.search("[", first_index=0)
    assert search.count_line == "not found"


def test_thinking_is_searched():
    message = ChatMessage(Role.ASSISTANT, "yes", thinking=Thinking("a lantern"))
    search = TextSearch([message])
    search.search("lantern", first_index=0)
    assert search.count_line == "1 of 1"


async def marks(driver: Driver) -> dict[str, int]:
    """Return how many cells of the replies have each mark."""
    counts = {FOUND: 0, FOUND_NOW: 0}
    await driver.pilot.pause()
    for view in driver.transcript.replies():
        for row in range(view.body.size.height):
            for segment in view.body.render_line(row):
                if segment.style is not None and segment.style.underline:
                    counts[FOUND_NOW] += len(segment.text)
    return counts


def bar(driver: Driver) -> str:
    return str(driver.app.screen.query_one("#find-bar").content)


async def test_typing_finds_and_keys_go_from_place_to_place():
    words = " ".join(f"word{number}" for number in range(900))
    replies = (f"The *lantern* burns.\n\n{words}", "A lantern again")
    async with chatting(script(*replies)) as driver:
        await driver.ready()
        await driver.ask("light the lantern")
        await driver.ask("more")
        await driver.pilot.press("ctrl+f")
        await driver.type("lantern")
        assert "find: lantern_ · 2 of 3" in bar(driver)
        await driver.pilot.press("enter", "n", "n")
        await driver.until(lambda: "find: lantern · 1 of 3" in bar(driver))
        await driver.until(lambda: driver.transcript.scroll_y < 20, "the first place is in sight")
        await driver.pilot.press("n")
        assert "2 of 3" in bar(driver)
        assert (await marks(driver))[FOUND_NOW] == len("lantern")
        await driver.pilot.press("N", "N")
        assert "3 of 3" in bar(driver)
        await driver.until(lambda: driver.transcript.scroll_y > 40, "the last place is in sight")
        await driver.pilot.press("escape")
        assert driver.app.focused is driver.prompt
        assert (await marks(driver))[FOUND_NOW] == 0
        assert not driver.app.screen.query_one("#find-bar").display


async def test_find_command_unfolds_thinking_and_pastes():
    thinking = "<think>a lantern is a lamp</think>yes"
    async with chatting(script(thinking)) as driver:
        await driver.ready()
        await driver.ask("what is it?")
        view = driver.transcript.replies()[-1]
        await driver.say("/find a lamp")
        await driver.until(lambda: "1 of 1" in bar(driver))
        assert isinstance(view, ReplyView)
        assert view.thinking.is_unfolded
        user_view = driver.transcript.messages()[0]
        assert isinstance(user_view, UserView)


async def test_an_earlier_message_without_a_widget_is_found():
    replies = [f"reply {number}" for number in range(40)]
    async with chatting(script(*replies)) as driver:
        await driver.ready()
        for number in range(40):
            await driver.ask(f"question {number}")
        first = driver.chat.core.chat_session.conversation.messages[0]
        assert driver.transcript._mounted_view(first) is None
        await driver.say("/find question 0")
        await driver.until(lambda: driver.transcript._mounted_view(first) is not None)
        view = driver.transcript._mounted_view(first)
        await driver.until(lambda: driver.transcript.region.contains_region(view.region))


async def test_an_empty_conversation_says_so():
    async with chatting(script()) as driver:
        await driver.ready()
        await driver.pilot.press("ctrl+f")
        await driver.note("Nothing to find yet")


def test_a_longer_text_narrows_the_search() -> None:
    search = search_in("lantern", "LANCE", "land ho", "straße", "İ lan")
    for text, n_places in (("l", 4), ("la", 4), ("lan", 4), ("land", 1), ("land  h", 1), ("l", 4)):
        search.search(text, first_index=0)
        assert search.n_places == n_places, text
    search.search("STRASSE", first_index=0)
    assert search.count_line == "not found"
    search.search("STRAßE", first_index=0)
    assert search.count_line == "1 of 1"


def test_a_letter_in_a_long_conversation_is_counted_whole() -> None:
    search = search_in(*["a" * 1000] * 30)
    search.search("a", first_index=29)
    assert search.count_line == "29001 of 30000"
    search.step(-1)
    assert search.place == FoundPlace(28, 999)
    search.step(2)
    assert search.place == FoundPlace(29, 1)


async def test_a_distant_place_mounts_only_what_is_around_it() -> None:
    conversation = Conversation()
    for n in range(150):
        conversation.add_user("lantern" if n == 20 else f"question {n}")
        conversation.add_reply(f"answer {n}", Ending.COMPLETE, None)
    saved = Journal(Store())
    saved.begin(title="long")
    saved.save_turn_end(conversation)
    assert not saved.close(60)
    async with chatting(Script(n_ctx=1 << 20), resume="new") as driver:
        await driver.ready()
        await driver.chat.conversations.open("000001", "lantern")
        await driver.shows("1 of 1")
        await driver.shows("lantern")
        assert len(driver.transcript.messages()) < 40
        await driver.pilot.press("escape", "pagedown")
        await driver.shows("question 24")
        await driver.pilot.press("ctrl+end")
        await driver.ask("next")
        await driver.until(lambda: len(driver.transcript.messages()) <= 30)
        texts = [message.text for message in driver.chat.core.chat_session.conversation.messages]
        assert texts[40] == "lantern"
        assert texts[-2] == "next"
        shown = [view.message.text for view in driver.transcript.messages()]
        assert shown == texts[-len(shown) :], "nothing is left out"
        # What was far back is there when the user goes up.
        for _ in range(20):
            driver.transcript.show_earlier(100)
        shown = [view.message.text for view in driver.transcript.messages()]
        assert shown == texts


async def test_a_distant_message_can_be_edited() -> None:
    async with chatting(Script(replies=[["New."]]), resume="new") as driver:
        await driver.ready()
        conversation = driver.chat.core.chat_session.conversation
        for n in range(100):
            conversation.add_user("lantern" if n == 5 else f"question {n}")
            conversation.add_reply(f"answer {n}", Ending.COMPLETE, None)
        await driver.chat.conversations.show_again()
        await driver.say("/find lantern")
        await driver.shows("1 of 1")
        await driver.pilot.press("escape")
        await driver.say("/edit 6")
        await driver.until(lambda: driver.prompt.text == "lantern")
        await driver.type("s")
        await driver.pilot.press("enter")
        await driver.until(lambda: len(conversation.messages) == 12)
        await driver.until(lambda: not driver.chat.core.chat_session.is_busy)
        shown = [view.message.text for view in driver.transcript.messages()]
        assert shown == [message.text for message in conversation.messages][-len(shown) :]
        assert conversation.messages[10].text == "lanterns"
