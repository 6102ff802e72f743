"""Tests of choosing a remote model by command line, environment and settings."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest

from app.cli import arguments
from app.cli.dispatch import run_command
from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.settings import SettingsError, built_in_settings
from tests.app.backend.remote.raw_api import answering, stream

URL = "http://localhost:8000/v1"
CHOICES = {
    "": ("", "", False, None),
    f"--server {URL}": ("", "", True, None),
    f"chat --server {URL} --model big": ("", "", True, None),
    "m.gguf ": (URL, URL, False, "m.gguf"),
    "chat ": (URL, "", True, None),
    " --plain": ("", URL, True, None),
    f"run --server {URL} hello": ("", "", True, None),
    "run m.gguf hello": (URL, "", False, "m.gguf"),
    "run -p hello": (URL, "", True, None),
}


@pytest.mark.parametrize("line", CHOICES)
def test_the_model_comes_from_options_and_settings(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_environment, in_settings, is_served, model = CHOICES[line]
    monkeypatch.setenv(arguments.SERVER_VARIABLE, in_environment)
    options = arguments.parse(line.split())
    settings = arguments.apply(options, replace(built_in_settings(), server=in_settings))
    assert (options.is_served, options.model) == (is_served, model)
    assert settings.server == (URL if options.server or in_environment else in_settings)
    assert getattr(options, "words", []) == (
        ["hello"] if line.startswith("run") and "-p" not in line else []
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"m.gguf --server {URL}", "--server does not open files of this machine"),
        ("--model big", "add --server URL"),
        (
            "--server host:8000",
            '--server: the value is "host:8000"; allowed: an http or https address',
        ),
        (
            "--server https://me:secret@host",
            "allowed: an http or https address without a password",
        ),
    ],
)
def test_contradicting_options_are_refused(line: str, words: str) -> None:
    options = arguments.parse(line.split())
    with pytest.raises((Refusal, SettingsError)) as refused:
        arguments.apply(options, built_in_settings())
    assert words in str(refused.value)


def test_run_and_line_mode_use_the_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n/threads\n/continue\n"))
    broken = stream("two", end=b"")
    with answering(stream("Because", "."), broken, stream(" three")) as api:
        assert (
            run_command(arguments.parse(["run", "--server", api.url, "-p", "Why?"]))
            == exit_codes.OK
        )
        out, err = capsys.readouterr()
        assert out == "Because.\n"
        assert err.splitlines()[-1].startswith("2 tokens")
        assert (
            run_command(arguments.parse(["--server", api.url, "--model", "big", "--plain"]))
            == exit_codes.OK
        )
        out, err = capsys.readouterr()
        host = api.url.split("/")[2]
        assert "two" in out
        assert out.rstrip().endswith("three")
        assert f"big · context 4,096 tokens · computed by {host}" in err
        assert f"{host}: the connection ended before the answer did" in err
        assert f"{host} computes, and not threads of this machine" in err


def test_an_unreachable_server_gives_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with answering() as api:
        url = api.url
    with pytest.raises(Refusal, match="cannot be reached"):
        run_command(arguments.parse(["run", "--server", url, "-p", "Why?"]))


def test_without_a_name_the_first_chat_model_is_used() -> None:
    models = (
        b'{"data": [{"id": "text-embedding-nomic-embed-text-v1.5"}, {"id": "bge-reranker"}, '
        b'{"id": "chatty"}]}'
    )
    with answering(stream("Because."), models=models) as api:
        assert (
            run_command(arguments.parse(["run", "--server", api.url, "-p", "Why?"]))
            == exit_codes.OK
        )
    assert api.bodies[0]["model"] == "chatty"
    with answering(stream("Because."), models=b'{"data": [{"id": "my-embedder"}]}') as api:
        assert (
            run_command(arguments.parse(["run", "--server", api.url, "-p", "Why?"]))
            == exit_codes.OK
        )
    assert api.bodies[0]["model"] == "my-embedder"
