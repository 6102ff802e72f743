"""Slash commands of the line mode."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.backend.local import engine_access
from app.cli import line_mode as plain
from app.cli.line_commands import LineCommands, possible
from app.conversations.conversation import Conversation
from app.conversations.store import Store
from app.program import clipboard, exit_codes, paths
from app.program.settings import Source, built_in_settings
from app.tui.actions import commands
from engine.errors import GGUFError
from tests.app.fake_engine import Script
from tests.app.scripted_access import use_script

HeadlessChat = Callable[..., str]

NEED_THE_SCREEN = {"delete", "fork",
    "get",
    "answers", "doctor", "editor", "models", "place", "documents", "settings", "stats", "strip",
    "theme", "tune", "unfold",
    "unsend", "find", "outline", "prompt", "paste", "detail",
}  # fmt: skip


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    return use_script(monkeypatch, Script(replies=[["one", "."], ["two", "."], ["three", "."]]))


@pytest.fixture
def talk(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> HeadlessChat:
    def say(*lines: str, **settings: Any) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        assert (
            plain.chat("m.gguf", replace(built_in_settings(), **settings), script.clock)
            == exit_codes.OK
        )
        say.out, err = capsys.readouterr()  # type: ignore[attr-defined]
        return err

    return say


def texts(conversation_id: str = "000001") -> list[str]:
    return [message.text for message in Store().read(conversation_id).conversation.messages]


def cache_text(script: Script) -> str:
    model = script.opened[-1]
    return model.tokenizer.decode(model.sessions[0].tokens)


def test_every_command_works_here_or_needs_the_screen() -> None:
    here = {action.command for action in possible()}
    assert here | NEED_THE_SCREEN == {action.command for action in commands()}
    assert not here & NEED_THE_SCREEN


def test_an_edit_is_a_branch_that_can_be_left_and_deleted(
    talk: HeadlessChat, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    err = talk("uno", "/edit", "due", "/branch")
    assert texts() == ["uno", "one."]
    assert "‹ 1/2 › from message 1\nuno\n" in err
    err = talk("/branch 2", "/branch 3", "/branch delete", resume="last")
    assert texts() == ["due", "two."]
    assert "/branch takes a number from 1 to 2" in err
    assert "not deleted: a yes at a terminal deletes it" in err
    asked: list[str] = []
    monkeypatch.setattr(plain, "can_ask", lambda: True)
    monkeypatch.setattr(plain, "agrees", lambda question: not asked.append(question))
    err = talk("/branch delete", "/branch", resume="last")
    assert asked == ["Delete this branch ‹ 2/2 › from message 1, with the 1 message after it?"]
    assert texts() == ["uno", "one."]
    assert "there is only one branch" in err


def test_commands_for_the_screen_say_so_and_send_nothing(
    talk: HeadlessChat, script: Script
) -> None:
    err = talk("/theme nord\n/xyzzy\n/quantzie\n/hlep")
    assert (
        "/theme needs the screen, nothing was sent (/help lists what this mode has; a leading"
        in err
    )
    assert "/quantzie is not a command, nothing was sent (/help lists them" in err
    assert "/hlep is not a command, nothing was sent (nearest: /help;" in err
    assert "/xyzzy is not a command, nothing was sent (/help lists them; a leading" in err
    assert script.opened[0].sessions[0].fed_counts == []


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("/title", "usage: /title words, for example /title A walk by the sea"),
        ("/new x", "takes no argument"),
    ],
)
def test_missing_and_extra_arguments_are_reported(talk: HeadlessChat, line: str, text: str) -> None:
    assert text in talk(line)


def test_set_changes_the_generation(talk: HeadlessChat, script: Script) -> None:
    err = talk("/set temperature 0.3", "first", "/set temperature 111", "/set keep", "/set")
    assert "temperature 0.3 from the next message on (/set keep remembers it)" in err
    assert "/set temperature: the value is 111; allowed: a number from 0 to 100" in err
    assert script.opened[0].sessions[0].samplings[-1].chosen["temperature"] == 0.3
    assert "temperature 0.3. /set" in talk("/set")  # the next start of this model
    sampling = replace(built_in_settings().sampling, temperature=1.5)
    choices = {"sampling": sampling, "sources": {"sampling.temperature": Source.COMMAND_LINE}}
    assert "temperature is 1.5 (command line)" in talk("/set temperature", **choices)


def test_an_alias_does_the_same(talk: HeadlessChat) -> None:
    talk("first", "/retry", "/bye", "never sent")
    assert texts() == ["first", "two."]


def test_a_stopped_reply_is_continued(talk: HeadlessChat, script: Script) -> None:
    script.replies = [["one", " two", " three"]]
    settings = replace(built_in_settings().sampling, max_tokens=1)
    err = talk("first", "/continue", "/continue", sampling=settings)
    assert texts() == ["first", "one two three"]
    assert talk.out == "one\n two\n three\n"  # type: ignore[attr-defined]
    assert "stopped at the token limit" in err


def test_continue_without_a_stopped_reply_says_so(talk: HeadlessChat) -> None:
    assert "there is no unfinished answer" in talk("first", "/continue")


def test_an_earlier_message_is_edited_and_sent_again(talk: HeadlessChat, script: Script) -> None:
    err = talk("first", "second", "/edit 1", "other")
    assert "editing message 1: the next line is asked in its place" in err
    assert texts() == ["other", "three."]
    assert cache_text(script) == "otherthree."


def test_an_empty_line_cancels_the_edit(talk: HeadlessChat) -> None:
    err = talk("first", "/edit", "", "second")
    assert "everything stays as it was" in err
    assert texts() == ["first", "one.", "second", "two."]


def test_a_command_cancels_the_edit(talk: HeadlessChat) -> None:
    talk("first", "/edit", "/title renamed", "second")
    assert texts() == ["first", "one.", "second", "two."]


def test_a_reply_is_edited_and_continued(talk: HeadlessChat, script: Script) -> None:
    script.replies = [["one", " two", " three"]]
    talk("first", "/edit reply", "one")
    assert texts() == ["first", "one two three"]
    assert Store().read("000001").conversation.messages[-1].is_edited


@pytest.mark.parametrize(
    ("argument", "text"), [("7", "a number from 1 to 1"), ("x", "`reply` for the last reply")]
)
def test_a_missing_message_is_not_edited(talk: HeadlessChat, argument: str, text: str) -> None:
    assert text in talk("first", f"/edit {argument}")
    assert "there is no message to edit yet" in talk("/new", "/edit")


def test_a_conversation_gets_a_title(talk: HeadlessChat) -> None:
    err = talk("/title too soon", "first", "/title  My \x1b notes")
    assert "nothing is saved yet" in err
    assert Store().read("000001").title == "My ␛ notes"


def test_a_persona_starts_a_conversation(
    talk: HeadlessChat, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = paths.personas_dir()
    assert directory is not None
    assert "personas: plain, reviewer, translator" in talk("/persona")
    directory.mkdir(parents=True)
    (directory / "pirate.md").write_text("Talk like a pirate.", encoding="utf-8")
    err = talk("/persona", "/persona no one", "/persona pirate", "first")
    assert "personas: pirate" in err
    assert "there is no persona 'no one' (known: pirate, plain, reviewer, translator)" in err
    assert cache_text(script).startswith("Talk like a pirate.first")


def test_a_preset_sets_its_parameters_and_is_saved(talk: HeadlessChat, script: Script) -> None:
    err = talk(
        "/set temperature 0.5",
        "/system Be brief.",
        "/preset save brief",
        "/set reset",
        "/preset brief",
        "/set",
    )
    assert "/persona brief starts a chat with it" in err
    assert "new conversation with persona brief: temperature 0.5" in err
    assert "temperature 0.5. /set temperature" in err
    assert "Saved" in talk("/preset save other", system_prompt="Be kind.")


def test_a_file_is_attached_to_the_next_message(talk: HeadlessChat, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a\x1bb", encoding="utf-8")
    err = talk(
        f"/read {tmp_path}/notes.txt", "what is this?", "and now?", f"/read {tmp_path}/none.txt"
    )
    assert "with the next message: notes.txt: about 13 tokens" in err
    assert "No such file" in err
    first, _, second, _ = texts()
    assert first == "notes.txt:\n```\na␛b\n```\n what is this?"
    assert second == "and now?"
    assert Store().read("000001").title == "what is this?"


def test_each_question_adds_new_passages_of_a_large_folder(
    talk: HeadlessChat, tmp_path: Path
) -> None:
    for word in ("fan", "screw", "blade"):
        (tmp_path / f"{word}.md").write_text(f"{word} turns. " * 50)
    err = talk(f"/read {tmp_path}", "a fan?", "a screw?", "thank you", "/new", "a fan?")
    assert "Each question will get the passages that match it" in err
    first, _, second, _, third, _ = texts()
    assert first.startswith("fan.md, line 1:\n```\nfan turns.")
    assert second.startswith("screw.md, line 1:\n```\nscrew turns.")
    assert second.count("```") == 2
    assert (third, texts("000002")[0]) == ("thank you", "a fan?")


def test_saving_a_conversation_never_replaces_a_file(talk: HeadlessChat, tmp_path: Path) -> None:
    err = talk(
        "/save",
        "first",
        f"/save {tmp_path}/a.md",
        f"/save {tmp_path}/a.md",
        f"/save {tmp_path}/a.json",
    )
    assert "there is nothing to save yet" in err
    assert "exists already" in err
    assert "one." in (tmp_path / "a.md").read_text(encoding="utf-8")
    assert '"one."' in (tmp_path / "a.json").read_text(encoding="utf-8")


def test_thinking_is_shown(talk: HeadlessChat, script: Script) -> None:
    script.replies = [["<think>", "hm", "</think>", "Yes."]]
    script.control = frozenset({"<think>", "</think>"})
    err = talk("/think", "why?", "/think")
    assert "there is no thinking in the last reply" in err
    assert "> hm\n" in err


def test_the_thinking_mode_is_chosen_and_remembered(talk: HeadlessChat) -> None:
    err = talk("/think loud", "/think OFF", "/think")
    assert "'loud' is not a way to think (/think on, off or auto" in err
    assert "thinking off from the next message on; remembered for this model" in err
    assert "there is no thinking in the last reply; thinking off (/think on" in err
    assert " · thinking off · /help" in talk()
    assert " · thinking at most 9 tokens" in talk("/think auto", thinking="9")
    assert "thinking" not in talk()


@pytest.mark.parametrize(
    ("argument", "copied"),
    [("", "see\n```\nx = 1\n```"), ("code", "x = 1"), ("code 2", None), ("nothing", None)],
)
def test_an_answer_or_its_code_is_copied(
    talk: HeadlessChat,
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    argument: str,
    copied: str | None,
) -> None:
    script.replies = [["see\n", "```\n", "x = 1\n", "```"]]
    copied_texts: list[str] = []

    async def copy(text: str, *_: Any) -> str:
        copied_texts.append(text)
        return "copied"

    monkeypatch.setattr(clipboard, "copy", copy)
    err = talk("first", f"/copy {argument}")
    assert copied_texts == ([copied] if copied is not None else [])
    assert (
        "copied" in err
        if copied is not None
        else ("code blocks 1 to 1" in err or "usage: /copy" in err)
    )


def test_without_a_clipboard_a_copy_is_a_file(
    talk: HeadlessChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WAYLAND_DISPLAY", "DISPLAY", "TERM_PROGRAM"):
        monkeypatch.delenv(name, raising=False)
    err = talk("first", "/copy")
    path = Path(err.split("written to ")[1].splitlines()[0])
    assert path.read_text(encoding="utf-8") == "one."


def test_another_model_continues_the_conversation(
    talk: HeadlessChat, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_access, "check_model", lambda path: None)
    err = talk("first", "/model other.gguf", "second")
    assert "jalopy: other · Q4_K_M" in err
    assert "read the conversation again: " in err
    assert cache_text(script) == "firstone.secondtwo."
    assert len(script.opened) == 2


def test_the_open_model_stays_if_another_cannot_open(
    talk: HeadlessChat, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(path: Path) -> None:
        raise GGUFError("other.gguf: broken")

    monkeypatch.setattr(engine_access, "check_model", check)
    err = talk("first", "/model other.gguf", "second")
    assert "other.gguf: broken; the previous model stays open" in err
    assert texts() == ["first", "one.", "second", "two."]


def test_threads_are_shown_and_set(talk: HeadlessChat, script: Script) -> None:
    err = talk("/threads", "/threads 1 3", "/threads 99")
    assert "2 threads" in err
    assert "now 1 thread writing, 3 reading" in err
    assert "99 threads are not possible" in err
    assert script.opened[0].thread_calls[-1] == (1, 3)


def test_conversations_are_listed(talk: HeadlessChat) -> None:
    err = talk("first", "/new", "second", "/conversations")
    assert "    1  " in err
    assert "*    2  " in err
    assert "2 saved" in err
    assert "conversations are not saved" in talk("/conversations", save_conversations="off")


def test_adapters_are_listed_changed_and_removed(talk: HeadlessChat, script: Script) -> None:
    script.open_errors["bad.gguf"] = GGUFError("bad.gguf: is for models of 'qwen2', not of 'llama'")
    err = talk(
        "hi",
        "/lora",
        "/lora a.gguf 'b c.gguf:0.5'",
        "/lora",
        "/lora bad.gguf",
        "more",
        "/lora off",
        "/lora a:nan",
    )
    assert "no adapter. /lora FILE[:SCALE] ..." in err
    assert err.count("adapters a.gguf, b c.gguf:0.5") == 2
    assert "> bad.gguf: is for models of 'qwen2', not of 'llama'" in err
    assert "no adapter from the next message on" in err
    assert "the scale of a is nan: must be a number" in err
    assert script.opened[0].adapter_calls == [[("a.gguf", 1.0), ("b c.gguf", 0.5)], []]


def test_adapters_are_saved_with_the_conversation(
    talk: HeadlessChat, script: Script, tmp_path: Path
) -> None:
    adapter = str(tmp_path / "a.gguf")
    talk("hi", adapters=(f"{adapter}:2",))
    assert Store().read("000001").conversation.options.adapters == (f"{adapter}:2",)
    talk("more", "/lora other.gguf", "/new", "/lora", resume="last")
    assert script.opened[-1].adapter_calls == [[("a.gguf", 2.0)], [("other.gguf", 1.0)]]
    assert Store().read("000001").conversation.options.adapters == (str(Path.cwd() / "other.gguf"),)
    assert "adapter a.gguf." in talk("/lora", "now", resume="last", adapters=(adapter,))
    assert Store().read("000001").conversation.options.adapters == (adapter,)


def test_a_model_with_a_missing_adapter_does_not_open(talk: HeadlessChat, script: Script) -> None:
    script.open_errors["a.gguf"] = GGUFError("a.gguf: no such file (check the path)")
    with pytest.raises(GGUFError, match="no such file"):
        talk("hi", adapters=("/none/a.gguf",))
    assert script.opened[-1].is_closed


def test_answers_follow_a_schema_until_it_is_turned_off(talk: HeadlessChat, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text('{"type":"array"}')
    text = talk(
        f"/schema {tmp_path}/list.json",
        "/schema",
        "/schema off",
        "hi",
        f"/schema {tmp_path}/none.json",
    )
    assert "answers as list.json from the next message on" in text
    assert "answers as list.json. /schema FILE uses a JSON schema" in text
    assert "answers in any form" in text
    assert talk.out.startswith("one.")  # type: ignore[attr-defined]
    assert "none.json: No such file" in text


def test_an_at_sign_in_piped_text_reads_no_file(talk: HeadlessChat, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a note", encoding="utf-8")
    talk(f"what is @{tmp_path}/notes.txt about?")
    assert texts()[0] == f"what is @{tmp_path}/notes.txt about?"


@pytest.mark.parametrize(("agrees", "is_read"), [(True, True), (False, False)])
def test_a_file_named_in_a_line_is_attached_after_a_question(
    talk: HeadlessChat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agrees: bool, is_read: bool
) -> None:
    (tmp_path / "notes.txt").write_text("a note", encoding="utf-8")
    questions: list[str] = []
    monkeypatch.chdir(tmp_path)
    lines = iter(["see @notes.txt, please", "see @none", None])
    monkeypatch.setattr(plain, "can_ask", lambda: True)
    monkeypatch.setattr(plain, "_read_line", lambda: next(lines))
    monkeypatch.setattr(plain, "agrees", lambda question: questions.append(question) or agrees)
    talk()
    assert questions == ["attach notes.txt (6B)?"]
    assert ("a note" in texts()[0]) == is_read


@pytest.mark.parametrize(("agrees", "n_asked"), [(None, 0), (False, 2), (True, 1)])
def test_files_are_sent_to_a_server_after_a_yes(
    tmp_path: Path, agrees: bool | None, n_asked: int
) -> None:
    (tmp_path / "notes.txt").write_text("a note", encoding="utf-8")
    questions: list[str] = []
    sent: list[str] = []
    chat_session = SimpleNamespace(
        model=SimpleNamespace(server="api.example", n_ctx=4096, tokens_ratio=1.0)
    )
    chat_session.conversation = Conversation()
    status = SimpleNamespace(usual_prefill_tps=0.0)
    talk = SimpleNamespace(
        chat_session=chat_session,
        engine_thread=SimpleNamespace(status=status),
        ask=lambda text, folded: sent.append(text),
        read_ahead=sent.append,
    )
    dialogue = SimpleNamespace(headless=talk, turn=lambda begin: begin())

    def answer(question: str) -> bool:
        questions.append(question)
        return bool(agrees)

    commands = LineCommands(dialogue, None if agrees is None else answer)  # type: ignore[arg-type]
    for _ in range(2):
        commands._attach([f"{tmp_path}/notes.txt"])
        commands.take_line("what is this?")
    assert questions == ["send notes.txt to api.example?"] * n_asked
    assert len(sent) == (2 if agrees else 0)


def test_nothing_of_a_private_conversation_is_saved(talk: HeadlessChat):
    line = talk("/private", "my secret", "/new", "hello", "/exit")
    assert "nothing of it is saved" in line
    assert texts() == ["hello", "two."]
    assert len(Store().search("")) == 1
