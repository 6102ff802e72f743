from collections import deque

from textual import events

from app.tui.actions import commands
from app.tui.chat.draft import Draft
from app.tui.chat.history import PromptHistory
from app.tui.chat.messages import PasteRefused
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Gate, Script
from tests.engine import tiny_gguf

ONE = Draft("one")
TWO = Draft("two")
THREE = Draft("three")
LONG = "\n".join(f"line {i}" for i in range(300))
CODE = "\n".join(f"x{i} = {i}" for i in range(42))
LONG_CHIP = "[pasted 1: 2.6 kB, 300 lines]"


async def paste(driver: Driver, text: str) -> None:
    before = driver.prompt.text
    driver.prompt.post_message(events.Paste(text))
    await driver.until(lambda: driver.prompt.text != before)


async def becomes(driver: Driver, text: str) -> None:
    """Wait until this is in the prompt, chips with plain blanks."""
    await driver.until(
        lambda: driver.prompt.text.replace("\u00a0", " ") == text, f"{text!r} in the prompt"
    )


def test_history_goes_back_and_forth():
    past = PromptHistory()
    past.add(ONE)
    past.add(TWO)
    assert [past.older(Draft()), past.older(TWO), past.older(ONE)] == [TWO, ONE, None]
    assert [past.newer(), past.newer()] == [TWO, Draft()]
    assert [past.older(THREE), past.newer()] == [TWO, THREE], (
        "the draft that was left comes after the newest"
    )


def test_history_keeps_no_direct_repeats_and_obeys_its_limit():
    past = PromptHistory(limit=2)
    later = PromptHistory(limit=2)
    for draft in (ONE, ONE, TWO, THREE):
        past.add(draft)
    later.add(THREE)
    later.add_older([ONE, TWO])  # of earlier starts
    for each in (past, later):
        assert [each.older(Draft()), each.older(THREE), each.older(TWO)] == [THREE, TWO, None]


async def test_quick_keys_act_in_order_and_the_prompt_grows():
    rows = (
        (["a", "b", "c", "backspace", "d"], "abdz"),
        (["a", "b", "left", "c"], "aczb"),
        (["a", "space", "b", "ctrl+w", "c"], "a cz"),
        (["a", "shift+home", "backspace", "b"], "bz"),
    )
    joined = "\u0645\u06cc\u200c\u062e 👨\u200d👩"
    async with chatting() as driver:
        for keys, text in rows:
            driver.prompt.show_text("")
            for key in (*keys, "z"):
                driver.app.post_message(
                    events.Key(key, " " if key == "space" else key if len(key) == 1 else None)
                )
            await becomes(driver, text)
        driver.prompt.show_text("")
        for character in joined:  # joiners are letters too
            driver.app.post_message(
                events.Key("x" if character.isprintable() else "zero_width", character)
            )
        await becomes(driver, joined)
        driver.prompt.clear()
        driver.prompt.history.clear()
        await driver.until(lambda: driver.prompt.size.height == 1)
        for text, height in (("one", 1), ("\n\n", 3), ("\n" * 30 + "end", 10)):
            driver.prompt._insert(text)
            await driver.until(lambda height=height: driver.prompt.size.height == height)
            await driver.pilot.pause()
        # which goes before the cursor leaves the lines that go
        assert driver.prompt.show_vertical_scrollbar
        for _ in range(3):
            await driver.pilot.press("ctrl+z")
        assert driver.prompt.document.line_count == 1
        for _ in range(3):
            await driver.pilot.press("ctrl+y")
        assert driver.prompt.text == "one" + "\n" * 32 + "end"


async def test_enter_sends_others_break_lines_and_up_recalls():
    async with chatting() as driver:
        await driver.type("   ")
        await driver.pilot.press("ctrl+j", "enter")
        await driver.pilot.pause()
        for key in ("ctrl+j", "shift+enter", "alt+enter"):
            driver.prompt.show_text("")
            await driver.pilot.press("a", key, "b")
            await becomes(driver, "a\nb")
        assert driver.chat.core.chat_session.conversation.is_empty
        driver.prompt.show_text("")
        for key, character in [
            *((c, c) for c in "first"),
            ("enter", "\r"),
            *((c, c) for c in "second"),
        ]:
            driver.app.post_message(events.Key(key, character))
        await becomes(driver, "second")
        assert driver.chat.core.chat_session.conversation.messages[0].text == "first"
        await driver.until(
            lambda: driver.chat.core.chat_session.conversation.last_reply is not None
        )
        await driver.ask("second")
        for key, text in (("up", "second"), ("up", "first"), ("down", "second"), ("down", "")):
            await driver.pilot.press(key)
            await becomes(driver, text)
        await driver.type("draft")
        await driver.pilot.press("up")  # within one's own text it moves the cursor
        await driver.pilot.pause()
        assert driver.prompt.text == "draft"
        for key, text in (("up", "second"), ("down", "draft")):
            await driver.pilot.press(key)
            await becomes(driver, text)


async def test_files_go_with_the_words_that_are_typed_after_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("notes", "one", "two"):
        (tmp_path / name).write_text(f"a note {name}")
    async with chatting() as driver:
        driver.prompt.show_text("/read notes")
        for key in ("enter", "a", "n", "d", "enter", "n", "e", "x", "t"):
            driver.prompt.post_message(events.Key(key, key if len(key) == 1 else "\r"))
        await becomes(driver, "next")
        await driver.last_reply()
        assert driver.prompt.submitted == deque()
        driver.prompt.show_text("")
        for command in ("/read one", "/read two"):
            driver.prompt.insert(command)
            await driver.pilot.press("enter")
        await becomes(driver, "[file 1: one, 10 B, 1 line] [file 2: two, 10 B, 1 line] ")
        await driver.type("compare")
        await driver.pilot.press("enter")
        await driver.until(lambda: len(driver.chat.core.chat_session.conversation.messages) == 4)
        assert [one.text for one in driver.chat.core.chat_session.conversation.messages[::2]] == [
            "notes:\n```\na note notes\n```\n and",
            "one:\n```\na note one\n```\n two:\n```\na note two\n```\n compare",
        ]


async def test_a_command_after_a_paste_is_obeyed_and_the_paste_stays():
    async with chatting() as driver:
        await paste(driver, "x\n" * 20)
        chip = driver.prompt.text
        await driver.type(" /title")
        await driver.shows("Rename the conversation")
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
        assert driver.chat.core.chat_session.conversation.messages == []


async def test_a_large_folder_adds_new_parts_and_a_file_is_sent_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "notes").write_text("a note")
    for word in ("fan", "screw", "blade"):
        (tmp_path / "docs" / f"{word}.md").write_text(f"{word} turns. " * 50)
    async with chatting() as driver:
        await driver.ask("@notes what is it?")
        await driver.ask("and @notes again?")
        await driver.note("notes is in the conversation already and is not sent again")
        await driver.say("/read docs")
        await driver.note("Each question will get the passages that match it")
        for question in ("a fan?", "a screw?", "thank you"):
            await driver.ask(question)
        noted, again, fan, screw, thanks = [
            one.text for one in driver.chat.core.chat_session.conversation.messages[::2]
        ]
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
        await driver.until(lambda: driver.chat.editing.is_of_reply)
        await driver.say("/read notes")
        messages = driver.chat.core.chat_session.conversation.messages
        await driver.until(
            lambda: len(messages) == 2 and messages[1].text.startswith("/read notes")
        )


async def test_a_large_paste_is_folded_and_goes_out_whole():
    async with chatting(Script(n_ctx=2000), size=(80, 60)) as driver:
        await driver.type("explain ")
        await paste(driver, LONG)
        await becomes(driver, f"explain {LONG_CHIP}")
        await driver.pilot.press("enter")
        await driver.last_reply()
        assert driver.chat.core.chat_session.conversation.messages[0].text == f"explain {LONG}"
        shown = driver.screen_text().replace("\u00a0", " ")
        assert f"explain {LONG_CHIP}" in shown
        assert "line 299" not in shown
        await driver.pilot.press("ctrl+o")  # unfolds it in the transcript
        await driver.shows("line 299")
        await driver.pilot.press("ctrl+o")
        await driver.hides("line 299")
        await driver.pilot.press("up")
        await becomes(driver, f"explain {LONG_CHIP}")
        assert driver.prompt.draft.text == f"explain {LONG}"


async def test_each_paste_is_numbered_and_moved_over_as_one():
    async with chatting() as driver:
        for text in (LONG, " and ", CODE):
            await paste(driver, text)
        assert driver.prompt.draft.text == f"{LONG} and {CODE}"
        await driver.pilot.press("backspace")
        assert driver.prompt.draft.text == f"{LONG} and "
        await driver.pilot.press("ctrl+z")
        assert driver.prompt.draft.text == f"{LONG} and {CODE}"
        await driver.pilot.press("home", "delete")
        assert driver.prompt.draft.text == f" and {CODE}"
        await paste(driver, LONG)
        assert "[pasted\u00a03:" in driver.prompt.text

        driver.prompt.show_text("")
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

        driver.prompt.show_text("")
        await paste(driver, CODE)
        chip = driver.prompt.text
        await paste(driver, chip)  # a copy of a chip is only text
        assert driver.prompt.draft.text == CODE + chip.replace("[pasted\u00a0", "[pasted ")

        driver.prompt.show_text("")
        await paste(driver, LONG)
        chip = driver.prompt.text
        await driver.pilot.press("enter")
        await driver.note("Not sent: with room for a reply, this message alone")
        assert driver.prompt.text == chip
        assert driver.prompt.draft.text == LONG
        driver.prompt.show_text("")
        driver.app.post_message(PasteRefused())
        assert "more than 4,000,000 characters" in await driver.note("not pasted")
        assert driver.prompt.text == ""


async def test_a_waiting_message_is_taken_back_with_up():
    script = Script(token_gate=Gate())
    async with chatting(script) as driver:
        for text in ("first", "second", "third"):
            await driver.say(text)
            await driver.until(lambda: not driver.prompt.text)
        await driver.until(lambda: len(driver.chat.core.chat_session.queued_texts) == 2)
        for _ in range(2):  # both are on their way before the first one is heeded
            driver.app.post_message(events.Key("up", None))
        await becomes(driver, "third")
        await driver.pilot.pause()
        await driver.pilot.pause()
        assert driver.chat.core.chat_session.queued_texts == ["second"]
        assert "third" not in [view.text for view in driver.transcript.query("UserView")]
        for text in ("second", "third"):  # at last nothing waits any more: this is history
            driver.prompt.show_text("")
            await driver.pilot.press("up")
            await becomes(driver, text)
        script.token_gate.open()
        await driver.last_reply()
        assert [one.text for one in driver.chat.core.chat_session.conversation.messages[::2]] == [
            "first"
        ]


async def test_what_was_sent_is_there_at_the_next_start_if_wanted():
    async with chatting(prompt_history="off") as driver:
        await driver.ask("secret")
    async with chatting() as driver:
        await driver.pilot.press("up")
        assert driver.prompt.text == ""
        await driver.type("see ")
        await paste(driver, CODE)
        await driver.pilot.press("enter")
        await driver.last_reply()
    async with chatting() as driver:
        await driver.until(lambda: driver.prompt.past.find(f"see {CODE}"))
        await driver.pilot.press("up")
        await driver.until(lambda: driver.prompt.draft.text == f"see {CODE}")


async def test_what_the_prompts_edge_names_can_be_clicked():
    screens = {"F2 speed": "PerformanceScreen", "F1 help": "HelpScreen"}
    async with chatting() as driver:
        for words, screen in screens.items():
            await driver.shows("F1 help")
            rows = driver.screen_text().splitlines()
            y = next(n for n, row in enumerate(rows) if words in row)
            await driver.pilot.click(offset=(rows[y].index(words) + 1, y))
            await driver.until(
                lambda screen=screen: type(driver.app.screen).__name__ == screen, screen
            )
            await driver.pilot.press("escape")
            await driver.until(lambda: driver.app.screen is driver.chat)


async def test_tab_completes_names_of_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("Birch-1B-F32", "Beech-2B-F32", "Oak-3B-F32"):
        tiny_gguf.write(folder / f"{name}.gguf")
    (folder / "notes.gguf").touch()
    async with chatting(
        model=str(folder / "Oak-3B-F32.gguf"), model_directories=(str(folder),)
    ) as driver:
        await driver.ready()
        for command in ("/model", "/regen", "/retry"):
            driver.prompt.show_text(f"{command} b")
            await driver.shows("Beech-2B")
            assert [one.usage for one in driver.prompt.completions] == ["Beech-2B", "Birch-1B"]
            await driver.pilot.press("tab")
            await becomes(driver, f"/{command.replace('retry', 'regen')[1:]} Beech-2B")
            driver.prompt.show_text("")
            await driver.hides("Beech-2B")
        await driver.type("/regen o")
        await driver.until(lambda: driver.prompt.completions == [])


async def test_tab_completes_and_arrows_choose_what_is_offered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a day.txt").write_text("sun")
    (tmp_path / "model.gguf").touch()
    rows = (
        ("/sa", "/save "),
        ("/theme jalopy-l", "/theme jalopy-light"),
        ("/set temp", "/set temperature"),
        ("/model m", "/model model.gguf"),
        ("/read n", "/read notes/"),
    )
    async with chatting() as driver:
        await driver.type("/sa")
        await driver.shows("/save [path]")
        for typed, text in rows:
            driver.prompt.offer(())
            driver.prompt.show_text(typed)
            await driver.until(lambda: driver.prompt.completions)
            await driver.pilot.press("tab")
            await becomes(driver, text)
        await driver.hides("/save [path]")
        await driver.until(lambda: driver.prompt.completions)
        await driver.pilot.press("tab", "enter")
        await driver.until(lambda: driver.prompt.draft.text == "a day.txt:\n```\nsun\n```\n ")

        driver.prompt.show_text("")
        await driver.type("/")
        await driver.shows(f"1 of {len(list(commands()))}: Up and Down choose")
        await driver.type("t")
        await driver.shows("(Tab)")
        first = driver.prompt.completions
        await driver.pilot.press("down", "down", "up")
        await driver.until(lambda: driver.prompt.completion_index == 1)
        await driver.pilot.press("enter")
        await becomes(driver, first[1].text)
        assert driver.prompt.text.startswith("/t")
        assert driver.chat.core.chat_session.conversation.messages == []
        driver.prompt.show_text("")
        await driver.type("/hel")
        await driver.pilot.press("down", "enter")
        await becomes(driver, "/help ")  # taken, for a topic may follow
        await driver.pilot.press("enter")
        await driver.until(lambda: type(driver.app.screen).__name__ == "HelpScreen")


async def test_a_key_selects_all_that_is_typed() -> None:
    async with chatting() as driver:
        driver.prompt.show_text("two\nlines")
        await driver.pilot.press("alt+a", "backspace")
        await becomes(driver, "")
