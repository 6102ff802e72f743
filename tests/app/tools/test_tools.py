"""Tests of tools in the chat, without a screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.forms.answer_form import SCHEMA, AnswerForm
from app.forms.compiler import FormCompiler
from app.program.refusals import Refusal
from app.program.settings import ToolServerSetting, ToolSettings
from app.session.events import (
    DraftCounted,
    Event,
    GenerationFailed,
    GenerationFinished,
    ModelLoaded,
    PromptStopped,
    ToolsAnswered,
    ToolsNotice,
)
from app.session.tool_rounds import ADVICE, open_calls
from app.tools.built_in.catalog import make_built_in
from app.tools.mcp.served_tools import ServedTool
from app.tools.mcp.server import ToolResult, ToolServerError
from app.tools.mcp.transport import StoppedError
from app.tools.toolbox import HOW_TO, OWN, REFUSED, TURN_ON, ToolBox, call_question
from engine import Sampling
from engine.errors import BrokenModelError
from engine.prompt.tools.calls import ToolCall
from tests.app.backend.engine_driver import PATIENCE_S, Engine
from tests.app.fake_engine import Script

SCHEMA_OF_ECHO: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
CALL = '<tool_call>{"name": "echo", "arguments": {"text": "hi"}}</tool_call>'


class Server:
    """Stand-in for ``ToolServer`` that repeats the arguments of a call, or raises an error."""

    def __init__(self, is_stopped: Callable[[], bool]) -> None:
        self.is_stopped = is_stopped
        self.is_running = False
        self.has_new_tools = False
        self.n_lists = 0
        self.left_out: tuple[str, ...] = ()
        self.answer: Callable[[dict[str, Any]], str] = lambda arguments: str(arguments["text"])
        self.start_error: Exception | None = None
        self.called: list[tuple[str, dict[str, Any]]] = []

    def start(self) -> tuple[ServedTool, ...]:
        if self.start_error is not None:
            raise self.start_error
        self.is_running = True
        return (ServedTool("echo", "Says it again.", SCHEMA_OF_ECHO),)

    def list_tools(self) -> tuple[ServedTool, ...]:
        self.has_new_tools = False
        self.n_lists += 1
        return (ServedTool("later", "Came later.", SCHEMA_OF_ECHO),)

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        self.called.append((name, arguments))
        return ToolResult(self.answer(arguments))

    def close(self) -> None:
        self.is_running = False


class Chat(Engine):
    """Conversation with a tool server, driven like a screen."""

    def __init__(
        self, script: Script, form: AnswerForm | None = None, use: str = "on", budget: int = 2000
    ) -> None:
        self.servers: list[Server] = []
        self.prepare: Callable[[Server], object] = lambda server: None
        self.box = ToolBox(
            ToolSettings(use, budget, (ToolServerSetting("own", ("own",)),)), self._make
        )
        self.notices: list[str] = []
        self.faults = 0
        sampling = Sampling()
        super().__init__(
            script,
            tools=self.box,
            form=form,
            sampling=lambda chosen, model, mode: sampling,
        )
        self.open("m.gguf")

    def open(self, name: str) -> None:
        assert self.chat_session.load(Path(name))
        self.wait_for(ModelLoaded)

    def _make(self, setting: ToolServerSetting, is_stopped: Callable[[], bool]) -> Any:
        self.servers.append(Server(is_stopped))
        self.prepare(self.servers[-1])
        return self.servers[-1]

    def drain(self) -> list[Event]:
        received = super().drain()
        notices = [event for event in received if isinstance(event, ToolsNotice)]
        self.notices += [event.line for event in notices]
        self.faults += sum(event.is_fault for event in notices)
        return received

    def calls_of(self, text: str) -> tuple[ToolCall, ...]:
        """Send a message and return the calls at the end of the reply."""
        return self.ask(text).calls

    def answer_calls(self, *, yes: bool = True) -> str:
        """Run the calls or refuse them, and return the results for the model."""
        reply = self.chat_session.conversation.messages[-1]
        self.chat_session.run_calls(frozenset(call.call_id for call in reply.calls if yes))
        return self.wait_for(ToolsAnswered).results[0].text

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.chat_session.conversation.messages]

    @property
    def tools(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.script.opened[0].chats[0].tools]


def no_server(setting: ToolServerSetting, is_stopped: Callable[[], bool]) -> Any:
    raise AssertionError("nothing starts here")


@pytest.fixture
def chats() -> Iterator[Callable[..., Chat]]:
    all_chats: list[Chat] = []

    def make(*replies: list[str], script: Script | None = None, **options: Any) -> Chat:
        all_chats.append(Chat(script or Script(replies=list(replies)), **options))
        return all_chats[-1]

    yield make
    for chat in all_chats:
        chat.close()
        assert not any(server.is_running for server in chat.servers)


def test_a_call_runs_and_the_model_uses_its_result(chats: Callable[..., Chat]) -> None:
    chat = chats(["I look.", " <tool_", CALL[6:]], ["It", " is hi."])
    assert not chat.servers, "servers start at first use"
    (call,) = chat.calls_of("what?")
    assert (call.name, call.values, chat.tools) == ("echo", {"text": "hi"}, ["echo"])
    assert chat.chat_session.is_busy
    assert not chat.servers[0].called, "nothing runs without permission"
    assert chat.answer_calls() == "hi"
    assert chat.wait_for(GenerationFinished).calls == ()
    assert chat.texts == ["what?", "I look.", "echo: hi", "It is hi."]
    assert chat.chat_session.conversation.messages[2].folded == '+ echo {"text": "hi"}: hi'
    assert not chat.chat_session.is_busy
    live = chat.script.opened[0].chats[0].messages
    assert [message.role for message in live] == ["user", "assistant", "tool", "assistant"]
    assert live[1].calls == (call,)
    assert chat.calls_of("more") == ()


def test_read_ahead_considers_tools(chats: Callable[..., Chat]) -> None:
    chat = chats(["Hi."])
    draft = " ".join(["word"] * 60)

    def read_ahead() -> int:
        chat.until(lambda: not chat.engine_thread.status.is_busy)
        chat.messages.clear()
        assert chat.chat_session.read_ahead(draft, is_read=True)
        chat.idle()
        chat.messages += chat.drain()
        return sum(event.read_tokens for event in chat.messages if isinstance(event, DraftCounted))

    assert read_ahead() == 0
    chat.ask("what?")
    assert read_ahead() > 50


def test_a_refused_call_does_not_run(chats: Callable[..., Chat]) -> None:
    chat = chats([CALL], ["Well."])
    chat.ask("what?")
    assert chat.answer_calls(yes=False) == REFUSED
    chat.wait_for(GenerationFinished)
    assert chat.servers[0].called == []
    assert chat.texts[-1] == "Well."


def test_a_bare_object_is_a_call_and_a_mismatch_is_reported(chats: Callable[..., Chat]) -> None:
    bare = ["```json\n", '{"name": "echo", "arguments": {"text": "hi"}}', "\n```"]
    chat = chats(bare, ["Well."], [bare[1].replace('"hi"', "3")])
    (call,) = chat.calls_of("what?")
    assert (call.name, call.values) == ("echo", {"text": "hi"})
    chat.answer_calls()
    chat.wait_for(GenerationFinished)
    assert chat.calls_of("again") == ()
    assert chat.notices == ["looks like a tool call but is not one: echo: text is of another kind"]
    assert chat.texts[-1] == '{"name": "echo", "arguments": {"text": 3}}'


def test_the_same_call_twice_gets_the_known_result(chats: Callable[..., Chat]) -> None:
    again = CALL.replace('{"text"', '{ "text"')
    chat = chats([CALL], [again], ["It is hi."])
    chat.ask("what?")
    assert chat.answer_calls() == "hi"
    chat.wait_for(GenerationFinished)
    assert open_calls(chat.chat_session.conversation) == (), "nobody is asked about it again"
    assert chat.answer_calls(yes=False) == f"hi{ADVICE}"
    chat.wait_for(GenerationFinished)
    assert len(chat.servers[0].called) == 1
    assert chat.texts[-1] == "It is hi."
    biases = [sampling.logit_bias for sampling in chat.script.opened[0].sessions[0].samplings]
    assert [len(bias) for bias in biases] == [0, 0, 1], "the last try cannot call tools"


def test_after_another_call_the_same_one_runs_again(chats: Callable[..., Chat]) -> None:
    other = CALL.replace("hi", "ho")
    chat = chats([CALL], [other], [CALL], [other], [CALL], ["Well."])
    chat.ask("what?")
    for expected in ("hi", "ho", "hi", "ho", f"hi{ADVICE}"):
        assert chat.answer_calls() == expected
        chat.wait_for(GenerationFinished)
    assert chat.texts[-1] == "Well."
    chat.script.replies = [[CALL], ["Well."]]
    chat.ask("once more")
    assert chat.answer_calls() == "hi", "another message begins anew"


def test_calls_in_the_last_try_do_not_run(chats: Callable[..., Chat]) -> None:
    chat = chats([CALL], [CALL], [CALL], ["Fine."])
    chat.ask("what?")
    for _ in range(2):
        chat.answer_calls()
        chat.wait_for(GenerationFinished)
    assert not chat.chat_session.is_busy
    assert chat.texts[-1] == ""
    chat.ask("and now?")
    assert chat.texts[-1] == "Fine."


@pytest.mark.parametrize("reply", ["", " \n", "<tools></tools>", "<tools>\n</tools>"])
def test_an_empty_reply_is_tried_again_without_tools(
    chats: Callable[..., Chat], reply: str
) -> None:
    chat = chats([reply], ["Once upon a time."])
    chat.ask("write a story")
    if chat.chat_session.is_busy:
        chat.wait_for(GenerationFinished)
    assert chat.texts == ["write a story", "Once upon a time."]


def test_a_second_empty_reply_ends_the_turn(chats: Callable[..., Chat]) -> None:
    chat = chats(["<tools></tools>"], ["<tools></tools>"])
    chat.ask("write a story")
    chat.wait_for(GenerationFinished)
    assert not chat.chat_session.is_busy
    assert chat.texts == ["write a story", ""]


def test_a_call_in_tools_tags_is_a_call(chats: Callable[..., Chat]) -> None:
    bare = CALL.replace("tool_call>", "tools>")
    (call,) = chats([bare], ["Well."]).calls_of("what?")
    assert (call.name, call.values) == ("echo", {"text": "hi"})


def test_an_unknown_tool_is_not_called(chats: Callable[..., Chat]) -> None:
    chat = chats([CALL.replace("echo", "rm")], ["Well."])
    chat.ask("what?")
    assert chat.box.owner_of("rm") == ""
    assert chat.answer_calls() == "There is no tool of this name."
    assert chat.servers[0].called == []


def test_results_are_cut_to_the_budget(chats: Callable[..., Chat]) -> None:
    chat = chats([CALL], ["Long."], budget=20)
    chat.prepare = lambda server: setattr(
        server, "answer", lambda arguments: " ".join(["word"] * 50)
    )
    chat.ask("what?")
    assert chat.answer_calls() == " ".join(["word"] * 20) + "\n[cut: 20 of 50 tokens]"


def test_a_failing_server_is_dropped_with_one_line(chats: Callable[..., Chat]) -> None:
    def fail(_: object) -> str:
        raise ToolServerError("tool server own has ended (command: own)")

    chat = chats([CALL], ["Alone."], ["Without."])
    chat.prepare = lambda server: setattr(server, "answer", fail)
    chat.ask("what?")
    assert chat.answer_calls() == "The tool failed: tool server own has ended (command: own)"
    chat.wait_for(GenerationFinished)
    assert chat.notices == ["tool server own has ended (command: own): continuing without it"]
    assert chat.faults == 1
    chat.ask("and now?")
    assert (chat.tools, len(chat.servers)) == ([], 1)
    assert "tries it again" in chat.box.run_command("")
    chat.prepare = lambda server: None
    chat.box.run_command("on own")
    chat.ask("again")
    assert chat.tools == ["echo"]


def test_a_server_without_a_start_gives_one_line(chats: Callable[..., Chat]) -> None:
    chat = chats(["Hello."])
    chat.prepare = lambda server: setattr(
        server, "start_error", ToolServerError("tool server own cannot be started")
    )
    assert chat.calls_of("what?") == ()
    assert chat.notices == ["tool server own cannot be started: continuing without it"]
    assert chat.texts[-1] == "Hello."


def test_stopping_ends_the_call(chats: Callable[..., Chat]) -> None:
    chat = chats(["I look.", CALL], ["Fine."])

    def hang(_: object) -> str:
        give_up_s = time.monotonic() + PATIENCE_S
        while not chat.servers[0].is_stopped():
            assert time.monotonic() < give_up_s
            time.sleep(0.01)
        raise StoppedError

    chat.prepare = lambda server: setattr(server, "answer", hang)
    (call,) = chat.calls_of("what?")
    chat.chat_session.run_calls(frozenset([call.call_id]))
    chat.chat_session.stop()
    chat.wait_for(PromptStopped)
    assert not chat.chat_session.is_busy
    assert chat.calls_of("never mind") == ()
    engine_messages = chat.script.opened[0].chats[0].messages
    assert [(message.role, message.calls) for message in engine_messages[:3]] == [
        ("user", ()),
        ("assistant", ()),
        ("user", ()),
    ]
    messages = chat.chat_session.conversation.prompt_messages()
    assert messages[1].calls == ()
    assert CALL in messages[1].text


def test_results_without_a_reply_can_be_answered_again(chats: Callable[..., Chat]) -> None:
    chat = chats([CALL], ["Fine."])
    chat.ask("what?")
    chat.script.prefill_error = BrokenModelError("m.gguf: broken")
    chat.answer_calls()
    chat.wait_for(GenerationFailed)
    chat.script.prefill_error = None
    assert chat.chat_session.regenerate()
    chat.wait_for(GenerationFinished)
    assert chat.texts == ["what?", "", "echo: hi", "Fine."]
    live = chat.script.opened[0].chats[0].messages
    assert [message.role for message in live] == ["user", "assistant", "tool", "assistant"]
    assert live[1].calls


@pytest.mark.parametrize("why", ["template", "schema"])
def test_models_without_tools_say_so_once(
    chats: Callable[..., Chat], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = AnswerForm(SCHEMA, '{"type": "string"}', "s.json") if why == "schema" else None
    script = Script(replies=[["Hello."]], calls_like="" if why == "template" else "<tool_call>")
    chat = chats(script=script, form=form)
    monkeypatch.setattr(FormCompiler, "constraint", lambda *_: None)
    chat.ask("one")
    chat.ask("two")
    assert len(chat.notices) == 1
    assert chat.notices[0].startswith("answers come without tools: ")
    assert not chat.faults
    if form is None:
        for name in ("n.gguf", "m.gguf"):
            chat.open(name)
            chat.ask("three")
        assert len(chat.notices) == 2
        assert [" of n has none" in line for line in chat.notices] == [False, True]
    assert not chat.servers


def test_tools_are_off_by_default(chats: Callable[..., Chat]) -> None:
    chat = chats([CALL], use="off")
    assert chat.calls_of("one") == ()
    assert not chat.servers
    assert chat.box.run_command("") == "own: off"
    assert chat.box.run_command("on") == "own: on, starts with the next message"
    assert len(chat.calls_of("two")) == 1
    assert chat.box.run_command("") == "own: on, echo"
    chat.box.run_command("off own")
    chat.chat_session.end_without_reply()
    assert chat.calls_of("three") == ()
    assert not chat.servers[0].is_running


def test_unknown_options_of_tools_are_refused() -> None:
    box = ToolBox(ToolSettings("off", 2000, (ToolServerSetting("own", ("own",)),)), no_server)
    for option in ("maybe", "on other", "on \x1b[31m"):
        with pytest.raises(Refusal, match="unknown option") as refused:
            box.run_command(option)
        assert "\x1b" not in str(refused.value)
    assert ToolBox(ToolSettings("on", 2000, ()), no_server).run_command("") == HOW_TO


def test_without_questions_only_free_tools_exist() -> None:
    settings = (
        ToolServerSetting("one", ("one",), always=("other",)),
        ToolServerSetting("two", ("two",), always=("echo",)),
    )
    box = ToolBox(
        ToolSettings("on", 2000, settings),
        lambda setting, is_stopped: Server(is_stopped),
        can_ask=False,
    )
    box.start(lambda: False, lambda line: None)
    assert box.owner_of("echo") == "two"
    assert len(box.definitions) == 1
    assert (
        box.call(ToolCall("more", "{}", "1"), lambda line: None) == "There is no tool of this name."
    )


def built_in_box(use: str = "on", **changes: Any) -> ToolBox:
    settings = ToolSettings(use, 2000, (), **{"built_in": ("calculator", "clock"), **changes})
    return ToolBox(settings, no_server, make_built_in=make_built_in)


def test_built_in_tools_are_used_like_those_of_servers() -> None:
    box = built_in_box()
    box.start(lambda: False, lambda line: None)
    names = [tool["function"]["name"] for tool in box.definitions]
    assert names == ["calculate", "date_and_time"]
    assert box.owner_of("calculate") == OWN
    assert not box.runs_always("calculate"), "the user is asked"
    call = ToolCall("calculate", '{"expression": "6 * 7"}', "1")
    assert call_question(OWN, call) == 'Run calculate {"expression": "6 * 7"}? '
    assert box.call(call, lambda line: None) == "6 * 7 = 42"
    wrong = ToolCall("calculate", '{"expression": "six"}', "2")
    assert box.call(wrong, lambda line: None).startswith("The tool reports an error:\n")
    empty = ToolCall("calculate", "{}", "3")
    assert box.call(empty, lambda line: None).endswith("The call lacks expression.")


def test_built_in_tools_are_listed_and_turned_on() -> None:
    box = built_in_box("off")
    assert box.run_command("").split("\n") == [
        "calculator: off (calculates exactly)",
        "clock: off (date and time)",
        "folders: off (reads files in folders that you allow)",
        "documents: off (searches your documents)",
        "python: off (runs Python in a sandbox)",
        TURN_ON,
    ]
    assert not box.is_on
    lines = box.run_command("on").split("\n")
    assert lines[0] == "calculator: on from the next message (calculates exactly)"
    assert lines[-1].startswith("python: off"), "it is on only by its name"
    assert box.run_command("on python").split("\n")[-1].startswith("python: on")
    box.start(lambda: False, lambda line: None)
    assert box.run_command("").startswith("calculator: on, calculate\n")
    assert box.run_command("off").startswith("calculator: off")
    box.start(lambda: False, lambda line: None)
    assert box.definitions == ()


def test_a_folder_is_allowed_until_the_end(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a lantern")
    box = built_in_box()
    box.run_command("on folders")
    box.start(lambda: False, lambda line: None)
    assert box.owner_of("read_file") == ""
    assert "folders: on, but no folder is allowed" in box.run_command("")
    for folder in ("", str(tmp_path / "missing"), str(tmp_path / "notes.txt")):
        with pytest.raises(Refusal, match="is not a folder"):
            box.run_command(f"allow {folder}")
    box.run_command(f"allow {tmp_path}")
    box.start(lambda: False, lambda line: None)
    assert "folders: on, read_file, list_files" in box.run_command("")
    call = ToolCall("read_file", '{"path": "notes.txt"}', "1")
    assert box.call(call, lambda line: None) == "a lantern"


def test_without_questions_only_free_built_in_tools_exist() -> None:
    settings = ToolSettings("on", 2000, (), ("calculator", "clock"), always=("calculate",))
    box = ToolBox(settings, no_server, can_ask=False, make_built_in=make_built_in)
    box.start(lambda: False, lambda line: None)
    assert [tool["function"]["name"] for tool in box.definitions] == ["calculate"]
    assert box.runs_always("calculate")


def test_a_server_replaces_the_built_in_tool_of_its_name() -> None:
    settings = ToolSettings("on", 2000, (ToolServerSetting("clock", ("own",)),), ("clock",))
    box = ToolBox(
        settings, lambda setting, is_stopped: Server(is_stopped), make_built_in=make_built_in
    )
    box.start(lambda: False, lambda line: None)
    assert box.owner_of("echo") == "clock"
    assert box.owner_of("date_and_time") == ""


def test_code_in_a_question_keeps_its_lines() -> None:
    call = ToolCall("run_python", '{"code": "total = 1 + 2 + 3\\nprint(total)\\u001b"}', "1")
    lines = ["Run run_python?", '"code":', "    total = 1 + 2 + 3", "    print(total)␛", ""]
    assert call_question(OWN, call).split("\n") == lines


def test_permission_for_one_server_is_for_that_server_only() -> None:
    servers: dict[str, Server] = {}
    lines: list[str] = []

    def make(setting: ToolServerSetting, is_stopped: Callable[[], bool]) -> Any:
        servers[setting.name] = Server(is_stopped)
        return servers[setting.name]

    box = ToolBox(
        ToolSettings(
            "on", 2000, (ToolServerSetting("one", ("one",)), ToolServerSetting("two", ("two",)))
        ),
        make,
    )
    box.start(lambda: False, lines.append)
    call = ToolCall("echo", '{"text": "hi"}', "1")
    assert box.owner_of("echo") == "one"
    assert box.run_command("") == "one: on, echo\ntwo: on, no tools (left out: echo: one has one)"

    def fail(arguments: dict[str, Any]) -> str:
        raise ToolServerError("tool server one has ended")

    servers["one"].answer = fail
    assert box.call(call, lines.append) == "The tool failed: tool server one has ended"
    assert box.owner_of("echo") == ""
    assert box.call(call, lines.append) == "The tool's server has ended."
    assert servers["two"].called == []
    # The next start offers the tools again, and each call needs permission again.
    box.start(lambda: False, lines.append)
    assert box.owner_of("echo") == "two"
    assert box.call(call, lines.append) == "hi"


def test_unusable_tools_are_listed_with_a_reason() -> None:
    def make(setting: ToolServerSetting, is_stopped: Callable[[], bool]) -> Any:
        server = Server(is_stopped)
        server.left_out = (
            "deep: its schema is nested too deeply",
            *(f"t{n}: more than 64 tools" for n in range(9)),
        )
        return server

    box = ToolBox(ToolSettings("on", 2000, (ToolServerSetting("own", ("own",)),)), make)
    notes: list[str] = []
    box.start(lambda: False, notes.append)
    assert notes == ["tool server own: 10 tools left out (/tools says why)"]
    box.start(lambda: False, notes.append)
    assert len(notes) == 1
    assert box.run_command("").startswith(
        "own: on, echo (left out: deep: its schema is nested too deeply; t0: more than 64"
    )
    assert box.run_command("").endswith("; 2 more)")


def test_new_tools_of_a_server_are_read() -> None:
    servers: list[Server] = []

    def make(setting: ToolServerSetting, is_stopped: Callable[[], bool]) -> Any:
        servers.append(Server(is_stopped))
        return servers[-1]

    box = ToolBox(ToolSettings("on", 2000, (ToolServerSetting("own", ("own",)),)), make)
    box.start(lambda: False, lambda line: None)
    assert [tool["function"]["name"] for tool in box.definitions] == ["echo"]
    servers[0].has_new_tools = True
    box.start(lambda: False, lambda line: None)
    box.start(lambda: False, lambda line: None)
    assert [tool["function"]["name"] for tool in box.definitions] == ["later"]
    assert (len(servers), servers[0].n_lists) == (1, 1)
