"""Tests of the lines that make other programs use the server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tomli

from app.cli.arguments import _parser
from app.program import manual
from app.program.settings import built_in_settings
from app.server import start_page
from app.server.command import serve
from app.server.program_setup import PROGRAMS, setup_lines
from tests.engine import tiny_gguf


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_has_a_section(program: str) -> None:
    text = "\n".join(setup_lines(program, "http://10.0.0.7:1234", "my-model"))
    assert "http://10.0.0.7:1234" in text
    assert "8080" not in text
    assert f"## {program}\n" in manual.page("editors")


def test_the_lines_of_agents_name_the_model() -> None:
    address = "http://127.0.0.1:9"
    codex = tomli.loads("\n".join(setup_lines("codex", address, "my-model")))
    assert codex["model"] == "my-model"
    assert codex["model_providers"]["jalopy"]["base_url"] == f"{address}/v1"
    opencode = json.loads("\n".join(setup_lines("opencode", address, "my-model")))
    assert opencode["provider"]["jalopy"]["models"] == {"my-model": {}}
    pi = json.loads("\n".join(setup_lines("pi", address, "my-model")))
    assert pi["providers"]["jalopy"]["models"] == [{"id": "my-model"}]
    assert "export ANTHROPIC_MODEL=m ANTHROPIC" in "\n".join(setup_lines("claude", address, "m"))
    assert "export OPENAI_API_KEY=none OPENAI_MODEL=m" in setup_lines("qwen", address, "m")
    assert setup_lines("qwen", address, "m")[-1] == "qwen --auth-type openai"
    assert setup_lines("aider", address, "m")[-1] == "aider --model openai/m"


def test_the_command_line_and_the_page_offer_every_program() -> None:
    for program in PROGRAMS:
        assert _parser("serve").parse_args(["--for", program]).program == program
        assert program in start_page._PROGRAMS


def test_serve_prints_the_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "small.gguf")
    code = serve(
        built_in_settings(), str(path), "::1", 9000, "", "", (), 16, 0, None, program="claude"
    )
    assert code == 0
    printed = capsys.readouterr().out
    assert "ANTHROPIC_BASE_URL=http://[::1]:9000\n" in printed
    assert "ANTHROPIC_MODEL=small " in printed
