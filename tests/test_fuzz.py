"""Inputs that failed once must pass, and every target must find a planted fault."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from textual import events

from app.conversations import import_file as foreign
from app.conversations import journal, message_row, store
from app.conversations.conversation import Conversation
from app.documents import text_file
from app.forms.constraint import FormConstraint
from app.models.downloads.part_file import PartFile
from app.program import small_file
from app.program.refusals import Refusal
from app.server.api_error import ApiError
from app.server.dialects import openai_request
from app.server.fields import Fields
from app.tools.mcp import server
from app.tui import keymap, themes
from app.tui.chat import external_editor
from app.tui.widgets.prompt import Prompt
from engine.convert import bounded, convert
from engine.prompt.chat_prompt import ChatPrompt
from engine.saved_state import segments
from engine.vision.encoder import PictureEncoder
from tests.engine.vision import tiny_mmproj
from tests.programs.fuzz import __main__ as command
from tests.programs.fuzz import (
    chat_templates,
    checkpoints,
    documents,
    forms,
    gguf_files,
    kept,
    keys,
    own_files,
    planted,
    requests,
    servers,
)
from tests.programs.fuzz.campaign import Campaign
from tests.programs.fuzz.target import Fault, Watch
from tests.programs.fuzz.targets import TARGETS, load
from tests.programs.fuzz.worker import Result, Worker, execute, mutated


@pytest.fixture(scope="module", autouse=True)
def _no_server_stays() -> Iterator[None]:
    yield
    requests.close()


KEPT = [(name, path) for name in TARGETS for path in kept.kept(name)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "path"), KEPT, ids=[f"{name}-{path.stem}" for name, path in KEPT])
def test_what_failed_once_holds(name: str, path: Path) -> None:
    assert execute(load(name), kept.read_input(path), enforces=False).fault == ""


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs_are_the_same_for_the_same_seed(name: str) -> None:
    def made() -> list[bytes]:
        rng = Random(3)
        corpus = load(name).seeds()
        for _ in range(40):
            corpus.append(mutated(load(name), rng, corpus))
        return corpus

    assert made() == made()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "form",
        "database",
        "state",
        "template",
        "tools",
        "export",
        "convert",
        "documents",
        "file",
        "pictures",
    ],
)
def test_sound_inputs_and_some_changed_ones_hold(name: str) -> None:
    target = load(name)
    rng = Random(11)
    corpus = target.seeds()[:6]
    outcomes = set()
    for data in corpus + [mutated(target, rng, corpus) for _ in range(12)]:
        result = execute(target, data, enforces=False)
        assert result.fault == ""
        outcomes.add(result.outcome)
    assert len(outcomes) > 1


# ---- planted faults


def found_in(name: str, most: int = 300) -> Result:
    """Run the seeds and changed inputs until one fails."""
    # it finds each of the faults below among the first inputs
    target = load(name)
    rng = Random(38)
    corpus = target.seeds()
    for data in chain(corpus, (mutated(target, rng, corpus) for _ in range(most))):
        result = execute(target, data, enforces=False)
        if result.fault:
            return result
    raise AssertionError("nothing was found")


def test_keys_and_values_that_no_one_checked_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unchecked(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    monkeypatch.setattr(
        segments, "zlib", SimpleNamespace(crc32=lambda view: Unchecked(zlib.crc32(view)))
    )
    assert "keys and values of other tokens" in found_in("state").fault


@pytest.mark.slow
def test_a_message_that_no_one_cleaned_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_row, "clean_text", str)
    assert "control characters" in found_in("database").fault


def test_rows_that_are_not_finite_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PictureEncoder, "_refuse_damage", lambda self, rows: None)
    tiny = tiny_mmproj.lfm2()
    tiny.fill("v.post_ln.weight", 3e38)  # finite, and its products are not
    assert "not finite" in execute(load("pictures"), tiny.to_bytes(), enforces=False).fault


def test_a_gap_that_the_model_is_told_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Conversation, "drop_gaps", lambda self: None)
    assert "told of what is missing" in found_in("database").fault


def test_what_is_not_written_when_it_goes_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "put_message", lambda *_: lambda db, number: None)
    monkeypatch.setattr(journal, "put_message", store.put_message)
    assert "something else" in found_in("database").fault


def test_text_that_becomes_a_control_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatPrompt, "_guard", lambda self, content, ids=(), written="": content)
    data = chat_templates.seeds()[0]
    assert "control tokens" in execute(load("template"), data, enforces=False).fault


def test_a_model_file_that_raises_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def validate(path: Path) -> Any:
        raise IndexError("planted")

    monkeypatch.setattr(gguf_files, "validate", validate)
    result = execute(load("gguf"), gguf_files.pack([b"GGUF"]), enforces=False)
    assert result.outcome.startswith("FAULT IndexError")
    assert "planted" in result.fault


def test_a_refusal_that_is_not_one_clean_line_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def validate(path: Path) -> Any:
        raise gguf_files.EngineError("planted\x1b[31m")

    monkeypatch.setattr(gguf_files, "validate", validate)
    assert "clean line" in execute(load("gguf"), gguf_files.pack([b"GGUF"]), enforces=False).fault


def test_a_sound_model_opens_and_a_cut_one_is_refused() -> None:
    data = gguf_files.unpack(gguf_files.seeds()[5])[0]
    assert execute(load("gguf"), gguf_files.pack([data]), enforces=False).outcome == "opens"
    refused = execute(load("gguf"), gguf_files.pack([data[:5000]]), enforces=False)
    assert (refused.fault, refused.outcome) != ("", "opens")


def test_a_conversion_that_raises_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    files = checkpoints.unpack(checkpoints.seeds()[1])
    files["tokenizer.json"] = files["tokenizer.json"].replace(
        b'"merges": [[', b'"merges": [["\\ud800", "a"], ['
    )
    assert execute(load("convert"), checkpoints.pack(files), enforces=False).fault == ""
    monkeypatch.setattr(bounded, "is_utf8", lambda text: True)
    result = execute(load("convert"), checkpoints.pack(files), enforces=False)
    assert result.outcome.startswith("FAULT UnicodeEncodeError")


def test_a_converted_file_that_does_not_open_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "_check", lambda conversion: None)
    assert "what was written does not open" in found_in("convert").fault


def test_a_wrong_file_that_a_download_ends_with_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(part_file: PartFile) -> Path:
        return part_file.path.rename(part_file.final)

    monkeypatch.setattr(PartFile, "finish", unchecked)
    data = next(data for data in servers.seeds() if b"wrong part" in data)
    assert "wrong file" in execute(load("server"), data, enforces=False).fault


def test_a_download_that_an_honest_server_cannot_mend_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        servers, "sound_content", lambda request: ("HTTP/1.1 404 No", {"Content-Length": "0"}, b"")
    )
    result = execute(load("server"), b"{}", enforces=False)
    assert "does not end in the right file" in result.fault


def test_an_editor_that_a_paste_starts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[asyncio.Task[int]] = []

    async def on_paste(prompt: Prompt, event: events.Paste) -> None:
        started.append(asyncio.create_task(external_editor._run(["planted"])))

    monkeypatch.setattr(Prompt, "_on_paste", on_paste)
    result = execute(load("keys"), b"empty\n\x1b[200~hello\x1b[201~", enforces=False)
    assert "an editor was run" in result.fault
    assert started


def test_a_token_that_a_form_forbids_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FormConstraint, "forced", lambda self: [0])
    data = next(seed for seed in forms.seeds() if b"[a-c]" in seed)
    assert "forced that may not come" in execute(load("form"), data, enforces=False).fault


def test_a_document_that_is_not_cleaned_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "clean_text", str)
    assert "control characters" in found_in("documents").fault


def test_a_document_that_a_message_does_not_give_back_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(documents, "attached", lambda name, text: f"{name}:\n```\n{text}\n```\n")
    assert found_in("documents").fault


def test_a_converter_that_raises_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(*_: object) -> str:
        raise IndexError("planted")

    monkeypatch.setattr(documents, "converted", convert)
    assert execute(load("documents"), documents.seeds()[0], enforces=False).outcome.startswith(
        "FAULT IndexError"
    )


def test_a_mask_that_allows_everything_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = FormConstraint.allowed
    monkeypatch.setattr(FormConstraint, "allowed", lambda self: sound(self) | True)
    assert (
        "a sound form cannot be followed"
        in execute(load("form"), forms.seeds()[0], enforces=False).fault
    )


def test_a_text_of_a_tool_server_that_no_one_cleaned_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "clean_text", str)
    assert "not clean" in found_in("tools").fault


def test_an_import_that_no_one_cleaned_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "clean_text", str)
    assert "control characters" in found_in("export", most=3000).fault


def test_a_theme_that_no_one_checked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(themes, "_check_colours", lambda *_: None)
    assert found_in("file").fault


def test_a_line_that_does_not_name_the_file_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(text: str, path: str, error: type[Refusal]) -> Any:
        raise error("planted")

    monkeypatch.setattr(small_file, "parse_toml", parse)
    data = next(seed for seed in own_files.seeds() if seed.startswith(b"settings"))
    assert "does not name the file" in execute(load("file"), data, enforces=False).fault


def test_an_exception_of_a_key_map_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keymap, "_check_clashes", lambda *_: {}["planted"])
    data = next(seed for seed in own_files.seeds() if seed.startswith(b"keys"))
    assert execute(load("file"), data, enforces=False).outcome.startswith("FAULT KeyError")


@pytest.mark.smoke
@pytest.mark.slow
def test_a_field_that_no_one_checked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(fields: Fields) -> Any:
        return tuple(fields.value("stop"))

    data = next(seed for seed in requests.seeds() if b'"path": "/v1/chat/completions"' in seed)
    monkeypatch.setattr(openai_request, "read_stop_strings", unchecked)
    broken = data.replace(b'"stop": ["END"]', b'"stop": 5')
    assert broken != data
    assert "status 500" in execute(load("requests"), broken, enforces=False).fault
    monkeypatch.undo()
    assert execute(load("requests"), broken, enforces=False).fault == ""
    assert (
        execute(load("requests"), data, enforces=False).outcome
        == "/v1/chat/completions 200 application/json"
    )


@pytest.mark.slow
def test_a_refusal_in_the_words_of_another_api_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    data = requests.seeds()[0].replace(b'"stop": ["END"]', b'"stop": 5')
    monkeypatch.setattr(ApiError, "body", lambda self: {"error": self.message})
    assert "words of the API" in execute(load("requests"), data, enforces=False).fault


def test_the_editors_own_key_is_no_fault() -> None:
    assert keys._MAY_EDIT.search("\x07")
    assert not keys._MAY_EDIT.search(keys._PASTE.sub("", "\x1b[200~\x07\x1b[201~"))


# ---- the campaign


@pytest.mark.slow
def test_a_campaign_finds_every_way_to_fail_and_keeps_the_inputs(tmp_path: Path) -> None:
    lines: list[str] = []
    campaign = Campaign("planted", 1, tmp_path, lines.append)
    figures = campaign.run(600.0, most_executions=7)
    outcomes = set(figures.failed)
    assert any("signal" in outcome for outcome in outcomes)
    assert {"FAULT hung", "FAULT it did not hold"} <= outcomes
    assert any("ValueError at planted.py" in outcome for outcome in outcomes)
    assert any("FAULT the step took" in outcome and "memory" in outcome for outcome in outcomes)
    assert {kept.read_input(path) for path in figures.failed.values()} == set(planted.WAYS)
    replays = [line for line in lines if line.startswith("FAILED planted")]
    assert len(replays) == len(figures.failed)
    assert all("python -m tests.programs.fuzz planted --replay" in line for line in replays)
    assert "7 executions" in lines[-1]


def test_a_replay_says_what_becomes_of_an_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.replay("planted", kept.keep("planted", b"fine", tmp_path)) == 0
    assert command.replay("planted", kept.keep("planted", b"exception", tmp_path)) == 1
    assert "no one expected this" in capsys.readouterr().out


def test_a_costly_step_is_a_fault_only_where_that_is_enforced() -> None:
    with Worker("planted") as worker:
        assert "processor time" in worker.run(b"time").fault
        assert worker.run(b"fine").fault == ""
    with pytest.raises(Fault), Watch().bounded("it", -1.0, 0):
        pass
    with Watch(enforces=False).bounded("it", -1.0, 0):
        pass


def test_progress_is_reported_and_new_lines_add_seeds(tmp_path: Path) -> None:
    lines: list[str] = []
    ticking = iter(range(0, 10_000, 20))
    clock: Callable[[], float] = lambda: float(next(ticking))  # noqa: E731
    figures = Campaign("state", 1, tmp_path, lines.append, clock).run(600.0)
    assert figures.failed == {}
    assert figures.seeds_added > 0
    assert len(lines) > 3
    assert "distinct outcomes" in lines[-1]


def test_large_inputs_are_kept_small(tmp_path: Path) -> None:
    path = kept.keep("x", bytes(50_000), tmp_path)
    assert path.stat().st_size < 1000
    assert kept.read_input(path) == bytes(50_000)
    assert kept.kept("x", tmp_path) == [path]
