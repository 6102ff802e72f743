import ast
import inspect
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tomli

from app.program import exit_codes, paths, settings
from app.program.samplers import SAMPLERS
from app.program.settings import (
    SettingsError,
    ToolServerSetting,
    built_in_settings,
    load_settings,
    merge,
    override,
    setting_keys,
)
from engine import Sampling
from engine.errors import EngineError
from engine.plan import crew
from tests.app.own_settings import own_settings


def flat(table: dict[str, Any], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, value in table.items():
        keys += (
            flat(value, f"{prefix}{name}.")
            if isinstance(value, dict) and value
            else [prefix + name]
        )
    return keys


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "settings.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_default_toml_has_exactly_all_settings_in_order() -> None:
    values = tomli.loads((paths.bundled("config") / "default.toml").read_text(encoding="utf-8"))
    assert flat(values) == list(setting_keys())


def test_default_toml_has_one_comment_line_above_each_setting() -> None:
    lines = (paths.bundled("config") / "default.toml").read_text(encoding="utf-8").splitlines()
    for above, line in pairwise(lines):
        if "=" in line and not line.startswith("#"):
            assert above.startswith("# "), line


def test_each_field_has_a_docstring_below_it() -> None:
    tree = ast.parse(inspect.getsource(settings))
    for definition in [
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name.endswith("ettings")
    ]:
        for field, below in zip(definition.body, [*definition.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign):
                assert isinstance(below, ast.Expr), ast.unparse(field)
                assert isinstance(below.value, ast.Constant)


def test_without_a_user_file_the_defaults_are_used() -> None:
    assert load_settings() == built_in_settings()


def test_the_command_line_overrides_the_file_and_defaults(tmp_path: Path) -> None:
    file = write(tmp_path, "threads = 3\n[sampling]\ntemperature = 1\ntop_k = 5\n")
    loaded = override(load_settings(file), "sampling.top_k", 7, "--top-k")
    assert (loaded.threads, loaded.sampling.temperature, loaded.sampling.top_k) == (3, 1.0, 7)
    assert loaded.sampling.top_p == built_in_settings().sampling.top_p


def test_tool_servers_are_tables(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """[tools]
use = "on"
[tools.servers.files]
command = ["files", "--root", "/tmp"]
environment = { KEY = "x" }
[tools.servers.web-2]
command = ["web"]
always = ["search"]
[tools.servers.far]
url = "https://tools.example/mcp?team=1"
headers = { X-Team = "mine" }
key_variable = "TOOLS_KEY"
timeout_s = 300
""",
    )
    tools = load_settings(file).tools
    assert (tools.use, tools.result_tokens) == ("on", built_in_settings().tools.result_tokens)
    assert tools.servers == (
        ToolServerSetting("files", ("files", "--root", "/tmp"), (("KEY", "x"),)),
        ToolServerSetting("web-2", ("web",), always=("search",)),
        ToolServerSetting(
            "far",
            url="https://tools.example/mcp?team=1",
            headers=(("X-Team", "mine"),),
            key_variable="TOOLS_KEY",
            timeout_s=300,
        ),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tools = false", r"tools is false; it must be a table: \[tools\]"),
        ("[tools]\nservers = 3", r"tools\.servers is 3; it must hold tables"),
        (
            "[tools.servers.'a\\e[31m']\ncommand = ['x']",
            "is not a valid name; allowed: 1 to 40 letters",
        ),
        ("[tools.servers]\nx = 'y'", "servers.x is not valid; allowed: a table with command"),
        (
            "[tools.servers.x]\ncommand = 'y'",
            r"servers\.x\.command is not valid; allowed: a list of texts",
        ),
        ("[tools.servers.x]\ncommand = ['']", r"servers\.x\.command is not valid"),
        ("[tools.servers.x]\ncommand = ['y']\nshell = 1", "has an unknown key 'shell'"),
        (
            "[tools.servers.x]\ncommand = ['y']\nenvironment = { A = 1 }",
            r"environment is not valid; allowed: a table",
        ),
        (
            "[tools.servers.x]\ncommand = ['y']\nenvironment = { 'A=B' = 'c' }",
            "by variable name, without =",
        ),
        (
            "[tools.servers.x]\ncommand = ['y']\nalways = 'z'",
            r"always is not valid; allowed: a list of tools",
        ),
        ("[tools.servers.x]\ncommand = ['y']\nurl = 'https://z'", "a table with command or url"),
        (
            "[tools.servers.x]\nurl = 'file:///etc/passwd'",
            r"url is not valid; allowed: an http or https address",
        ),
        ("[tools.servers.x]\nurl = 'https://a:b@c'", r"url is not valid"),
        (
            "[tools.servers.x]\nurl = 'https://c'\nheaders = { A = \"b\\r\\nC: d\" }",
            "HTTP headers",
        ),
        (
            "[tools.servers.x]\nurl = 'https://c'\nkey_variable = 'A=B'",
            "the name of an environment variable",
        ),
        (
            "[tools.servers.x]\ncommand = ['y']\ntimeout_s = 0",
            r"timeout_s is not valid; allowed: a number of seconds",
        ),
        ("[tools.servers.x]\ncommand = ['y']\ntimeout_s = true", "timeout_s is not valid"),
        ("[tools.servers.x]\ncommand = ['y']\ntimeout_s = nan", "timeout_s is not valid"),
    ],
)
def test_an_invalid_tool_server_is_refused_in_one_line(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as refused:
        load_settings(write(tmp_path, text))
    assert "\n" not in str(refused.value)
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize("table", ["serve", "server"])
def test_web_pages_that_may_use_the_server_are_listed(tmp_path: Path, table: str) -> None:
    origins = (
        "https://notes.example",
        "http://localhost:3000",
        "app://obsidian.md",
        "chrome-extension://abc",
        "http://[::1]:1",
    )
    file = write(tmp_path, f"[{table}]\norigins = {json.dumps(origins)}\n")
    assert load_settings(file).serve.origins == origins
    assert built_in_settings().serve.origins == ()


@pytest.mark.parametrize(
    "origin",
    ["*", "null", "notes.example", "https://", "https://*.example", "https://a.example/b", "x"],
)
def test_a_web_page_is_named_by_its_origin_only(tmp_path: Path, origin: str) -> None:
    with pytest.raises(
        SettingsError, match=r"serve\.origins has .*; allowed: pages by scheme and host"
    ):
        load_settings(write(tmp_path, f"[serve]\norigins = {json.dumps([origin])}\n"))


def test_thinking_can_be_limited_by_a_number(tmp_path: Path) -> None:
    assert load_settings(write(tmp_path, "thinking = 500")).thinking == "500"
    assert load_settings(write(tmp_path, 'thinking = "low"')).thinking == "low"


def test_the_user_file_is_found_in_the_platform_directory() -> None:
    own_settings('theme = "nord"\n')
    assert load_settings().theme == "nord"


def test_reading_the_user_file_does_not_change_it(tmp_path: Path) -> None:
    file = write(tmp_path, "threads = 3 # mine\n")
    original = (file.read_bytes(), file.stat().st_mtime_ns)
    load_settings(file)
    assert (file.read_bytes(), file.stat().st_mtime_ns) == original


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("treads = 3", "treads is not a setting (nearest: threads)"),
        (
            "temperature = 1.0",
            "temperature is not a setting (it belongs in a table: sampling.temperature)",
        ),
        ("[sampling]\ntopk = 1", "sampling.topk is not a setting (nearest: sampling.top_k)"),
        (
            "[sampling]\nthreads = 1",
            "sampling.threads is not a setting (it belongs at the top: threads)",
        ),
        ("sampling = 3", "sampling is 3; it must be a table: [sampling]"),
        ("threads = true", "threads is true; allowed: a whole number from 0 to 128"),
        ("threads = -1", "threads is -1; allowed: a whole number from 0 to 128"),
        ("threads = 2.0", "threads is 2.0; allowed: a whole number"),
        ("threads = [2]", "threads is a list; allowed: a whole number"),
        ("threads = 1979-05-27", "threads is a date or time; allowed: a whole number"),
        (
            'kv_type = "q4"',
            'kv_type is "q4"; allowed: "auto", "f16", "f32", "q8_0", "q4_0", "f16/q8_0"',
        ),
        ('low_power = "ON"', 'low_power is "ON"; allowed: "auto", "on", "off"'),
        (
            "[sampling]\ntemperature = nan",
            "sampling.temperature is nan; allowed: a number from 0 to 100",
        ),
        ("[sampling]\ntop_p = 1.5", "sampling.top_p is 1.5; allowed: a number from 0 to 1"),
        (
            "[sampling]\nseed = 99999999999999999999",
            "sampling.seed is 99999999999999999999; allowed:",
        ),
        ("[sampling]\ntemperature = 1" + "0" * 400, "allowed: a number from 0 to 100"),
        ("threads = 1" + "0" * 400, "allowed: a whole number from 0 to 128"),
        ("threads = 0x" + "f" * 5000, "allowed: a whole number from 0 to 128"),
        ('model = "a\\u0000b"', "allowed: text"),
        (
            'model_directories = ["~/a", "b"]',
            'model_directories has "b"; allowed: absolute paths, beginning with',
        ),
        ('model_directories = [""]', 'model_directories has ""; allowed: absolute paths'),
        ("system_prompt = 4", "system_prompt is 4; allowed: text"),
        (
            'thinking = "loud"',
            'thinking is "loud"; allowed: auto, on, off, low, medium, high, or a limit in tokens',
        ),
        ("thinking = -1", "thinking is -1; allowed: auto, on, off"),
        ("thinking = true", "thinking is true; allowed: auto, on, off"),
        ("threads = ", "is not valid TOML"),
        ("a = " + "[" * 5000, "lists nested more than 32 deep"),
        ("a = " + "[" * 40 + "]" * 40, "lists nested more than 32 deep"),
    ],
)
def test_a_wrong_setting_is_refused_with_file_and_allowed_values(
    tmp_path: Path, text: str, expected: str
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(SettingsError) as refused:
        load_settings(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert expected in str(refused.value)
    assert refused.value.exit_code == exit_codes.BAD_DATA


def test_a_settings_file_not_in_utf8_or_too_large_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes(b'theme = "\xff"')
    with pytest.raises(SettingsError, match="byte 9 is not UTF-8"):
        load_settings(file)
    with pytest.raises(SettingsError, match="is not a file"):
        load_settings(tmp_path)
    file.write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(SettingsError, match="limit: 1024 KiB"):
        load_settings(file)


def test_an_option_out_of_range_is_a_named_usage_error() -> None:
    with pytest.raises(
        SettingsError, match=r"--temp: .*111\.0; allowed: a number from 0 to 100"
    ) as refused:
        override(built_in_settings(), "sampling.temperature", 111.0, "--temp: the value")
    assert refused.value.exit_code == exit_codes.USAGE


def test_merging_does_not_change_the_original() -> None:
    original = built_in_settings()
    merge(original, {"sampling": {"top_k": 1}}, "test")
    assert original == built_in_settings()


def test_the_thread_limit_is_that_of_the_engine() -> None:
    assert settings.MOST_THREADS == crew.MOST_THREADS


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ('args = ["-y"]', "put it into command"),
        ('env = { A = "b" }', "use environment"),
        ('cwd = "/tmp"', "a command may change it"),
        ("startup = 3", "known: command, environment, url"),
    ],
)
def test_keys_of_other_programs_in_a_tool_server_are_named(
    tmp_path: Path, line: str, hint: str
) -> None:
    file = write(tmp_path, f'[tools.servers.x]\ncommand = ["npx"]\n{line}\n')
    with pytest.raises(SettingsError) as refused:
        load_settings(file)
    assert line.partition(" ")[0] in str(refused.value)
    assert hint in str(refused.value)


def test_each_sampler_has_its_description_in_default_toml() -> None:
    lines = (paths.bundled("config") / "default.toml").read_text(encoding="utf-8").splitlines()
    for name, sampler in SAMPLERS.items():
        index = next(number for number, line in enumerate(lines) if line.startswith(f"{name} = "))
        assert lines[index - 1] == f"# {sampler.description}"


def test_samplers_have_the_limits_of_the_engine() -> None:
    for name, sampler in SAMPLERS.items():
        if name in ("max_tokens", "seed"):
            continue
        Sampling(**{name: sampler.value_type(sampler.least)})
        Sampling(**{name: sampler.value_type(sampler.most)})
        if sampler.value_type is float:
            with pytest.raises(EngineError, match=name):
                Sampling(**{name: sampler.most + 0.01})
