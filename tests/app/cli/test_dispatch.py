"""The whole command: exit codes, one line for every refusal, what is imported."""

import argparse
import io
import os
import stat
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.cli import arguments, dispatch
from app.program import exit_codes, refusals
from app.program.settings import built_in_settings, setting_keys
from app.program.state import load_state
from tests.engine import tiny_gguf

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program that can import Jalopy."""
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240,
        check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


def jalopy(command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run ``jalopy`` with arguments, as a shell does."""
    done = ["/bin/sh", "-c", f'exec "{sys.executable}" -m app {command}']
    return subprocess.run(
        done, cwd=ROOT, capture_output=True, check=False, env={**os.environ, **environment}
    )


@pytest.mark.parametrize(
    "argv", [["--help"], ["run", "--help"], ["bench", "-h"], ["inspect", "-h"], ["--version"]]
)
def test_help_and_version_succeed_on_stdout(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch.main(argv) == exit_codes.OK
    out, err = capsys.readouterr()
    assert err == ""
    assert "jalopy" in out


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    """Check the imports of the forked process, of help and of the commands."""
    code = """
import sys
def heavy(*names):
    return [name for name in names if name in sys.modules]
import app.cli.supervisor
print(heavy("numba", "numpy", "textual", "ctypes"))
from app.cli.dispatch import main
assert main(["--help"]) == 0
print(heavy("numba", "llvmlite", "textual", "rich", "numpy", "jinja2"))
import app.cli.line_mode, app.cli.run, app.cli.bench, app.models.library.inspect, app.models.library.choose_model
print(heavy("textual", "rich", "numba", "numpy"))
"""
    assert [line for line in python(code).stdout.splitlines() if line.startswith("[")] == ["[]"] * 3


@pytest.mark.parametrize(
    ("argv", "code", "expected"),
    [
        (["run"], exit_codes.USAGE, "the following arguments are required: MODEL"),
        (["run", "m.gguf"], exit_codes.USAGE, "the prompt is empty"),
        (["--no-such-option"], exit_codes.USAGE, "--no-such-option"),
        (["run", "m.gguf", "-p", "x", "--temp", "hot"], exit_codes.USAGE, "'hot'"),
        (["run", "m.gguf", "-p", "x", "--temp", "nan"], exit_codes.USAGE,
         "allowed: a number from 0 to 100"),
        (["run", "m.gguf", "-p", "x", "--kv", "q4"], exit_codes.USAGE,
         'allowed: "auto", "f16", "f32", "q8_0"'),
        (["run", "m.gguf", "-p", " "], exit_codes.USAGE, "the prompt is empty"),
        (["run", "m.gguf", "-p", "x", "--session", ""], exit_codes.USAGE,
         "--session is empty"),
        (["run", "", "-p", "x"], exit_codes.USAGE, "the model's name is empty"),
        (["bench", "m.gguf", "-t", "0"], exit_codes.USAGE, "thread counts"),
        (["bench", "m.gguf", "-t", "a"], exit_codes.USAGE,
         "-t/--threads: a: must be thread counts"),
        (["bench", "m.gguf", "-p", "a"], exit_codes.USAGE, "a: must be a whole number from 1"),
        (["bench", "m.gguf", "-p", "0"], exit_codes.USAGE, "must be a whole number from 1"),
        *((["tune", "m.gguf", "--seconds", seconds], exit_codes.USAGE,
           f"{seconds}: must be from 1 to 3600 seconds")
          for seconds in ("a", "0", "1e9", "nan")),
        (["doctor", "--type", "Q4_0"], exit_codes.USAGE, "--type needs a size"),
        (["serve", "--lora", "a.gguf"], exit_codes.USAGE, "--lora needs a model"),
        (["run", "--server", "http://here:1", "x", "--lora", "a"], exit_codes.USAGE,
         "--lora does not work with --server"),
        (["run", "m.gguf", "x", "--lora", "a:inf"], exit_codes.USAGE,
         "the scale of a is inf: must be a number"),
        (["a\x1b[31mb", "c\n"], exit_codes.USAGE, "unrecognized arguments: c\\n"),
        (["chat", "--plain", "/no/such.gguf"], exit_codes.UNREADABLE, "such.gguf"),
        (["/no/such.gguf"], exit_codes.UNREADABLE, "such.gguf"),
        (["inspect", "/no/\x1b[31m\n.gguf"], exit_codes.UNREADABLE, ".gguf"),
        (["inspect", "."], exit_codes.UNREADABLE, ""),
        (["inspect", str(ROOT / "LICENSE")], exit_codes.BAD_DATA, "LICENSE"),
    ],
)  # fmt: skip
def test_a_refusal_is_one_clean_line_with_its_exit_code(
    argv: list[str],
    code: int,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    assert dispatch.guard(lambda: dispatch.run_command(arguments.parse(argv))) == code
    out, line = capsys.readouterr()
    assert out == ""
    assert line.startswith("jalopy")
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert len(line) <= 301
    assert expected in line
    assert "\x1b" not in line


@pytest.mark.smoke
def test_an_invalid_settings_file_is_refused_first(tmp_path: Path) -> None:
    file = tmp_path / "jalopy" / "settings.toml"
    file.parent.mkdir()
    file.write_text("thread = 2\n")
    done = jalopy("chat --plain /no/such.gguf", XDG_CONFIG_HOME=str(tmp_path))
    assert done.returncode == exit_codes.BAD_DATA
    assert done.stderr.decode() == f"jalopy: {file}: thread is not a setting (nearest: threads)\n"


def test_a_bug_is_one_line_and_a_private_log_without_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def work() -> int:
        secret = "what the user " + "typed"
        raise KeyError("boom", len(secret))

    assert dispatch.guard(work) == exit_codes.INTERNAL
    log = tmp_path / "jalopy" / "jalopy.log"
    assert (
        capsys.readouterr().err
        == f"jalopy: internal error: KeyError: ('boom', 19) (details in {log})\n"
    )
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert 'raise KeyError("boom", len(secret))' in log.read_text()
    assert "what the user typed" not in log.read_text()


def test_a_system_without_file_flags_and_modes_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("O_NOFOLLOW", "O_CLOEXEC", "fchmod"):
        monkeypatch.delattr(os, name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    log = refusals.log_crash(KeyError("boom"))
    assert log is not None
    assert "KeyError: 'boom'" in Path(log).read_text()


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (MemoryError(), exit_codes.NO_MEMORY, "jalopy: not enough memory"),
        (
            OSError(28, "No space left on device"),
            exit_codes.IO_ERROR,
            "jalopy: No space left on device",
        ),
        (
            OSError(5, "Input/output error", "a\x1bb"),
            exit_codes.IO_ERROR,
            "jalopy: a␛b: Input/output error",
        ),
        (BrokenPipeError(), exit_codes.OK, ""),
        (KeyboardInterrupt(), exit_codes.INTERRUPTED, ""),
    ],
)
def test_each_ending_has_its_exit_code(
    raised: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def work() -> int:
        raise raised

    monkeypatch.setattr(dispatch, "_drop_output", lambda: None)  # the tests' own
    assert dispatch.guard(work) == code
    errors = capsys.readouterr().err
    assert errors.startswith(line)
    assert errors.count("\n") == (1 if line else 0)


@pytest.mark.parametrize("module", ["argparse", "app.cli.supervisor"])
def test_ctrl_c_during_imports_shows_no_traceback(module: str) -> None:
    done = python(f"""
import sys
class CtrlC:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.modules.pop({module!r}, None)
sys.meta_path.insert(0, CtrlC())
from app.__main__ import main
sys.exit(main())
""")
    assert (done.returncode, done.stdout, done.stderr) == (exit_codes.INTERRUPTED, "", "")


@pytest.mark.parametrize(
    ("command", "code", "line"),
    [
        ("--help >/dev/full", exit_codes.IO_ERROR, "jalopy: No space left on device\n"),
        (
            "--help >&-",
            exit_codes.USAGE,
            "jalopy: standard output is closed (open it, or redirect it to a file)\n",
        ),
        ("--no-such-option 2>&-", exit_codes.USAGE, ""),
        ("--no-such-option 2>/dev/full", exit_codes.USAGE, ""),
    ],
)
def test_a_closed_output_has_its_own_exit_code(command: str, code: int, line: str) -> None:
    if "/dev/full" in command and not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    done = jalopy(command)
    assert (done.returncode, done.stderr.decode()) == (code, line)


def test_a_reader_that_closes_the_pipe_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    for stream, argument, code in (
        ("stdout", "--help", exit_codes.OK),
        ("stderr", "--none", exit_codes.USAGE),
    ):
        names = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: write_end}
        done = subprocess.run(
            [sys.executable, "-m", "app", argument], cwd=ROOT, check=False, **names
        )
        assert (done.returncode, done.stdout or b"", done.stderr or b"") == (code, b"", b"")
    os.close(write_end)


def test_foreign_letters_work_without_locale_and_home() -> None:
    path = "/no/日本\udcff.gguf"
    environment = {
        "PATH": os.environ["PATH"],
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }
    done = subprocess.run(
        [sys.executable, "-m", "app", "inspect", path],
        cwd=ROOT,
        capture_output=True,
        env=environment,
        check=False,
    )
    assert done.returncode == exit_codes.UNREADABLE
    assert done.stderr.count(b"\n") == 1


def test_every_option_of_a_setting_changes_it() -> None:
    assert set(arguments._SETTING_OPTIONS) <= set(setting_keys())
    options = arguments.parse(
        [
            "run",
            "m",
            "-p",
            "x",
            "--temp",
            "0",
            "-t",
            "3",
            "--system",
            "s",
            "--seed",
            "-1",
            "-n",
            "9",
        ]
    )
    settings = arguments.apply(options, built_in_settings())
    assert (settings.threads, settings.system_prompt) == (3, "s")
    assert (
        settings.sampling.temperature,
        settings.sampling.seed,
        settings.sampling.max_tokens,
    ) == (0.0, -1, 9)


@pytest.mark.parametrize(
    "command", [command for command in arguments.COMMANDS if command != "chat"]
)
def test_a_command_takes_its_options_that_are_not_settings(command: str) -> None:
    module = import_module(dispatch._MODULES.get(command, f"app.cli.{command}"))
    options_class = getattr(module, f"{command.capitalize()}Options", None)
    parameters = {
        *signature(getattr(module, command)).parameters,
        *(seconds.name for seconds in (fields(options_class) if options_class else ())),
    }
    names = {action.dest for action in arguments._parser(command)._actions}
    laid_over_settings = {
        "help",
        "lora",
        *arguments._SETTING_OPTIONS,
        *arguments._SYSTEM_PROMPT_OPTIONS.values(),
        "served_name",
    }
    assert names - laid_over_settings <= parameters


@pytest.mark.parametrize(
    ("argv", "command", "model"),
    [
        ([], "chat", None),
        (["m.gguf"], "chat", "m.gguf"),
        (["--plain", "m.gguf"], "chat", "m.gguf"),
        (["chat", "m.gguf"], "chat", "m.gguf"),
        (["./run"], "chat", "./run"),
        (["inspect", "run"], "inspect", "run"),
        (["-t", "2", "bench"], "chat", "bench"),
    ],
)
def test_the_first_word_is_a_command_or_a_model(
    argv: list[str], command: str, model: str | None
) -> None:
    options = arguments.parse(argv)
    assert (options.command, options.model) == (command, model)


def test_a_model_opened_by_path_is_listed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_gguf.write(tmp_path / "elsewhere.gguf")
    options = argparse.Namespace(command="bench", model=str(model), settings={})
    monkeypatch.setattr(dispatch.arguments, "apply", lambda options, settings: settings)
    module = SimpleNamespace(bench=lambda model: 0, BenchOptions=None)
    monkeypatch.setattr(dispatch, "import_module", lambda name: module)
    assert dispatch.run_command(options) == 0
    assert load_state()[0].opened_models == (str(model),)
    assert load_state()[0].last_model is None
    module.bench = lambda model: 3
    options.model = str(tiny_gguf.write(tmp_path / "failed.gguf"))
    assert dispatch.run_command(options) == 3
    assert len(load_state()[0].opened_models) == 1
