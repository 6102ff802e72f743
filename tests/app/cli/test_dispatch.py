"""The whole command in a process of its own: exit codes, one line for every refusal, what is imported."""

import argparse
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
HEAVY = ("numba", "llvmlite", "textual", "rich", "numpy", "jinja2")


def jalopy(
    *argv: str, stdin: bytes = b"", timeout_s: float = 240, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "app", *argv],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        timeout=timeout_s,
        env={**os.environ, **environment},
        check=False,
    )


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("argv", [["--help"], ["run", "--help"], ["bench", "-h"], ["inspect", "-h"], ["--version"]])
def test_help_and_version_succeed_on_stdout(argv: list[str]) -> None:
    done = jalopy(*argv)
    assert (done.returncode, done.stderr) == (exit_codes.OK, b"")
    assert b"jalopy" in done.stdout


def test_help_imports_nothing_heavy() -> None:
    code = f"""
import sys
from app.cli.dispatch import main
assert main(["--help"]) == 0
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    assert python(code).splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "module",
    [
        "app.cli.line_mode",
        "app.cli.run",
        "app.cli.bench",
        "app.library.inspect",
        "app.cli.supervisor",
        "app.library.choose_model",
    ],
)
def test_commands_import_no_textual_and_no_numba(module: str) -> None:
    code = (
        f"import sys, {module}; print([name for name in ('textual', 'rich', 'numba', 'numpy') if name in sys.modules])"
    )
    assert python(code) == "[]\n"


@pytest.mark.parametrize(
    ("argv", "code", "expected"),
    [
        (["run"], exit_codes.USAGE, "the following arguments are required: MODEL"),
        (["run", "m.gguf"], exit_codes.USAGE, "the prompt is empty"),
        (["--no-such-option"], exit_codes.USAGE, "--no-such-option"),
        (["run", "m.gguf", "-p", "x", "--temp", "hot"], exit_codes.USAGE, "'hot'"),
        (["run", "m.gguf", "-p", "x", "--temp", "nan"], exit_codes.USAGE, "allowed: a number from 0 to 10"),
        (["run", "m.gguf", "-p", "x", "--kv", "q4"], exit_codes.USAGE, 'allowed: "auto", "f16", "f32", "q8_0"'),
        (["run", "m.gguf", "-p", " "], exit_codes.USAGE, "the prompt is empty"),
        (["run", "m.gguf", "-p", "x", "--session", ""], exit_codes.USAGE, "the name of --session is empty"),
        (["run", "", "-p", "x"], exit_codes.USAGE, "the model's path is empty"),
        (["bench", "m.gguf", "-t", "0"], exit_codes.USAGE, "thread counts"),
        (["bench", "m.gguf", "-t", "a"], exit_codes.USAGE, "-t/--threads: a: thread counts are whole numbers"),
        (["bench", "m.gguf", "-p", "a"], exit_codes.USAGE, "a: must be a whole number from 1"),
        (["tune", "m.gguf", "--seconds", "a"], exit_codes.USAGE, "a: must be from 1 to 3600 seconds"),
        (["doctor", "--type", "Q4_0"], exit_codes.USAGE, "--type is the type of a --size"),
        (["bench", "m.gguf", "-p", "0"], exit_codes.USAGE, "must be a whole number from 1"),
        (["serve", "--lora", "a.gguf"], exit_codes.USAGE, "--lora needs the model that it changes"),
        (["run", "--server", "http://here:1", "x", "--lora", "a"], exit_codes.USAGE, "--lora changes a model of this"),
        (["run", "m.gguf", "x", "--lora", "a:inf"], exit_codes.USAGE, "the scale of a is inf: must be a number"),
        (["a\x1b[31mb", "c\n"], exit_codes.USAGE, "unrecognized arguments: c\\n"),
        (["chat", "--plain", "/no/such.gguf"], exit_codes.UNREADABLE, "such.gguf"),
        (["/no/such.gguf"], exit_codes.UNREADABLE, "such.gguf"),
        (["inspect", "/no/such.gguf"], exit_codes.UNREADABLE, "such.gguf"),
        (["inspect", "/no/\x1b[31m\n.gguf"], exit_codes.UNREADABLE, ".gguf"),
        (["inspect", "."], exit_codes.UNREADABLE, ""),
        (["inspect", str(ROOT / "LICENSE")], exit_codes.BAD_DATA, "LICENSE"),
    ],
)
def test_a_refusal_is_one_clean_line_with_its_exit_code(argv: list[str], code: int, expected: str) -> None:
    done = jalopy(*argv)
    line = done.stderr.decode("utf-8")
    assert (done.returncode, done.stdout) == (code, b""), line
    assert line.startswith("jalopy")
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert len(line) <= 301
    assert expected in line
    assert "\x1b" not in line
    assert "Traceback" not in line


def test_a_wrong_settings_file_is_refused_before_anything_else(tmp_path: Path) -> None:
    file = tmp_path / "jalopy" / "settings.toml"
    file.parent.mkdir()
    file.write_text("thread = 2\n")
    done = jalopy("chat", "--plain", "/no/such.gguf", XDG_CONFIG_HOME=str(tmp_path))
    assert done.returncode == exit_codes.BAD_DATA
    assert done.stderr.decode() == f"jalopy: {file}: thread is not a setting (nearest: threads)\n"


def test_a_bug_is_one_line_and_a_private_log_without_variables(tmp_path: Path) -> None:
    code = """
import sys
from app.cli.dispatch import guard
def work():
    secret = "what the user " + "typed"
    raise KeyError("boom")
sys.exit(guard(work))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        check=False,
    )
    log = tmp_path / "jalopy" / "jalopy.log"
    assert done.returncode == exit_codes.INTERNAL
    assert done.stderr == f"jalopy: internal error: KeyError: 'boom' (details in {log})\n"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert 'raise KeyError("boom")' in log.read_text() or "KeyError: 'boom'" in log.read_text()
    assert "what the user typed" not in log.read_text()


def test_a_system_without_flags_and_modes_logs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("O_NOFOLLOW", "O_CLOEXEC", "fchmod"):
        monkeypatch.delattr(os, name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    log = refusals.log_crash(KeyError("boom"))
    assert log is not None
    assert "KeyError: 'boom'" in Path(log).read_text()


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        ("MemoryError()", exit_codes.NO_MEMORY, "jalopy: not enough memory"),
        ("OSError(28, 'No space left on device')", exit_codes.IO_ERROR, "jalopy: No space left on device"),
        ("OSError(5, 'Input/output error', 'a\\x1bb')", exit_codes.IO_ERROR, "jalopy: a␛b: Input/output error"),
        ("BrokenPipeError()", exit_codes.OK, ""),
        ("KeyboardInterrupt()", exit_codes.INTERRUPTED, ""),
    ],
)
def test_each_way_to_end_has_its_code(raised: str, code: int, line: str) -> None:
    program = f"""
import sys
from app.cli.dispatch import guard
def work():
    raise {raised}
sys.exit(guard(work))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == code
    assert done.stderr.decode().startswith(line)
    assert done.stderr.count(b"\n") == (1 if line else 0)


@pytest.mark.parametrize("module", ["argparse", "app.program.settings", "app.cli.supervisor"])
def test_ctrl_c_while_the_program_is_imported_is_no_traceback(module: str) -> None:
    program = f"""
import sys
class CtrlC:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.modules.pop({module!r}, None)
sys.meta_path.insert(0, CtrlC())
from app.__main__ import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (exit_codes.INTERRUPTED, b"", b"")


def test_a_reader_that_leaves_early_hears_no_complaint() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "app", "--help"], cwd=ROOT, stdout=write_end, stderr=subprocess.PIPE, check=False
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (exit_codes.OK, b"")


def test_a_full_device_is_an_input_output_error() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "app", "--help"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == exit_codes.IO_ERROR
    assert done.stderr.decode() == "jalopy: No space left on device\n"


@pytest.mark.parametrize("stderr", ["closed", "full", "unread"])
def test_a_usage_error_that_no_one_hears_is_still_one(stderr: str) -> None:
    if stderr == "full" and not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    redirection = {"closed": "2>&-", "full": "2>/dev/full", "unread": ""}[stderr]
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = f'exec "{sys.executable}" -m app --no-such-option {redirection}'
    done = subprocess.run(["/bin/sh", "-c", command], cwd=ROOT, stderr=write_end, check=False)
    os.close(write_end)
    assert done.returncode == exit_codes.USAGE


def test_closed_standard_output_is_a_usage_error() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "{sys.executable}" -m app --help >&-'], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == exit_codes.USAGE
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("locale", ["C", "POSIX", "en_US.ISO-8859-1"])
def test_no_locale_breaks_a_line_with_foreign_letters(locale: str) -> None:
    done = jalopy("inspect", "/no/日本\udcff.gguf", LC_ALL=locale, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == exit_codes.UNREADABLE
    assert done.stderr.count(b"\n") == 1


def test_it_runs_without_home_and_any_directory_of_its_own() -> None:
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-m", "app", "inspect", "/no/such.gguf"],
        cwd=ROOT,
        capture_output=True,
        env=environment,
        check=False,
    )
    assert done.returncode == exit_codes.UNREADABLE
    assert done.stderr.count(b"\n") == 1


def test_every_option_stands_for_a_setting_and_reaches_it() -> None:
    assert set(arguments._SETTING_OPTIONS) <= set(setting_keys())
    options = arguments.parse(
        ["run", "m", "-p", "x", "--temp", "0", "-t", "3", "--system", "s", "--seed", "-1", "-n", "9"]
    )
    settings = arguments.apply(options, built_in_settings())
    assert (settings.threads, settings.system_prompt) == (3, "s")
    assert (settings.sampling.temperature, settings.sampling.seed, settings.sampling.max_tokens) == (0.0, -1, 9)


@pytest.mark.parametrize("command", [command for command in arguments.COMMANDS if command != "chat"])
def test_a_command_takes_every_option_that_is_no_setting(command: str) -> None:
    module = import_module(dispatch._ELSEWHERE.get(command, f"app.cli.{command}"))
    kind = getattr(module, f"{command.capitalize()}Options", None)
    taken = {*signature(getattr(module, command)).parameters, *(one.name for one in (fields(kind) if kind else ()))}
    given = {action.dest for action in arguments._parser(command)._actions}
    laid_over_settings = {"help", "lora", *arguments._SETTING_OPTIONS, *arguments._SYSTEM_WAYS.values(), "served_name"}
    assert given - laid_over_settings <= taken


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
def test_the_first_word_is_a_command_or_a_model(argv: list[str], command: str, model: str | None) -> None:
    options = arguments.parse(argv)
    assert (options.command, options.model) == (command, model)


def test_what_a_command_opened_by_path_is_listed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_gguf.write(tmp_path / "elsewhere.gguf")
    options = argparse.Namespace(command="bench", model=str(model), settings={})
    monkeypatch.setattr(dispatch.arguments, "apply", lambda options, settings: settings)
    module = SimpleNamespace(bench=lambda model: 0, BenchOptions=None)
    monkeypatch.setattr(dispatch, "import_module", lambda name: module)
    assert dispatch.obey(options) == 0
    assert load_state()[0].opened_models == (str(model),)
    assert load_state()[0].last_model is None
    module.bench = lambda model: 3
    options.model = str(tiny_gguf.write(tmp_path / "failed.gguf"))
    assert dispatch.obey(options) == 3
    assert len(load_state()[0].opened_models) == 1
