import asyncio
from collections import deque

import pytest
from textual import events

from app.tui.actions import commands
from app.tui.draft import Draft
from app.tui.messages import PasteRefused
from app.tui.prompt_history import PromptHistory
from tests.app.chat_driver import chatting
from tests.app.fake_engine import Gate, Script

ONE, TWO, THREE = Draft("one"), Draft("two"), Draft("three")
LONG = "\n".join(f"line {i}" for i in range(3000))
CODE = "\n".join(f"x{i} = {i}" for i in range(42))


async def paste(driver, text: str) -> None:
    before = driver.prompt.text
    driver.prompt.post_message(events.Paste(text))
    await driver.until(lambda: driver.prompt.text != before)


def test_history_goes_back_and_forth():
    past = PromptHistory()
    past.add(ONE)
    past.add(TWO)
    assert [past.older(Draft()), past.older(TWO), past.older(ONE)] == [TWO, ONE, None]
    assert [past.newer(), past.newer()] == [TWO, Draft()]
    assert past.older(Draft()) == TWO


def test_history_keeps_no_direct_repeats_and_obeys_its_limit():
    past = PromptHistory(limit=2)
    for draft in (ONE, ONE, TWO, THREE):
        past.add(draft)
    assert [past.older(Draft()), past.older(THREE), past.older(TWO)] == [THREE, TWO, None]


def test_the_draft_left_for_the_history_comes_after_the_newest():
    past = PromptHistory()
    past.add(ONE)
    assert past.older(THREE) == ONE
    assert past.newer() == THREE


def test_earlier_starts_come_before_this_one():
    past = PromptHistory(limit=2)
    past.add(THREE)
    past.add_older([ONE, TWO])
    assert [past.older(Draft()), past.older(THREE), past.older(TWO)] == [THREE, TWO, None]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (["a", "b", "c", "backspace", "d"], "abd"),
        (["a", "b", "left", "c"], "acb"),
        (["a", "space", "b", "ctrl+w", "c"], "a c"),
        (["a", "shift+home", "backspace", "b"], "b"),
    ],
)
async def test_keys_that_come_at_once_act_in_their_order(keys, text):
    async with chatting() as driver:
        driver.prompt.focus()
        for key in keys:
            driver.app.post_message(events.Key(key, " " if key == "space" else key if len(key) == 1 else None))
        driver.app.post_message(events.Key("z", "z"))
        await driver.until(lambda: "z" in driver.prompt.text, "the last letter")
        await driver.pilot.pause()
        assert driver.prompt.text == text.replace("acb", "aczb") + ("" if "left" in keys else "z")


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


async def test_letters_right_before_and_after_enter_go_where_typed():
    async with chatting() as driver:
        for key, character in [*((c, c) for c in "first"), ("enter", "\r"), *((c, c) for c in "second")]:
            driver.app.post_message(events.Key(key, character))
        await driver.until(lambda: driver.prompt.text == "second")
        assert driver.chat.turns.conversation.messages[0].text == "first"


async def test_text_typed_after_a_file_is_sent_with_it_after_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").write_text("a note")
    async with chatting() as driver:
        driver.prompt.show_text("/read notes")
        for key in ("enter", "a", "n", "d", "enter", "n", "e", "x", "t"):
            driver.prompt.post_message(events.Key(key, key if len(key) == 1 else "\r"))
        await driver.until(lambda: driver.prompt.text == "next")
        await driver.until(lambda: driver.chat.turns.conversation.messages)
        assert driver.chat.turns.conversation.messages[0].text == "notes:\n```\na note\n```\n and"
        assert driver.prompt.unheeded == deque()


async def test_two_files_of_one_message_are_not_called_pasted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"a note {name}")
    async with chatting() as driver:
        driver.prompt.focus()
        for command in ("/read one", "/read two"):
            await driver.type(command)
            await driver.pilot.press("enter")
        await driver.until(lambda: "two" in driver.prompt.text)
        assert driver.prompt.text.replace("\u00a0", " ") == "[file 1: one, 10 B, 1 line] [file 2: two, 10 B, 1 line] "
        assert driver.chat.turns.conversation.messages == []
        await driver.type("compare")
        await driver.pilot.press("enter")
        await driver.until(lambda: driver.chat.turns.conversation.messages)
        said = driver.chat.turns.conversation.messages[0].text
        assert said == "one:\n```\na note one\n```\n two:\n```\na note two\n```\n compare"


async def test_a_command_after_a_paste_is_obeyed_and_the_paste_stays():
    async with chatting() as driver:
        driver.prompt.post_message(events.Paste("x\n" * 20))
        await driver.until(lambda: driver.prompt.text)
        chip = driver.prompt.text
        await driver.type(" /title")
        await driver.shows("Give the conversation a title")
        await driver.pilot.press("tab")
        await driver.until(lambda: driver.prompt.text == f"{chip} /title ")
        await driver.type("bottles")
        await driver.pilot.press("enter")
        await driver.note("gets a title when it has begun")
        assert driver.prompt.text == f"{chip} "
        assert driver.prompt.draft.text == "x\n" * 20 + " "
        await driver.type("/nosuch")
        await driver.pilot.press("enter")
        await driver.note("Unknown command /nosuch")
        assert driver.chat.turns.conversation.messages == []


async def test_a_large_folder_adds_new_parts_and_a_file_is_sent_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "notes").write_text("a note")
    for word in ("fan", "screw", "blade"):
        (tmp_path / "docs" / f"{word}.md").write_text(f"{word} turns. " * 50)
    async with chatting() as driver:
        await driver.ask("@notes what is it?")
        await driver.ask("and @notes again?")
        await driver.note("notes stands in the conversation already, and is not sent again")
        await driver.say("/read docs")
        await driver.note("later questions add what is new")
        for question in ("a fan?", "a screw?", "thank you"):
            await driver.ask(question)
        noted, again, fan, screw, thanks = [one.text for one in driver.chat.turns.conversation.messages[::2]]
        assert noted.startswith("notes:\n```\na note")
        assert (again, thanks) == ("and @notes again?", "thank you")
        assert fan.startswith("fan.md, line 1:")
        assert screw.startswith("screw.md, line 1:")


async def test_a_file_in_a_reply_that_is_edited_is_not_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").write_text("a note")
    async with chatting() as driver:
        await driver.ask("hello")
        await driver.say("/edit reply")
        await driver.until(lambda: driver.chat.is_editing_reply)
        await driver.say("/read notes")
        messages = driver.chat.turns.conversation.messages
        await driver.until(lambda: len(messages) == 2 and messages[1].text.startswith("/read notes"))


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


async def test_a_large_paste_is_folded_and_goes_out_whole():
    async with chatting(Script(n_ctx=20_000)) as driver:
        await driver.type("explain ")
        await paste(driver, LONG)
        assert driver.prompt.text.replace("\u00a0", " ") == "explain [pasted 1: 28.9 kB, 3,000 lines]"
        await driver.pilot.press("enter")
        await driver.until(lambda: driver.chat.turns.conversation.messages)
        assert driver.chat.turns.conversation.messages[0].text == f"explain {LONG}"
        await driver.last_reply()
        shown = driver.screen_text().replace("\u00a0", " ")
        assert "explain [pasted 1: 28.9 kB, 3,000 lines]" in shown
        assert "line 2999" not in shown


async def test_a_folded_message_that_does_not_fit_comes_back_folded():
    async with chatting() as driver:
        await paste(driver, LONG)
        chip = driver.prompt.text
        await driver.pilot.press("enter")
        await driver.note("Not sent: this message alone")
        assert driver.prompt.text == chip
        assert driver.prompt.draft.text == LONG


async def test_pasted_text_unfolds_in_the_transcript_and_folds_again():
    async with chatting(size=(80, 60)) as driver:
        await paste(driver, CODE)
        await driver.pilot.press("enter")
        await driver.last_reply()
        await driver.pilot.press("ctrl+o")
        await driver.until(lambda: "x41 = 41" in driver.screen_text())
        await driver.pilot.press("ctrl+o")
        await driver.until(lambda: "x41 = 41" not in driver.screen_text())


async def test_several_pastes_are_numbered_and_each_is_deleted_as_one():
    async with chatting() as driver:
        await paste(driver, LONG)
        await paste(driver, " and ")
        await paste(driver, CODE)
        assert driver.prompt.draft.text == f"{LONG} and {CODE}"
        await driver.pilot.press("backspace")
        assert driver.prompt.draft.text == f"{LONG} and "
        await driver.pilot.press("ctrl+z")
        assert driver.prompt.draft.text == f"{LONG} and {CODE}"
        await driver.pilot.press("home", "delete")
        assert driver.prompt.draft.text == f" and {CODE}"
        await paste(driver, LONG)
        assert "[pasted\u00a03:" in driver.prompt.text


async def test_the_cursor_steps_over_a_fold_and_cannot_type_into_it():
    async with chatting() as driver:
        await paste(driver, CODE)
        await driver.type("ab")
        await driver.pilot.press("left", "left", "left")
        assert driver.prompt.cursor_location == (0, 0)
        await driver.pilot.press("right", "X")
        assert driver.prompt.draft.text == f"{CODE}Xab"
        driver.prompt.move_cursor((0, 5))
        await driver.type("Y")
        assert driver.prompt.draft.text.replace("Y", "") == f"{CODE}Xab"
        await driver.pilot.press("ctrl+w")
        assert driver.prompt.draft.text in (f"{CODE}Xab", "Xab")


async def test_a_copy_of_a_chip_is_only_text():
    async with chatting() as driver:
        await paste(driver, CODE)
        chip = driver.prompt.text
        await paste(driver, chip)
        assert driver.prompt.draft.text == CODE + chip.replace("[pasted\u00a0", "[pasted ")


async def test_a_paste_larger_than_any_context_is_not_taken():
    async with chatting() as driver:
        driver.app.post_message(PasteRefused())
        assert "more than 4,000,000 characters" in await driver.note("not pasted")
        assert driver.prompt.text == ""


async def test_a_folded_message_is_recalled_folded():
    async with chatting() as driver:
        await driver.type("see ")
        await paste(driver, CODE)
        await driver.pilot.press("enter")
        await driver.last_reply()
        await driver.pilot.press("up")
        await driver.until(lambda: driver.prompt.text.startswith("see [pasted"))
        assert driver.prompt.draft.text == f"see {CODE}"


async def test_a_draft_waits_while_history_is_looked_at():
    async with chatting() as driver:
        await driver.ask("first")
        await driver.type("draft")
        await driver.pilot.press("up", "up")
        await driver.until(lambda: driver.prompt.text == "first")
        await driver.pilot.press("down")
        await driver.until(lambda: driver.prompt.text == "draft")


async def test_a_waiting_message_is_taken_back_with_up():
    script = Script(token_gate=Gate())
    async with chatting(script) as driver:
        await driver.say("first")
        await driver.until(script.token_gate.waiting.is_set)
        await driver.say("second")
        await driver.say("third")
        await driver.until(lambda: driver.screen_text().count("queued") == 2)
        await driver.pilot.press("up")
        await driver.until(lambda: driver.prompt.text == "third")
        assert len(driver.chat.turns.queued_texts) == 1
        assert "third" not in [view.text for view in driver.transcript.query("UserView")]
        driver.prompt.show_text("")
        await driver.pilot.press("up")
        await driver.until(lambda: driver.prompt.text == "second")
        driver.prompt.show_text("")
        await driver.pilot.press("up")
        await driver.until(lambda: driver.prompt.text == "third")  # nothing waits any more: this is history
        script.token_gate.open()
        await driver.last_reply()
        assert driver.chat.turns.conversation.messages[0].text == "first"
        assert len(driver.chat.turns.conversation.messages) == 2


async def test_what_was_sent_is_there_at_the_next_start():
    async with chatting() as driver:
        await driver.type("see ")
        await paste(driver, CODE)
        await driver.pilot.press("enter")
        await driver.last_reply()
    async with chatting() as driver:
        await driver.until(lambda: driver.prompt.past.find(f"see {CODE}"))
        await driver.pilot.press("up")
        await driver.until(lambda: driver.prompt.draft.text == f"see {CODE}")


async def test_nothing_is_kept_where_the_setting_says_so():
    async with chatting(prompt_history="off") as driver:
        await driver.ask("secret")
    async with chatting() as driver:
        await driver.pilot.press("up")
        await asyncio.sleep(0)
        assert driver.prompt.text == ""


async def test_suggestions_come_with_a_slash_and_tab_takes_the_first():
    async with chatting() as driver:
        await driver.type("/sa")
        await driver.until(lambda: "/save [path]" in driver.screen_text())
        await driver.pilot.press("tab")
        await driver.until(lambda: driver.prompt.text == "/save ")
        await driver.until(lambda: "/save [path]" not in driver.screen_text())


async def test_what_the_prompts_edge_names_can_be_clicked():
    async with chatting() as driver:
        await driver.shows("F1 help")
        for words, screen in (
            ("F2 speed", "PerformanceScreen"),
            ("F3 models", "ModelsScreen"),
            ("F1 help", "HelpScreen"),
        ):
            rows = driver.screen_text().splitlines()
            y = next(n for n, row in enumerate(rows) if words in row)
            await driver.pilot.click(offset=(rows[y].index(words) + 1, y))
            await driver.until(lambda screen=screen: type(driver.app.screen).__name__ == screen, screen)
            await driver.pilot.press("escape")
            await driver.until(lambda: driver.app.screen is driver.chat)
            await driver.shows("F1 help")


async def test_arrows_choose_a_suggestion_and_enter_takes_it():
    async with chatting() as driver:
        await driver.type("/")
        await driver.shows(f"1 of {len(list(commands()))}: Up and Down choose")
        await driver.pilot.press("backspace")
        await driver.type("/t")
        await driver.shows("(Tab)")
        first = driver.prompt.offered
        await driver.pilot.press("down", "down", "up")
        await driver.until(lambda: driver.prompt.offered_at == 1)
        await driver.pilot.press("enter")
        await driver.until(lambda: driver.prompt.text == first[1].text)
        assert driver.prompt.text.startswith("/t")
        assert driver.chat.turns.conversation.messages == []
        await driver.pilot.press("ctrl+u")
        await driver.type("/hel")
        await driver.pilot.press("down", "enter")
        await driver.until(lambda: driver.prompt.text == "/help ", "taken, for a topic may follow")
        await driver.pilot.press("enter")
        await driver.until(lambda: type(driver.app.screen).__name__ == "HelpScreen")


async def test_tab_completes_names_and_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a day.txt").write_text("sun")
    (tmp_path / "model.gguf").touch()
    async with chatting() as driver:
        await driver.type("/theme jalopy-l")
        await driver.pilot.press("tab")
        await driver.until(lambda: driver.prompt.text == "/theme jalopy-light")
        driver.prompt.show_text("/set temp")
        await driver.until(lambda: driver.prompt.offered)
        await driver.pilot.press("tab")
        await driver.until(lambda: driver.prompt.text == "/set temperature")
        driver.prompt.show_text("/model m")
        await driver.until(lambda: driver.prompt.offered)
        await driver.pilot.press("tab")
        await driver.until(lambda: driver.prompt.text == "/model model.gguf")
        driver.prompt.show_text("/read n")
        await driver.until(lambda: driver.prompt.offered)
        await driver.pilot.press("tab")
        await driver.until(lambda: driver.prompt.text == "/read notes/")
        await driver.until(lambda: driver.prompt.offered)
        await driver.pilot.press("tab", "enter")
        await driver.until(lambda: driver.prompt.draft.text == "a day.txt:\n```\nsun\n```\n ")


async def test_joiners_are_letters_too():
    async with chatting() as driver:
        for character in "\u0645\u06cc\u200c\u062e 👨\u200d👩":
            driver.app.post_message(events.Key("x" if character.isprintable() else "zero_width", character))
        await driver.until(lambda: driver.prompt.text == "\u0645\u06cc\u200c\u062e 👨\u200d👩")


async def test_up_pressed_twice_takes_one_message_back():
    script = Script(token_gate=Gate())
    async with chatting(script) as driver:
        for text in ("one", "two", "three"):
            await driver.say(text)
            await driver.until(lambda: not driver.prompt.text)
        await driver.until(lambda: len(driver.chat.turns.queued_texts) == 2)
        for _ in range(2):  # both are on their way before the first one is heeded
            driver.app.post_message(events.Key("up", None))
        await driver.until(lambda: driver.prompt.text == "three")
        await driver.pilot.pause()
        await driver.pilot.pause()
        assert len(driver.chat.turns.queued_texts) == 1
        script.token_gate.open()
        await driver.until(lambda: len(driver.chat.turns.conversation.messages) == 4, "the other one is answered")


async def test_undoing_more_lines_than_the_prompt_shows_is_no_error():
    """The scroll bar goes before Textual takes the cursor out of the lines that went."""
    async with chatting(Script()) as driver:
        for text in ("one", "\n" * 30 + "end"):
            driver.chat.prompt._insert(text)
            await driver.pilot.pause()
        assert driver.chat.prompt.show_vertical_scrollbar
        for _ in range(3):
            await driver.pilot.press("ctrl+z")
        assert driver.chat.prompt.document.line_count == 1
        for _ in range(3):
            await driver.pilot.press("ctrl+y")
        assert driver.chat.prompt.text == "one" + "\n" * 30 + "end"
