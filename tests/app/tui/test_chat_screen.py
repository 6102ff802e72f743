import dataclasses
import gc
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from textual.events import Paste
from textual.geometry import Size
from textual.widgets import Input

from app.backend.status import EngineStatus
from app.conversations.conversation import Ending
from app.machine.sensors.reply_history import ReplyHistory
from app.machine.sensors.tuning_conditions import Conditions
from app.program import paths
from app.reply.starter_fence import answers_to
from app.tui.action_groups import GROUPS
from app.tui.actions import ACTIONS
from app.tui.chat.draft import Draft
from app.tui.chat.messages import PromptSubmitted
from app.tui.screens.help import HelpScreen
from app.tui.widgets.message_view import ReplyView, UserView
from engine.errors import BrokenModelError, GGUFError
from engine.measure.fit import MachineMemory
from tests.app import chat_driver
from tests.app.chat_driver import Driver, chatting, shown_source
from tests.app.fake_engine import Gate, Script

MARKDOWN = """# Title

Some **bold** text.

- one
- two

```python
x = 1
```

| a | b |
|---|---|
| 1 | 2 |
"""
ATTACK = (
    "a\x1b]0;pwned\x07b [@click=app.quit]x[/] [/ [red]y <b>h</b> \x9b2J \u202edesrever\u202c end"
)


def tokens(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)


def read_by(driver: Driver) -> str:
    """Return the text of the tokens in the model's cache."""
    model = driver.script.opened[-1]
    return model.tokenizer.decode(model.sessions[-1].tokens)


async def test_the_line_says_loading_before_the_engine_does(monkeypatch):
    async with chatting() as driver:
        core = driver.chat.core
        monkeypatch.setattr(type(core.engine_thread), "status", EngineStatus())
        await driver.shows(" no model │ mem")
        monkeypatch.setattr(type(core.chat_session), "is_loading", True)
        await driver.shows(" loading │ mem")


async def test_each_turn_reuses_the_cache_and_keeps_its_own_figures():
    async with chatting() as driver:
        first = await driver.ask("hello")
        second = await driver.ask("and again")
        assert first.footer == "3 tokens · 2.0 tok/s · first word after 1.0 s"
        assert second.footer == "3 tokens · 2.0 tok/s · first word after 1.1 s"
        assert second.details == "6 read · 8 cached"
        driver.script.seconds_per_token = 5.0
        third = await driver.ask("third?")
        texts = ["hello", "Hello there.", "and again", "Hello there.", "third?", "Hello there."]
        assert [m.text for m in driver.chat.core.chat_session.conversation.messages] == texts
        await driver.shows(third.footer)
        shown = driver.screen_text()
        places = [
            shown.index(text)
            for text in ("hello", first.footer, "and again", second.footer, "third?")
        ]
        assert places == sorted(places)


async def test_escape_sequences_and_markup_are_shown_literally():
    script = Script(replies=[list(ATTACK)])
    script.token_gate = Gate()
    async with chatting(script, size=(120, 24)) as driver:
        await driver.say(ATTACK)
        visible = "a␛]0;pwned␇b [@click=app.quit]x[/] [/ [red]y <b>h</b> �2J �desrever� end"
        await driver.until(lambda: visible in driver.screen_text(), "the user's own text, cleaned")
        script.token_gate.allow(len(ATTACK) - 4)
        await driver.until(
            lambda: driver.screen_text().count("[@click=app.quit]x[/] [/ [red]y <b>h</b>") == 2
        )
        script.token_gate.open()
        reply = await driver.last_reply()
        assert reply.text == visible.replace("�desrever�", "\u202edesrever\u202c")
        assert driver.screen_text().count(visible) == 2
        assert not set(map(chr, range(32))) - {"\n"} & set(driver.screen_text())


async def test_invisible_characters_are_saved_and_harmless_on_screen():
    text = "ភាសា\u200bខ្មែរ Elek\u00adtro \u2067x\u2069 \u202bab\u202c t\U000e0041\U000e0042z"
    shown = "Elektro x \ufffdab\ufffd t\ufffd\ufffdz"
    script = Script(replies=[[text[:30], text[30:]]])
    async with chatting(script, size=(120, 24)) as driver:
        driver.prompt.post_message(Paste(text))
        await driver.shows("t\ufffd\ufffdz")
        assert not {"\u202b", "\u2067", "\u00ad", "\U000e0041"} & set(driver.screen_text())
        await driver.pilot.press("enter")
        reply = await driver.last_reply()
        assert [
            message.text for message in driver.chat.core.chat_session.conversation.messages
        ] == [
            text,
            text,
        ]
        assert reply.text == text
        await driver.until(lambda: driver.screen_text().count(shown) == 2, "message and reply")
        assert not {"\u202b", "\u2067", "\u00ad", "\U000e0041"} & set(driver.screen_text())


async def test_the_models_name_and_errors_are_cleaned_too():
    script = Script()
    async with chatting(script, model="evil\x1b[31m[red]name.gguf") as driver:
        await driver.shows("evil␛[31m[red]name · Q4_K_M")
        script.fail_after_tokens = 0
        script.generate_error = BrokenModelError("bad \x1b[2J [/] weights")
        await driver.say("hi")
        await driver.note("bad ␛[2J [/] weights")


async def test_a_message_sent_during_a_reply_is_answered_in_its_turn():
    script = Script(replies=[tokens("One."), tokens("Two.")], token_gate=Gate())
    async with chatting(script) as driver:
        await driver.say("first?")
        await driver.until(script.token_gate.waiting.is_set)
        await driver.type("second?")
        await driver.shows("│ second?")  # letters appear at once
        await driver.pilot.press("enter")
        await driver.shows("queued")
        assert [m.text for m in driver.chat.core.chat_session.conversation.messages] == ["first?"]
        script.token_gate.open()
        await driver.until(lambda: len(driver.chat.core.chat_session.conversation.messages) == 4)
        assert [m.text for m in driver.chat.core.chat_session.conversation.messages] == [
            "first?",
            "One.",
            "second?",
            "Two.",
        ]
        await driver.hides("queued")
        views = [
            view for view in driver.transcript.query("*") if isinstance(view, UserView | ReplyView)
        ]
        assert [type(view) for view in views] == [UserView, ReplyView, UserView, ReplyView]


async def test_what_is_sent_while_the_model_compiles_is_answered():
    script = Script(open_gate=Gate())
    async with chatting(script, wait=False) as driver:
        await driver.until(script.open_gate.waiting.is_set)
        await driver.shows("You can type now")
        await driver.say("early bird")
        await driver.shows("queued")
        script.open_gate.allow(2)
        await driver.shows("First-time setup for this CPU: 1 of 2")
        await driver.shows("setup 1/2")
        script.open_gate.open()
        assert (await driver.last_reply()).text == "Hello there."
        await driver.hides("First-time setup")


async def test_reading_a_prompt_is_shown_and_can_be_stopped():
    script = Script(prefill_gate=Gate())
    async with chatting(script, size=(100, 24)) as driver:
        await driver.say("a question of some length indeed")
        script.prefill_gate.allow(4)
        await driver.shows("reading 4 of 10 tokens · 10.0 tok/s · about 1 s left")
        await driver.pilot.press("escape")
        await driver.note("stopped before the reply began")
        await driver.shows("not answered")
        script.prefill_gate.open()
        await driver.say("/regen")
        await driver.last_reply()
        texts = [m.text for m in driver.chat.core.chat_session.conversation.messages]
        assert texts == ["a question of some length indeed", "Hello there."]


async def test_no_token_is_lost_however_fast_and_none_is_shown_too():
    text = " ".join(str(i) for i in range(2000))
    async with chatting(Script(replies=[[], tokens(text)], n_ctx=8192)) as driver:
        assert (await driver.ask("say nothing")).footer.startswith("(empty reply)")
        reply = await driver.ask("count")
        assert reply.text == text
        assert shown_source(reply.body) == text


async def test_a_long_open_block_is_shown_whole_while_it_streams():
    code = "\n".join(f"value_{i} = {i}" for i in range(200))
    script = Script(
        replies=[tokens(f"```python\n{code}\n```\n\nDone.")], token_gate=Gate(), n_ctx=4096
    )
    async with chatting(script) as driver:
        await driver.say("write code")
        script.token_gate.allow(300)
        await driver.until(
            lambda: driver.transcript.replies() and script.token_gate.waiting.is_set()
        )
        body = driver.transcript.replies()[0].body
        await driver.until(lambda: shown_source(body) == body.text)
        last_line = body.text.rsplit("\n", 1)[-1]
        await driver.until(lambda: last_line in driver.screen_text())
        script.token_gate.open()
        reply = await driver.last_reply()
        assert reply.text.endswith("Done.")
        await driver.shows("Done.")


async def test_without_a_model_a_message_stays_and_a_file_is_loaded():
    async with chatting(Script(missing={"nosuch.gguf"}), model=None) as driver:
        await driver.note("No model is loaded. F3 or /models lists")
        await driver.say("anyone there?")
        await driver.until(lambda: len(driver.notes()) == 2)
        assert driver.prompt.text == "anyone there?"
        await driver.say("/model some/where/tiny.gguf")
        await driver.ready()
        await driver.shows("tiny · Q4_K_M")
        await driver.ask("hello")
        n_loading = sum("loading" in note for note in driver.notes())
        await driver.say("/model nosuch.gguf")
        await driver.note("nosuch.gguf: no such file (check the path)")
        assert type(driver.app.screen).__name__ == "ChatScreen"
        assert driver.chat.core.chat_session.model is not None
        assert sum("loading" in note for note in driver.notes()) == n_loading


async def test_a_model_that_fails_to_load_leaves_a_chat_that_goes_on():
    script = Script(open_error=GGUFError("bad.gguf: not a GGUF file"))
    async with chatting(script, wait=False) as driver:
        await driver.note("bad.gguf: not a GGUF file")
        script.open_error = None
        await driver.say("/model good.gguf")
        await driver.ready()


async def test_errors_and_bugs_are_one_line_each_and_the_chat_goes_on():
    async with chatting() as driver:
        script = driver.script
        script.fail_after_tokens = 2
        await driver.say("hi")
        await driver.note("model.gguf: the model computed NaN")
        reply = await driver.last_reply()
        assert reply.footer.endswith("failed")
        script.fail_after_tokens = None
        script.prefill_error = ZeroDivisionError("secret words")
        await driver.say("secret words")
        note = await driver.note("internal error in the engine: ZeroDivisionError")
        assert "secret" not in note
        script.prefill_error = None
        await driver.ask("again")


async def test_a_message_that_does_not_fit_comes_back_with_counts():
    async with chatting(Script(n_ctx=64)) as driver:
        await driver.say("word " * 80)
        note = await driver.note("Not sent")
        assert "the context holds 64" in note
        assert "larger context_size" in note
        assert driver.prompt.text.startswith("word word")
        assert driver.chat.core.chat_session.conversation.is_empty


@pytest.mark.smoke
@pytest.mark.slow
async def test_a_form_is_chosen_and_taken_back(tmp_path):
    (tmp_path / "city.json").write_text('{"type":"string","format":"postcode"}')
    (tmp_path / "bad.json").write_text('{"type":"nothing"}')
    async with chatting() as driver:
        await driver.say(f"/schema {tmp_path}/city.json")
        await driver.note("answers as city.json from the next message on")
        await driver.say(f"/schema {tmp_path}/bad.json")
        await driver.note("bad.json cannot be used")
        await driver.say("/schema")
        await driver.note("answers as city.json. /schema FILE")
        await driver.say("/schema off")
        await driver.note("answers in any form")


async def test_adapters_are_chosen_shown_and_taken_back():
    script = Script()
    script.open_errors["bad.gguf"] = GGUFError("bad.gguf: is no adapter")
    async with chatting(script) as driver:
        await driver.say("/lora /x/a.gguf:0.5")
        await driver.note("adapter a.gguf:0.5 from the next message on")
        assert driver.chat.core.chat_session.conversation.options.adapters == ("/x/a.gguf:0.5",)
        await driver.say("/lora /x/bad.gguf")
        await driver.note("bad.gguf: is no adapter")
        await driver.say("/lora")
        await driver.note("adapter a.gguf:0.5. /lora FILE[:SCALE] ...")
        await driver.say("/lora off")
        await driver.say("a message that waits for it")
        await driver.note("no adapter from the next message on")
        await driver.until(
            lambda: driver.chat.core.chat_session.conversation.last_reply is not None
        )
        assert script.opened[0].adapter_calls == [[("a.gguf", 0.5)], []]


async def test_a_refused_command_is_never_part_of_what_is_typed_next():
    refused = {
        "/hlep me": "Unknown command /hlep. Did you mean /help? Up brings it back.",
        "/qqxzzy": "Unknown command /qqxzzy. /help lists them",
        "/title": "usage: /title",
        "/new x": "/new takes no argument",
        "/theme nosuch": "nosuch",
        "/set temperature hot": "temperature",
        "/preset nosuch": "nosuch",
    }
    async with chatting() as driver:
        for command, answer in refused.items():
            await driver.say(command)
            await driver.note(answer)
            await driver.type("a")
            assert driver.prompt.text == "a", command
            driver.prompt.show_draft(Draft(""))
            await driver.pilot.press("up")
            assert driver.prompt.text == command
            driver.prompt.show_draft(Draft(""))
        assert driver.chat.core.chat_session.conversation.is_empty
        await driver.ask("/etc/fstab has what in it?")  # a path is a message


async def test_a_reply_is_made_again_and_new_forgets_all_at_rest():
    script = Script(
        replies=[tokens("First."), tokens("Second."), tokens("Third.")], token_gate=Gate()
    )
    async with chatting(script) as driver:
        await driver.say("hello")
        await driver.until(script.token_gate.waiting.is_set)
        await driver.say("/new")
        await driver.note("the engine is busy")
        assert driver.chat.core.chat_session.is_answering
        script.token_gate.open()
        first = await driver.last_reply()
        assert first.text == "First."
        await driver.say("/regen")
        await driver.until(lambda: driver.transcript.replies()[-1] is not first)
        assert (await driver.last_reply()).text == "Second."
        await driver.hides("First.")
        assert [m.text for m in driver.chat.core.chat_session.conversation.messages] == [
            "hello",
            "Second.",
        ]
        await driver.say("/new")
        await driver.note("New conversation")
        assert driver.chat.core.chat_session.conversation.is_empty
        assert not driver.transcript.query(UserView)
        await driver.ask("hello again")
        assert read_by(driver) == "hello againThird."


async def test_the_system_prompt_can_be_shown_set_and_taken_away():
    async with chatting(system_prompt="Speak like a pirate.") as driver:
        await driver.say("/system")
        await driver.note("system prompt: Speak like a pirate.")
        await driver.ask("hello")
        assert read_by(driver).startswith("Speak like a pirate.")
        await driver.say("/system Be brief.")
        await driver.note("system prompt from the next message on: Be brief.")
        await driver.ask("again")
        assert read_by(driver).startswith("Be brief.hello")
        await driver.say("/system -")
        await driver.note("system prompt from the next message on: none")
        assert driver.chat.core.chat_session.conversation.system is None
        await driver.say("/system")
        await driver.note("There is no system prompt")


async def test_a_reply_is_copied_and_saved_and_no_file_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "TERM_PROGRAM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    path = tmp_path / "talk.md"
    async with chatting() as driver:
        await driver.say("/copy")
        await driver.note("there is no reply to copy")
        await driver.ask("hello")
        await driver.say("/copy")
        await driver.note("sent to the terminal's clipboard")
        assert driver.app.clipboard == "Hello there."
        await driver.say(f"/save {path}")
        await driver.note(f"saved: {path}")
        text = path.read_text(encoding="utf-8")
        assert text.startswith('---\nprogram: "jalopy"\nmodel: "model Q4_K_M"\n')
        assert "## You\n\nhello\n" in text
        assert "*3 tokens · 2.0 tok/s · first word after 1.0 s · 5 read*" in text
        assert path.stat().st_mode & 0o777 == 0o600
        path.write_text("precious", encoding="utf-8")
        await driver.say(f"/save {path}")
        await driver.note("exists already")
        assert path.read_text(encoding="utf-8") == "precious"


async def test_help_lists_keys_and_commands_and_escape_leaves_it():
    async with chatting(size=(80, 90)) as driver:
        await driver.pilot.press("f1")
        await driver.until(lambda: isinstance(driver.app.screen, HelpScreen))
        await driver.shows("/regen, /retry")
        await driver.shows("ctrl+j, shift+Enter, alt+Enter")
        first = driver.screen_text().partition("Start here")[2].partition("At the prompt")[0]
        assert all(
            keys in first
            for keys in ("Enter", "Esc", "Tab", "F2", "F3", "F7", "F8", "ctrl+p", "ctrl+q")
        )
        keys = [row.split("  ")[0] for row in driver.screen_text().splitlines()]
        assert len([key for key in keys if "F2" in key]) == 1, "each key is listed once"
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is driver.chat)
        await driver.say("/help")
        await driver.until(lambda: isinstance(driver.app.screen, HelpScreen))


async def test_typing_filters_the_help_and_escape_clears_that_first():
    async with chatting() as driver:
        await driver.pilot.press("f1")
        await driver.shows("Help · type to filter")
        await driver.type("pdf")
        await driver.shows("Help: pdf_")
        await driver.shows("/read file ...")
        await driver.hides("Start here")
        await driver.type("qz")
        await driver.shows("No key or command has all these words")
        await driver.pilot.press("escape")
        await driver.shows("Start here")
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is driver.chat)


def test_every_command_is_in_one_group_of_the_help():
    grouped = [action_id for group in GROUPS.values() for action_id in group]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) <= ACTIONS.keys()
    assert {i for i, action in ACTIONS.items() if action.slash} <= set(grouped)


async def test_the_palette_begins_with_what_was_used():
    async with chatting() as driver:
        await driver.pilot.press("ctrl+p")
        await driver.shows("Chat     Start a new conversation")
        await driver.hides("Send the message")
        await driver.type("fills")
        await driver.shows("Show what fills the context")
        await driver.hides("Start a new conversation")
        await driver.pilot.press("enter")
        await driver.note("Context: ")
        await driver.pilot.press("ctrl+p")
        await driver.shows("Used     Show what fills the context")


async def test_the_palette_has_every_action_and_carries_it_out():
    async with chatting() as driver:
        commands = {
            command.title: command for command in driver.app.get_system_commands(driver.chat)
        }
        wanted = {a.title for a in ACTIONS.values() if a.scope in ("app", "chat", "prompt")}
        assert wanted - {ACTIONS["app.command_palette"].title} <= set(commands)
        assert (
            commands["Save the conversation as Markdown"].help
            == "ctrl+s   /save [path] [+thinking]"
        )
        assert commands["Send the message"].help == "Enter"
        driver.prompt.show_text("hello")
        await commands["Send the message"].callback()
        await driver.last_reply()
        await commands["Copy the last reply"].callback()
        await driver.until(lambda: driver.app.clipboard == "Hello there.")
        commands["Load a model file"].callback()
        assert driver.prompt.text == "/model "


async def test_the_palette_of_a_screen_offers_only_its_own_actions():
    async with chatting(save_conversations="on") as driver:
        for scope in ("performance", "conversations"):
            await driver.pilot.press(ACTIONS[f"app.{scope}"].keys)
            await driver.until(lambda scope=scope: driver.app.current_mode == scope)
            commands = driver.app.get_system_commands(driver.app.screen)
            wanted = [
                a.title
                for a in ACTIONS.values()
                if a.scope in ("app", scope) and a.name != "command_palette"
            ]
            assert [command.title for command in commands] == wanted


async def test_the_palette_finds_words_in_one_row_each() -> None:
    found = {
        "export": "/save",
        "attach": "/read file ...",
        "pdf": "/read file ...",
        "temperature": "/set",
    }
    async with chatting() as driver:
        await driver.pilot.press("ctrl+p")
        await driver.shows("Start a new conversation")
        typed = driver.app.screen.query_one(Input)
        await driver.type("e")
        await driver.until(lambda: typed.value == "e")
        for word, wanted in found.items():
            typed.value = word
            await driver.hides("Start a new conversation")
            await driver.shows(wanted)
            row = next(line for line in driver.screen_text().splitlines() if wanted in line)
            assert len(row.strip("│ ").split()[0]) > 2, "name and command in one row"
            typed.value = "zz"
            await driver.hides(wanted)


async def test_the_palette_shows_brackets_as_text(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.tui.app.persona_names", lambda: ["[b]old", "x[@click=app.quit]y"])
    async with chatting(size=(80, 120)) as driver:
        await driver.pilot.press("ctrl+p")
        await driver.until(lambda: "Persona" in driver.screen_text(), "the palette")
        await driver.until(lambda: "Persona: [b]old" in driver.screen_text(), "the persona")
        shown = driver.screen_text()
        assert "Persona: x[@click=app.quit]y" in shown
        await driver.type("e")
        await driver.shows("/copy [code 2|thinking] [file]")
        await driver.shows("/theme [name]")
        await driver.pilot.press("backspace")
        await driver.type("person")
        await driver.until(
            lambda: "Choose the colours" not in driver.screen_text(), "it is searched"
        )
        await driver.shows("Persona: [b]old")
        await driver.shows("/persona x[@click=app.quit]y")


async def test_the_ctrl_c_hint_goes_and_the_editing_keys_show_again(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("app.tui.app.QUIT_WINDOW_S", 1000.0)
    async with chatting() as driver:
        await driver.ask("first")
        await driver.say("/edit 1")
        await driver.shows("Enter send · Esc cancel")
        await driver.pilot.press("ctrl+up", "ctrl+c")  # it would end an edit in the prompt
        await driver.shows("again quits")
        driver.chat.core.edge.hint()  # its time is over
        await driver.hides("again quits")
        await driver.shows("Enter send · Esc cancel")
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.focused is driver.prompt)
        await driver.shows("Enter send · Esc cancel")
        await driver.pilot.press("escape")
        await driver.shows("Enter sends")


async def test_escape_and_ctrl_c_stop_a_reply_and_another_quits():
    script = Script(replies=[tokens("one two three four five")])
    async with chatting(script) as driver:
        for key in ("escape", "ctrl+c"):
            script.token_gate = gate = Gate()
            before = driver.chat.core.chat_session.conversation.last_reply
            await driver.say("count")
            gate.allow(2)
            await driver.until(gate.waiting.is_set)
            await driver.pilot.press(key)
            await driver.until(
                lambda before=before: (
                    driver.chat.core.chat_session.conversation.last_reply is not before
                )
            )
            reply = await driver.last_reply()
            assert reply.text == "one two"
            assert reply.footer.endswith("· stopped")
            assert driver.chat.core.chat_session.conversation.messages[-1].ending is Ending.STOPPED
            gate.open()
        await driver.shows("ctrl+c again quits")
        await driver.pilot.press("ctrl+c")
        await driver.until(lambda: driver.app.return_code == 0)


async def test_ctrl_c_stops_a_reply_before_it_clears_the_prompt():
    script = Script(replies=[tokens("one two three")], token_gate=Gate())
    async with chatting(script) as driver:
        await driver.say("count")
        script.token_gate.allow(1)
        await driver.until(script.token_gate.waiting.is_set)
        driver.prompt.show_text("some words")
        await driver.pilot.press("ctrl+c")
        await driver.shows("ctrl+c again clears the prompt")
        assert driver.prompt.text == "some words"
        script.token_gate.open()
        await driver.last_reply()
        await driver.pilot.press("ctrl+c")
        await driver.shows("Up brings the text back · ctrl+c again quits")
        assert driver.prompt.text == ""
        await driver.pilot.press("up")
        assert driver.prompt.text == "some words"
        driver.prompt.show_text("other words")
        await driver.pilot.press("ctrl+c", "up", "up")
        assert driver.prompt.text == "some words"
        await driver.pilot.press("down")
        assert driver.prompt.text == "other words"


async def test_ctrl_c_ends_an_edit_before_it_offers_to_quit():
    async with chatting() as driver:
        await driver.ask("sent")
        driver.prompt.show_text("draft")
        for typed, hint in (
            ("", "the edit is cancelled · ctrl+c again quits"),
            ("!", "the edit is cancelled · Up brings the text back · ctrl+c again quits"),
        ):
            driver.chat.editing.action_edit("1")
            await driver.until(lambda: driver.chat.editing.is_active)
            await driver.pilot.press(*typed, "ctrl+c")
            await driver.until(lambda: not driver.chat.editing.is_active)
            assert driver.prompt.text == "draft"
            await driver.shows(hint)
        driver.prompt.show_text("")
        await driver.pilot.press("up")
        assert driver.prompt.text == "sent!"


async def test_ctrl_c_on_a_recalled_message_keeps_the_draft_before():
    async with chatting() as driver:
        await driver.ask("sent")
        driver.prompt.show_text("draft")
        await driver.pilot.press("alt+up")
        await driver.until(lambda: driver.prompt.text == "sent")
        await driver.pilot.press("ctrl+c")
        assert driver.prompt.text == ""
        await driver.pilot.press("up")
        assert driver.prompt.text == "draft"


async def test_ctrl_c_on_another_screen_ignores_the_prompts_selection():
    script = Script(token_gate=Gate())
    async with chatting(script) as driver:
        await driver.say("hello")
        script.token_gate.allow(1)
        await driver.until(script.token_gate.waiting.is_set)
        driver.prompt.show_text("some words")
        driver.prompt.select_all()
        await driver.pilot.press("ctrl+c")
        await driver.until(lambda: driver.app.clipboard == "some words")
        assert driver.chat.core.chat_session.is_answering
        await driver.pilot.press("f2")
        await driver.until(lambda: driver.app.screen is not driver.chat)
        await driver.pilot.press("ctrl+c")
        await driver.until(lambda: not driver.chat.core.chat_session.is_answering)
        await driver.pilot.press("f1")
        await driver.until(lambda: isinstance(driver.app.screen, HelpScreen))
        await driver.pilot.press("ctrl+c")
        await driver.until(lambda: driver.app.return_code == 0)


async def test_ctrl_q_quits_in_the_middle_of_a_reply():
    script = Script(token_gate=Gate())
    async with chatting(script) as driver:
        await driver.say("hello")
        await driver.until(script.token_gate.waiting.is_set)
        await driver.pilot.press("ctrl+q")
        await driver.until(lambda: driver.app.return_code == 0)
    assert not driver.app.engine_thread.is_alive


async def test_every_size_shows_what_it_can_and_none_ends_the_chat():
    async with chatting(Script(replies=[tokens(MARKDOWN)]), size=(1, 1)) as driver:
        for size in ((1, 1), (120, 50), (20, 6), (40, 15)):
            await driver.pilot.resize_terminal(*size)
            await driver.until(lambda size=size: driver.app.size == Size(*size))
            if size < (40, 0):
                await driver.ask("go")
            await driver.pilot.press("f1", "escape", "slash", "backspace")
        await driver.until(lambda: re.search(r" 2\.0 tok/s │ ctx \d+/512", driver.screen_text()))
        await driver.pilot.resize_terminal(80, 40)
        await driver.shows("tok/s │ 2 threads │ mem")
        shown = driver.screen_text()
        for text, is_shown in (
            ("**bold**", False),
            ("bold", True),
            ("• one", True),
            ("```", False),
            (" 1 │ 2", True),
        ):
            assert (text in shown) is is_shown, text
        assert "x = 1" in shown


async def test_the_linux_console_gets_ascii_borders(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "linux")
    async with chatting() as driver:
        assert driver.app.theme == "jalopy-16"
        await driver.shows("+- Enter sends")
        await driver.hides("╭")


async def test_colours_can_be_switched_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with chatting() as driver:
        reply = await driver.ask("go")
        await driver.shows(reply.text)


async def test_the_desktop_is_told_of_a_long_answer_without_focus(monkeypatch: pytest.MonkeyPatch):
    rung: list[object] = []
    cases = [
        (60, False, "on", True),
        (60, True, "on", False),
        (4, False, "on", False),
        (60, False, "off", False),
    ]
    async with chatting(
        Script(replies=[[" word"] * n_tokens for n_tokens, *_ in cases], n_ctx=4096)
    ) as driver:
        monkeypatch.setattr(driver.app, "bell", lambda: rung.append(True))
        for n, (_, has_focus, notify, is_told) in enumerate(cases):
            driver.app.live.now = dataclasses.replace(driver.app.live.now, notify=notify)
            driver.app.app_focus = has_focus
            driver.prompt.post_message(PromptSubmitted(Draft("hello")))
            await driver.until(lambda n=n: len(driver.transcript.replies()) == n + 1)
            await driver.last_reply()
            assert bool(rung) is is_told
            rung.clear()


async def test_who_is_greeted_hears_once_what_suits_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.tui.chat.screen.is_starter", lambda path: True)
    monkeypatch.setattr(
        "app.models.library.measure.memory_for_models", lambda: MachineMemory(8 << 30, 6 << 30)
    )
    original = chat_driver.options_for
    loads = [1.5, 1.5, 0.0, 0.0]
    load = SimpleNamespace(begin=bool, end=lambda: Conditions(others_cores=loads.pop(0)))
    history = {
        "open_history": lambda: ReplyHistory(paths.speeds_file()),
        "watch_conditions": lambda: load,
    }
    monkeypatch.setattr(
        chat_driver, "options_for", lambda script: dataclasses.replace(original(script), **history)
    )
    script = Script(replies=[["one."], ["two."]])
    async with chatting(script) as driver:
        assert script.n_bandwidth_probes == 0
        await driver.ask("hello")
        await driver.until(
            lambda: script.n_bandwidth_probes == 1, "measured next to a busy program"
        )
        assert not [note for note in driver.notes() if "This machine reads" in note]
        await driver.ask("again")
        line = await driver.note("This machine reads memory at 10 GB/s. ")
        assert " suits it best: ~" in line
        assert " tok/s (estimated); F7 gets it" in line
        assert line.endswith("; F3 or /models lists more")
        assert script.n_bandwidth_probes == 2
    async with chatting(Script(), resume="new") as driver:  # the next start has it measured
        known = await driver.note("This machine reads memory at")
        assert known == line
        await driver.ask("hello")
        assert [note for note in driver.notes() if "This machine reads" in note] == [known]


async def test_work_that_gives_way_before_it_begins_leaves_no_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    async with chatting() as driver:
        driver.chat.welcome.greet()
        for _ in range(2):  # an exclusive worker cancels the one before
            driver.chat.welcome.describe_machine()
            driver.chat.models.action_model("no-such.gguf")
        await driver.note("no-such.gguf")
        gc.collect(1)  # what this test made
    assert [str(one.message) for one in recwarn if "never awaited" in str(one.message)] == []


async def test_a_real_model_is_named_once_where_the_starter_declines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.tui.chat.welcome.is_starter", lambda path: True)
    monkeypatch.setattr(
        "app.models.library.known_models.real_model_line",
        lambda settings, *keys: f"A real model: {keys[0]}",
    )
    unknown = answers_to(["Who wrote the Rigveda?"])[0]
    async with chatting(Script(replies=[["Lima."], [unknown], [unknown]])) as driver:
        await driver.ask("hello")
        assert "A real model: F7" not in driver.notes()
        await driver.ask("Who?")
        await driver.note("A real model: F7")
        await driver.ask("Who?")
        assert driver.notes().count("A real model: F7") == 1
        await driver.say("/new")
        await driver.note("New conversation")
        await driver.ask("Who?")
        await driver.note("A real model: F7")


async def test_the_edge_names_keys_for_the_new_width_at_once():
    async with chatting() as driver:
        await driver.shows("F5 doctor")
        for timer in driver.app.screen._timers:
            timer.pause()
        await driver.pilot.resize_terminal(60, 24)
        await driver.shows("F4 tune · F5 doctor ─╯")
