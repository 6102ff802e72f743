"""Tests of correct and faulty tool servers, none of which outlives the program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from app.tools.mcp import transport
from app.tools.mcp.pipe import Pipe
from app.tools.mcp.server import ServerLimits, ToolServer, ToolServerError
from app.tools.mcp.transport import StoppedError
from tests.app.server.serving import PATIENCE_S, until

pytestmark = pytest.mark.slow
HOSTILE = Path(__file__).with_name("hostile_server.py")
LIMITS = ServerLimits(start_s=PATIENCE_S, call_s=PATIENCE_S, answer_bytes=1 << 20)
Make = Callable[..., ToolServer]


@pytest.fixture
def make() -> Iterator[Make]:
    servers: list[ToolServer] = []

    def start_server(
        behaviour: str = "", limits: ServerLimits = LIMITS, **options: object
    ) -> ToolServer:
        pipe = Pipe([sys.executable, "-I", "-S", str(HOSTILE), behaviour])
        servers.append(ToolServer("files", pipe, limits, **options))  # type: ignore[arg-type]
        return servers[-1]

    yield start_server
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def sound() -> Iterator[ToolServer]:
    """Shared server for tests that change nothing."""
    server = ToolServer(
        "files", Pipe([sys.executable, "-I", "-S", str(HOSTILE)], {"OWN": "yes"}), LIMITS
    )
    server.start()
    yield server
    server.close()


def test_tools_are_listed_and_unusable_ones_left_out(make: Make) -> None:
    server = make()
    tools = server.start()
    assert [tool.name for tool in tools] == ["echo", "do", "none"]
    assert tools[0].description == "Says␛[31m it again."
    assert server.left_out == (
        "␛[2J: its name is not valid",
        "echo: another tool with this name comes first",
        "deep: its schema is nested too deeply",
        "large: its schema is larger than 64K",
        "(no name): is not a description of a tool",
    )
    assert tools[0].definition["function"]["parameters"]["properties"] == {
        "text": {"type": "string"}
    }


def test_a_list_of_several_pages_is_read(make: Make) -> None:
    assert [tool.name for tool in make("pages").start()] == ["echo", "do"]


def test_pages_are_read_until_they_end_or_repeat(make: Make) -> None:
    many = make("many pages")
    assert [tool.name for tool in many.start()] == [f"t{n}" for n in range(30)]
    assert many.left_out == ()
    repeating = make("same page")
    assert [tool.name for tool in repeating.start()] == ["echo", "do", "none"]
    assert len([line for line in repeating.left_out if line.startswith("echo:")]) == 1
    broken = make("broken page")
    assert [tool.name for tool in broken.start()] == ["do"]
    assert broken.left_out == ("the rest of the list: refuses tools/list: no such page",)


def test_the_number_of_pages_is_limited(make: Make) -> None:
    endless = make("endless pages")
    assert len(endless.start()) == 64
    assert len(endless.left_out) <= 1000


def test_tools_that_are_added_later_are_found(make: Make) -> None:
    server = make("late")
    assert [tool.name for tool in server.start()] == ["do"]
    assert not server.has_new_tools
    server.call("do", {"text": "new tools"})
    assert server.has_new_tools
    assert [tool.name for tool in server.list_tools()] == ["do"]
    assert not server.has_new_tools


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ("dies at once", "has ended: Error: KEY is not set"),
        ("usage", "has ended: server: error: --root is required"),
        ("traceback", "has ended: ValueError: no ␛[31mroot"),
    ],
)
def test_a_dead_server_has_its_last_lines_shown(make: Make, behaviour: str, words: str) -> None:
    with pytest.raises(ToolServerError) as error:
        make(behaviour).start()
    assert str(error.value).startswith(f"tool server files {words} (command: ")


def test_much_output_on_stderr_does_not_block_a_server(sound: ToolServer) -> None:
    assert sound.call("do", {"text": "log"}).text == "logged"


def test_progress_starts_the_time_limit_again(make: Make) -> None:
    now_s = [0.0]
    server = make()
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
        wait = transport.Wait(60.0, lambda: False)
        now_s[0] = 59.0
        server._handle({"method": "notifications/progress"}, wait)
        assert wait.left_s == 60.0
        now_s[0] = transport.MAX_CALL_S - 1
        wait.extend()
        assert wait.left_s == 1.0
    assert server.call("do", {"text": "token"}).text == "True"


def test_after_a_too_large_answer_the_server_works(make: Make) -> None:
    server = make()
    server.start()
    result = server.call("do", {"text": "too long"})
    assert result.is_error
    assert (
        result.text
        == "The answer was not read: the server sends more than 1 MB at once. Ask for less."
    )
    assert server.call("echo", {"text": "still there"}).text == "still there"


def test_a_path_in_a_command_may_begin_at_home(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "server.py").write_text(HOSTILE.read_text())
    server = ToolServer("files", Pipe([sys.executable, "-I", "-S", "~/server.py"]), LIMITS)
    assert [tool.name for tool in server.start()][:1] == ["echo"]
    server.close()


def test_a_result_is_text_that_a_terminal_may_show(sound: ToolServer) -> None:
    assert sound.call("echo", {"text": "Grüße"}).text == "Grüße"
    bad = sound.call("do", {"text": "controls"})
    assert (bad.text, bad.is_error) == ("a␛[31mb␀c\u202ed", True)
    image = "[image: of unknown type, 1B; you cannot see or hear it]"
    assert sound.call("do", {"text": "image"}).text == f"{image}\nbelow\n[None: left out]"
    refused = sound.call("do", {"text": "refuse"})
    assert (refused.text, refused.is_error) == ("no ␛[31mcity", True)
    long = sound.call("do", {"text": "long"})
    assert (len(long.text), long.is_cut) == (LIMITS.result_chars, True)


def test_requests_of_a_lying_server_are_harmless(sound: ToolServer) -> None:
    answered = json.loads(sound.call("do", {"text": "lie"}).text)
    assert answered[0]["error"]["code"] == -32601
    assert answered[1] == {"jsonrpc": "2.0", "id": "p", "result": {}}


def test_a_server_gets_no_other_variables(
    sound: ToolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = json.loads(sound.call("do", {"text": "environment"}).text)
    assert seen["OWN"] == "yes"
    assert "JALOPY_CACHE_DIR" in os.environ
    assert "JALOPY_CACHE_DIR" not in seen


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ("die", "has ended"),
        ("flood", "sends more than 1 MB at once"),
        ("many lines", "sends more than 1 MB at once"),
        ("nothing", "sends an answer without a result"),
    ],
)
def test_an_invalid_answer_ends_the_server_with_one_line(
    make: Make, behaviour: str, why: str
) -> None:
    server = make()
    server.start()
    with pytest.raises(ToolServerError) as error:
        server.call("do", {"text": behaviour})
    assert str(error.value).startswith(f"tool server files {why} (command: ")
    assert "\x1b" not in str(error.value)
    assert "\n" not in str(error.value)
    assert not server.is_running
    with pytest.raises(ToolServerError, match="is not running"):
        server.call("echo", {"text": "x"})
    assert [tool.name for tool in server.start()] == ["echo", "do", "none"]


def test_tools_of_other_clients_are_accepted(make: Make) -> None:
    server = make("lenient")
    tools = server.start()
    echo, long, wide, maybe, odd = tools
    assert odd.parameters == {
        "type": "object",
        "properties": {"any": {}, "none": {}, "list": {"type": "object", "properties": {}}},
        "$defs": {},
    }
    assert (echo.name, echo.description, echo.parameters["type"]) == (
        "ns_echo",
        "Says it again",
        "object",
    )
    assert (len(long.name), long.parameters) == (64, {"type": "object", "properties": {}})
    assert len(wide.parameters["properties"]) == 270
    assert maybe.parameters == {"type": "object", "properties": {}}
    assert [line.partition(": ")[2] for line in server.left_out] == [
        "its name is not valid",
        "its schema does not describe an object",
    ]
    assert (
        server.call("ns_echo", {"text": "x"}).text
        == server.call(long.name, {"text": "x"}).text
        == "x"
    )
    assert make("no tools").start() == ()


def test_every_type_of_content_becomes_text(sound: ToolServer) -> None:
    assert sound.call("do", {"text": "content"}).text.split("\n") == [
        "first",
        "[image: image/png, 1.2K; you cannot see or hear it]",
        "[audio: audio/wav, 3B; you cannot see or hear it]",
        "[link to a resource: a.txt, file:///a.txt, A ␛[31mfile]",
        "[resource file:///b.txt, text/plain]",
        "words of b",
        "[resource file:///c.bin: application/pdf, 12B; it is not text]",
        "[resource file:///d.txt, text/plain]",
        "words of d",
        "[resource file:///e.txt: text/plain, 3B; it is not text]",
        "[video: left out]",
        "[None: left out]",
        "bare",
        '{"answer": 42}',
    ]
    assert sound.call("do", {"text": "same"}).text == '{"a": 1}'
    assert (
        sound.call("do", {"text": "deep structure"}).text
        == "[structured content: nested too deeply]"
    )
    assert sound.call("do", {"text": "old"}).text == '{"answer": 42}'


def test_other_output_lines_are_skipped_and_counted(make: Make) -> None:
    server = make()
    server.start()
    assert server.call("do", {"text": "noise"}).text == ""
    assert isinstance(server._transport, Pipe)
    assert server._transport.n_skipped == 6
    server._limits = replace(LIMITS, call_s=0.2)
    with pytest.raises(
        ToolServerError, match=r"did not answer within 0\.2 s \(\d of its lines were not JSON\)"
    ):
        server.call("do", {"text": "rubbish"})


@pytest.mark.smoke
def test_a_server_that_hangs_is_ended(make: Make) -> None:
    server = make()
    server.start()
    server._limits = replace(LIMITS, call_s=0.2)
    with pytest.raises(ToolServerError, match=r"did not answer within 0\.2 s"):
        server.call("do", {"text": "hang"})
    with pytest.raises(ToolServerError, match="did not answer within"):
        make("mute", replace(LIMITS, start_s=0.2)).start()


def test_the_user_can_stop_a_call(make: Make) -> None:
    stops: list[bool] = []
    server = make(is_stopped=lambda: bool(stops))
    server.start()
    stops.append(True)
    with pytest.raises(StoppedError):
        server.call("do", {"text": "hang"})
    assert not server.is_running


def test_a_server_that_cannot_start_is_reported(make: Make) -> None:
    for command, why in (
        (["/nowhere/server"], "cannot be started: No such file"),
        ([sys.executable, "-c", ""], "has ended"),
    ):
        with pytest.raises(ToolServerError, match=why):
            ToolServer("x", Pipe(command), LIMITS).start()
    with pytest.raises(ToolServerError, match="does not speak"):
        make("other").start()


CHILDREN = [
    "child",
    pytest.param(
        "own session", marks=pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
    ),
    pytest.param(
        "orphan", marks=pytest.mark.skipif(sys.platform != "linux", reason="needs subreapers")
    ),
]


@pytest.mark.parametrize("child_type", CHILDREN)
def test_a_closed_server_ends_with_its_children(make: Make, child_type: str) -> None:
    server = make()
    server.start()
    ids = [int(word) for word in server.call("do", {"text": child_type}).text.split()]
    assert all(map(psutil.pid_exists, ids))
    server.close()
    until(lambda: not any(map(is_alive, ids)))


def test_a_server_ends_with_a_stopped_guard(make: Make) -> None:
    server = make()
    server.start()
    ids = [int(word) for word in server.call("do", {"text": "child"}).text.split()]
    os.kill(guard_of(server), signal.SIGSTOP)
    server.close()
    until(lambda: not any(map(is_alive, ids)))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of a parent's end")
def test_a_server_ends_with_its_guard(make: Make) -> None:
    server = make()
    server.start()
    ids = [int(word) for word in server.call("do", {"text": "child"}).text.split()]
    os.kill(guard_of(server), signal.SIGKILL)
    until(lambda: not is_alive(ids[0]))
    os.kill(ids[1], signal.SIGKILL)  # its parent is no longer a guard


OWNER = """
import sys
from app.tools.mcp.pipe import Pipe
from app.tools.mcp.server import ToolServer
server = ToolServer("files", Pipe(sys.argv[2:]))
server.start()
print(server.call("do", {"text": sys.argv[1]}).text, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("child_type", CHILDREN)
def test_a_server_ends_when_the_program_is_killed(child_type: str) -> None:
    command = [sys.executable, "-c", OWNER, child_type, sys.executable, "-I", "-S", str(HOSTILE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        ids = [int(word) for word in owner.stdout.readline().split()]
        assert len(ids) == 2
        owner.send_signal(signal.SIGKILL)
    until(lambda: not any(map(is_alive, ids)))


def guard_of(server: ToolServer) -> int:
    assert isinstance(server._transport, Pipe)
    assert server._transport.child is not None
    return server._transport.child.pid


def is_alive(process_id: int) -> bool:
    try:
        return psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
