import io
import json
import os
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from app.cli import standard_input
from app.cli.run import RunOptions, read_prompt, run
from app.forms.answer_form import SCHEMA, read_form_file
from app.program import exit_codes
from app.program.bundled_model import starter_file
from app.program.refusals import Refusal
from app.program.settings import Settings, built_in_settings
from app.reply.starter_fence import answers_to
from engine.errors import BrokenModelError, EngineError, GGUFError
from tests.app.cli.test_line_mode import InterruptingOutput
from tests.app.fake_engine import BOS, Gate, Script
from tests.app.scripted_access import use_script
from tests.engine import tiny_gguf
from tests.engine.vision import tiny_mmproj

Answered = Callable[..., tuple[str, str]]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    return use_script(monkeypatch, Script(replies=[["Par", "is", "."]]))


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def settings_with(**sampling: Any) -> Settings:
    settings = built_in_settings()
    return replace(settings, sampling=replace(settings.sampling, **sampling))


@pytest.fixture
def answered(script: Script, capsys: pytest.CaptureFixture[str]) -> Answered:
    """Return a function that runs a prompt and returns the text on stdout and stderr."""

    def answer(prompt: str, settings: Settings | None = None, **options: Any) -> tuple[str, str]:
        assert (
            run(RunOptions("m.gguf", prompt, **options), settings or settings_with(), script.clock)
            == exit_codes.OK
        )
        return capsys.readouterr()

    return answer


def test_the_reply_is_on_stdout_and_figures_on_stderr(answered: Answered) -> None:
    out, err = answered("capital of France?")
    assert out == "Paris.\n"
    # 3 words, the start and 3 markers: 7 tokens of 0.1 s each, then 0.5 s a token.
    assert (
        err
        == "3 tokens · 2.0 tok/s · first word after 1.2 s · read 7 prompt tokens at 10.0 tok/s\n"
    )


def test_json_is_one_object_with_text_and_figures(answered: Answered, script: Script) -> None:
    out, err = answered("capital of France?", settings_with(max_tokens=2), as_json=True)
    assert err == ""
    assert out.count("\n") == 1
    assert json.loads(out) == {
        "text": "Paris",
        "prompt_tokens": 7,
        "tokens": 2,
        "guessed_tokens": 0,
        "prefill_tps": pytest.approx(10.0),
        "decode_tps": pytest.approx(2.0),
        "first_token_s": pytest.approx(1.2),
        "finish_reason": "length",
        "model": "m",
    }
    script.replies = [["\x1b[2J\x7f\x9b"]]
    out, _ = answered("hi", as_json=True)
    assert out.rstrip("\n").isprintable()
    assert json.loads(out)["text"] == "\x1b[2J\x7f\x9b"


@pytest.mark.parametrize(
    ("prompt", "raw", "system", "tokens"),
    [
        ("Once upon a time", True, "", "Once upon a timeParis."),  # without a template
        ("hi", False, "be brief", "be briefhiParis."),
    ],
)
def test_the_model_gets_prompt_and_system_prompt(
    prompt: str, raw: bool, system: str, tokens: str, answered: Answered, script: Script
) -> None:
    answered(prompt, replace(settings_with(), system_prompt=system), raw=raw)
    model = script.opened[0]
    assert model.sessions[0].tokens[0] == BOS
    assert model.tokenizer.decode(model.sessions[0].tokens) == tokens


def test_a_known_length_needs_a_small_context_only(answered: Answered, script: Script) -> None:
    answered("a b c", settings_with(max_tokens=5), raw=True)
    assert script.opened[0].sessions[0].n_ctx == 4 + 5
    assert script.opened[0].sessions[0].is_closed


def test_a_prompt_that_is_too_long_or_empty_is_refused(script: Script) -> None:
    with pytest.raises(Refusal, match="the prompt is empty"):
        run(RunOptions("m.gguf", " \n"), settings_with(), script.clock)
    assert script.opened == []
    script.n_ctx = 3
    with pytest.raises(Refusal, match="the prompt has 4 tokens, but the context holds 3"):
        run(RunOptions("m.gguf", "a b c", raw=True), settings_with(), script.clock)


def test_a_dash_reads_standard_input_and_repairs_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"two\nlines\xff")))
    assert read_prompt("-") == "two\nlines�"
    assert read_prompt("caf\udce9") == "caf�"


def test_a_terminal_gets_filtered_text_and_a_pipe_gets_it_raw(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script.replies = [["a\x1b", "]0;x\x07", "\r"]]
    run(RunOptions("m.gguf", "hi"), settings_with(), script.clock)
    assert capsys.readouterr().out == "a\x1b]0;x\x07\r\n"
    terminal = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    run(RunOptions("m.gguf", "hi"), settings_with(), script.clock)
    assert terminal.getvalue() == "a␛]0;x␇␍\n"


def test_an_engine_error_is_raised_after_the_text_so_far(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    script.fail_after_tokens = 2
    with pytest.raises(BrokenModelError):
        run(RunOptions("m.gguf", "hi"), settings_with(), script.clock)
    assert capsys.readouterr().out == "Paris\n"
    script.open_error = GGUFError("m.gguf: broken")
    with pytest.raises(GGUFError):
        run(RunOptions("m.gguf", "hi"), settings_with(), script.clock)


def test_a_closed_pipe_ends_the_reply(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):
        run(RunOptions("m.gguf", "hi"), settings_with(), script.clock)
    assert script.opened[0].sessions[0].is_closed


def test_ctrl_c_keeps_the_partial_answer_and_returns_130(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script.token_gate = Gate()
    script.token_gate.allow(1)
    monkeypatch.setattr(sys, "stdout", output := InterruptingOutput("Par"))
    assert run(RunOptions("m.gguf", "hi"), settings_with(), script.clock) == exit_codes.INTERRUPTED
    assert output.getvalue() == "Par\n"
    assert "stopped" in capsys.readouterr().err


def pipe(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    """Make standard input a pipe with this text."""
    reading, writing = os.pipe()
    os.write(writing, text)
    os.close(writing)
    monkeypatch.setattr(sys, "stdin", os.fdopen(reading, encoding="utf-8"))


def test_the_prompt_is_the_words_and_then_the_piped_text(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"a text\n")
    assert read_prompt(None, ["sum", "it", "up"]) == "sum it up\n\na text\n"
    pipe(monkeypatch, b"a text\n")
    assert read_prompt("sum it up") == "sum it up\n\na text\n"
    pipe(monkeypatch, b"a text\n")
    assert read_prompt(None) == "a text\n"
    pipe(monkeypatch, b"")
    assert read_prompt("sum it up") == "sum it up"
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115 - it is closed with the test
    assert read_prompt("sum it up") == "sum it up"


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a file in the current directory."""
    (tmp_path / "notes.txt").write_text("The key is under the mat.\n")
    monkeypatch.chdir(tmp_path)
    return "notes.txt"


def sent_text(script: Script) -> str:
    """Return the text of the message that the model got last."""
    return str(script.opened[-1].chats[-1].messages[0].content)


def test_files_are_added_to_the_prompt(answered: Answered, script: Script, notes: str) -> None:
    answered("Where is the key?", files=[notes])
    text = sent_text(script)
    assert text.startswith("notes.txt:\n")
    assert "under the mat" in text
    assert text.endswith("Where is the key?")


def test_a_file_after_an_at_sign_is_read_if_the_user_agrees(
    answered: Answered, script: Script, notes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cli.run.can_ask", lambda: True)
    answers = {"attach notes.txt (26B)?": True}
    monkeypatch.setattr("app.cli.run.agrees", answers.__getitem__)
    answered("@notes.txt where is the key?")
    assert "under the mat" in sent_text(script)
    answers["attach notes.txt (26B)?"] = False
    answered("@notes.txt where is the key?")
    assert "under the mat" not in sent_text(script)


def test_without_a_terminal_an_at_sign_only_names_the_option(
    answered: Answered, script: Script, notes: str
) -> None:
    _, err = answered("where is the key, @nobody? in @notes.txt?")
    assert "jalopy run: not read: notes.txt (26B) (--file notes.txt reads it)\n" in err
    assert "under the mat" not in sent_text(script)


def test_a_file_that_cannot_be_read_ends_the_run(script: Script, notes: str) -> None:
    with pytest.raises(Refusal, match=r"^jalopy run: nosuch\.txt"):
        run(RunOptions("m.gguf", "hi", files=["nosuch.txt"]), settings_with(), script.clock)
    assert script.opened == []


def test_a_form_may_come_through_a_pipe(tmp_path: Path) -> None:
    pipe_path = tmp_path / "pipe"
    os.mkfifo(pipe_path)
    writer = threading.Thread(target=pipe_path.write_text, args=('{"type": "object"}',))
    writer.start()
    form = read_form_file(SCHEMA, str(pipe_path), takes_pipe=True)
    writer.join()
    assert json.loads(form.text) == {"type": "object"}
    with pytest.raises(Refusal, match="is not a file"):
        read_form_file(SCHEMA, str(pipe_path))


def test_an_empty_reply_is_explained(answered: Answered, script: Script) -> None:
    script.replies = [[""]]
    _, err = answered("hi")
    assert "jalopy run: the model wrote nothing: run it again, or ask in other words\n" in err


def test_a_prompt_given_twice_or_not_at_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refusal, match="two prompts"):
        read_prompt("one", ["two"])
    monkeypatch.setattr(sys, "stdin", FakeTerminal())
    with pytest.raises(Refusal, match="there is no prompt"):
        read_prompt(None)


@pytest.mark.slow
def test_the_reply_has_the_requested_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line comes from Jalopy, not from the starter model."""
    (tmp_path / "form.json").write_text('{"enum":["left","right"]}')
    (tmp_path / "form.gbnf").write_text('root ::= "le" [a-f]{2}')
    starter = str(starter_file())
    for options, pattern in (
        ({"schema": str(tmp_path / "form.json")}, '"(left|right)"'),
        ({"grammar": str(tmp_path / "form.gbnf")}, "le[a-f]{2}"),
        ({"regex": "[0-9]{3}-[0-9]{2}"}, "[0-9]{3}-[0-9]{2}"),
    ):
        assert (
            run(RunOptions(starter, "Say it.", **options), settings_with(max_tokens=20))
            == exit_codes.OK
        )
        assert re.fullmatch(pattern, capsys.readouterr().out.strip())


def test_the_starter_names_a_larger_model_if_it_cannot_answer(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("app.cli.run.is_starter", lambda path: True)
    monkeypatch.setattr("app.cli.run.real_model_line", lambda settings: "A real model answers this")
    script.replies[:] = [answers_to(["Who wrote the Rigveda?"])[:1], ["Lima."]]
    for n_lines in (1, 0):
        run(RunOptions("m.gguf", "hello"), settings_with(), script.clock)
        assert capsys.readouterr().err.count("A real model answers this\n") == n_lines


def test_an_unusable_form_is_refused_before_the_model_opens(script: Script, tmp_path: Path) -> None:
    (tmp_path / "form.json").write_text("{")
    form = str(tmp_path / "form.json")
    for options, why in (
        ({"schema": form}, "jalopy run: form.json is not JSON"),
        ({"regex": "(a"}, "jalopy run: --regex cannot be used"),
        ({"regex": ""}, "jalopy run: --regex is empty"),
        ({"regex": "a", "schema": form}, "--schema and --regex both"),
    ):
        with pytest.raises(Refusal, match=re.escape(why)):
            run(RunOptions("m.gguf", "hi", **options), settings_with(), script.clock)
    assert not script.opened


def test_a_silent_pipe_does_not_delay_the_reply(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(standard_input, "NOTICE_S", 0.01)
    monkeypatch.setattr(standard_input, "TIMEOUT_S", 0.02)
    reading, writing = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(reading, encoding="utf-8"))
    try:
        assert read_prompt(None, ["hello"]) == "hello"
    finally:
        os.close(writing)
    output = capsys.readouterr().err
    assert "standard input is open, waiting 0.02 s for text" in output
    assert "answering without it" in output


@pytest.mark.parametrize(
    ("words", "prompt"), [(["hello"], "hello\n\none\ntwo\n"), ([], "one\ntwo\n")]
)
def test_slow_input_is_awaited_with_a_line(
    words: list[str],
    prompt: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(standard_input, "NOTICE_S", 0.0)
    monkeypatch.setattr(standard_input, "TIMEOUT_S", 60.0)
    reading, writing = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(reading, encoding="utf-8"))
    os.write(writing, b"one\n")
    real_say = standard_input.say

    def end(line: str) -> None:
        real_say(line)
        os.write(writing, b"two\n")
        os.close(writing)

    monkeypatch.setattr(standard_input, "say", end)
    assert read_prompt(None, words) == prompt
    assert "standard input" in capsys.readouterr().err


def test_endless_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard_input, "MAX_INPUT_BYTES", 1 << 20)
    with open("/dev/zero", encoding="utf-8") as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        with pytest.raises(Refusal, match="larger than 1 MiB"):
            read_prompt("-")


@pytest.mark.slow
def test_run_shows_pictures_to_a_model_that_sees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described = tiny_gguf.model(
        "qwen3vl", dim=tiny_mmproj.TEXT_WIDTH, head_dim=16, context_length=512
    )
    path = str(described.write(tmp_path / "m.gguf"))
    tiny_mmproj.qwen3vl().write(tmp_path / "mmproj-m.gguf")
    names = []
    for number in range(2):
        names.append(str(tmp_path / f"{number}.png"))
        Image.fromarray(tiny_mmproj.picture(90, 60, number)).save(names[-1])
    n_read = []
    for images in ([], names[:1], names):
        assert run(RunOptions(path, "a", images=images), settings_with(max_tokens=2)) == 0
        _, err = capsys.readouterr()
        n_read.append(int(re.findall(r"read (\d+) prompt tokens", err)[0]))
    assert n_read[1] >= n_read[0] + 8
    assert n_read[2] - n_read[1] == n_read[1] - n_read[0]
    assert run(RunOptions(path, "a", files=names[:1]), settings_with(max_tokens=2)) == 0
    _, err = capsys.readouterr()
    assert int(re.findall(r"read (\d+) prompt tokens", err)[0]) == n_read[1]

    (tmp_path / "mmproj-m.gguf").unlink()
    with pytest.raises(Refusal, match="cannot read pictures"):
        run(RunOptions(path, "a", images=names[:1]), settings_with(max_tokens=2))


HOSTILE_ENCODERS = {
    "of another size": (tiny_mmproj.gemma3, "it belongs to another model"),
    "of another family": (tiny_mmproj.lfm2, "it belongs to another model"),
    "with NaN": (tiny_mmproj.qwen3vl, "mmproj-x.gguf: "),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE_ENCODERS)
def test_an_encoder_that_does_not_work_is_said_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, expected = HOSTILE_ENCODERS[name]
    encoder = make()
    if name == "with NaN":
        encoder.fill("v.blk.1.ffn_down.weight", float("nan"))
    model = str(
        tiny_gguf.model(
            "qwen3vl", dim=tiny_mmproj.TEXT_WIDTH, head_dim=16, context_length=512
        ).write(tmp_path / "m.gguf")
    )
    picture = str(tmp_path / "a.png")
    Image.fromarray(tiny_mmproj.picture(90, 60)).save(picture)
    settings = settings_with(max_tokens=2)
    mmproj = str(encoder.write(tmp_path / "mmproj-x.gguf"))
    settings = replace(settings, pictures=replace(settings.pictures, mmproj=mmproj))
    with pytest.raises((Refusal, EngineError)) as caught:
        run(RunOptions(model, "a", images=[picture]), settings)
    message = str(caught.value)
    assert expected in message
    assert "\n" not in message
    assert capsys.readouterr().out == ""


def test_pictures_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.png")
    with pytest.raises(Refusal, match=r"none\.png: no such file"):
        run(RunOptions("m.gguf", "a", images=[missing]), settings_with())
    with pytest.raises(Refusal, match="--image and --raw"):
        run(RunOptions("m.gguf", "a", images=[missing], raw=True), settings_with())
    with pytest.raises(Refusal, match="at most 32 pictures"):
        run(RunOptions("m.gguf", "a", images=[missing] * 33), settings_with())
