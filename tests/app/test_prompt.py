import pytest
from textual import events

from app.widgets.prompt import PromptHistory
from tests.app.chat_driver import chatting


def test_history_goes_back_and_forth():
    past = PromptHistory()
    past.add("one")
    past.add("two")
    assert [past.older(), past.older(), past.older()] == ["two", "one", None]
    assert [past.newer(), past.newer()] == ["two", ""]
    assert past.older() == "two"


def test_history_keeps_no_immediate_repeats_and_not_more_than_its_limit():
    past = PromptHistory(limit=2)
    for text in ("one", "one", "two", "three"):
        past.add(text)
    assert [past.older(), past.older(), past.older()] == ["three", "two", None]


async def test_enter_sends_and_empties_the_prompt():
    async with chatting() as driver:
        await driver.type("hello")
        await driver.pilot.press("enter")
        await driver.until(lambda: driver.chat.turns.conversation.messages)
        assert driver.chat.turns.conversation.messages[0].text == "hello"
        assert driver.prompt.text == ""


@pytest.mark.parametrize("key", ["ctrl+j", "shift+enter", "alt+enter"])
async def test_other_enters_break_the_line(key):
    async with chatting() as driver:
        await driver.pilot.press("a", key, "b")
        await driver.until(lambda: driver.prompt.text == "a\nb")
        assert driver.chat.turns.conversation.is_empty


async def test_letters_typed_right_before_and_after_enter_belong_where_they_were_typed():
    async with chatting() as driver:
        for key, character in [*((c, c) for c in "first"), ("enter", "\r"), *((c, c) for c in "second")]:
            driver.app.post_message(events.Key(key, character))
        await driver.until(lambda: driver.prompt.text == "second")
        assert driver.chat.turns.conversation.messages[0].text == "first"


async def test_white_space_alone_is_not_sent():
    async with chatting() as driver:
        await driver.type("   ")
        await driver.pilot.press("ctrl+j", "enter")
        await driver.pilot.pause()
        assert driver.chat.turns.conversation.is_empty


async def test_the_prompt_grows_to_ten_lines_and_no_further():
    async with chatting() as driver:
        assert driver.prompt.size.height == 1
        driver.prompt.show_text("\n".join("abc"))
        await driver.until(lambda: driver.prompt.size.height == 3)
        driver.prompt.show_text("\n" * 30)
        await driver.until(lambda: driver.prompt.size.height == 10)


async def test_up_and_down_recall_what_was_sent():
    async with chatting() as driver:
        await driver.ask("first")
        await driver.ask("second")
        await driver.pilot.press("up")
        await driver.until(lambda: driver.prompt.text == "second")
        await driver.pilot.press("up")
        await driver.until(lambda: driver.prompt.text == "first")
        await driver.pilot.press("down", "down")
        await driver.until(lambda: driver.prompt.text == "")


async def test_up_in_text_of_ones_own_moves_the_cursor_only():
    async with chatting() as driver:
        await driver.ask("first")
        await driver.type("draft")
        await driver.pilot.press("up")
        await driver.pilot.pause()
        assert driver.prompt.text == "draft"


async def test_a_paste_keeps_all_lines_and_loses_what_acts_on_a_terminal():
    async with chatting() as driver:
        driver.prompt.post_message(events.Paste("one\rtwo\r\nthree\x1b]52;c;!\x07\x00\ud800"))
        await driver.until(lambda: driver.prompt.text)
        assert driver.prompt.text == "one\ntwo\nthree␛]52;c;!␇␀�"


async def test_a_large_paste_arrives_whole():
    text = "\n".join(f"line {i}" for i in range(3000))
    async with chatting() as driver:
        driver.prompt.post_message(events.Paste(text))
        await driver.until(lambda: driver.prompt.text == text)


async def test_suggestions_appear_with_a_slash_and_tab_completes_the_first():
    async with chatting() as driver:
        await driver.type("/sa")
        await driver.until(lambda: "/save [path]" in driver.screen_text())
        await driver.pilot.press("tab")
        await driver.until(lambda: driver.prompt.text == "/save ")
        await driver.until(lambda: "/save [path]" not in driver.screen_text())
