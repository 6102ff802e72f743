"""``jalopy states``: listing and deleting saved states."""

import json
import os

import pytest

from app.cli import arguments
from app.cli.states import states
from app.conversations.state_files import SegmentRecorder, save_model_name
from app.conversations.store import Store
from app.program import paths
from app.program.refusals import Refusal
from app.program.settings import built_in_settings
from engine.saved_state import StateWriter, stored_in
from tests.app.conversations.talk import saved_talk
from tests.engine.scripted_session import ScriptedSession


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Folder with the states of two conversations that share 70 tokens; one was deleted."""
    folder = paths.states_dir() / "abc-f16"
    saved_talk(Store().root, 1)
    notes = SegmentRecorder(Store().root / "000001", "abc-f16")
    for number, tokens in enumerate(([*range(70), *range(30)], list(range(150)))):
        session = ScriptedSession()
        session.feed(tokens)
        writer = StateWriter(session, folder, on_segment=notes.note if number else str)
        assert writer.flush(60)
        writer.close()
        for path in folder.iterdir():
            if path.stat().st_mtime > 1.1e9:  # written or used now
                os.utime(path, (1e9 + 1000 * number, 1e9 + 1000 * number))
    save_model_name(folder, "Tiny\x1b[2J model")
    return folder


def listed(capsys, **options):
    assert states(built_in_settings(), **options) == 0
    return capsys.readouterr().out


def test_prefixes_are_listed_with_shared_bytes_and_title(folder, capsys):
    (folder / "\x1b[31mx.kv").write_text("x")
    (folder.parent / "link").symlink_to(folder)
    report = json.loads(listed(capsys, as_json=True))
    long, short = report["states"]
    assert (long["tokens"], short["tokens"]) == (150, 100)
    first = next(
        segment_file.n_bytes
        for segment_file in stored_in(folder)
        if segment_file.segment.last == 64
    )
    assert long["shared_bytes"] == short["shared_bytes"] == first
    assert report["bytes"] == long["bytes"] + short["bytes"] - first
    assert (long["title"], short["title"]) == (Store().entries()[0].title, "")
    assert long["model"] == short["model"]
    text = listed(capsys)
    assert "\x1b" not in text
    assert "2 prefixes" in text
    assert text.index("150 ") < text.index("100 ")
    assert "Tiny" in text


def test_a_segment_that_ends_within_another_is_not_a_prefix(folder, capsys):
    session = ScriptedSession()
    session.feed(range(70))
    writer = StateWriter(session, folder)
    assert writer.flush(60)
    writer.close()
    assert [
        segment_file["tokens"]
        for segment_file in json.loads(listed(capsys, as_json=True))["states"]
    ] == [
        150,
        100,
    ]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, [64, 100, 128, 150]),
        ({"to": 1}, []),
        ({"to": 300_000}, [64]),
        ({"older": 36500.0}, [64, 100, 128, 150]),
        ({"older": 1.0}, []),
        ({"all": True}, []),
    ],
)
def test_pruning_deletes_only_the_selected_states(folder, capsys, options, left):
    sizes = {segment_file.segment.last: segment_file.n_bytes for segment_file in stored_in(folder)}
    options |= {"to": sizes[64] + 1} if options.get("to", 0) > 1 else {}
    assert "Deleted " in listed(capsys, action="prune", **options)
    assert sorted(segment_file.segment.last for segment_file in stored_in(folder)) == left


def test_delete_options_need_prune():
    with pytest.raises(Refusal, match="states prune"):
        states(built_in_settings(), all=True)
    assert arguments.parse(["states", "prune", "--to", "1.5g"]).to == 3 << 29
    assert arguments.parse(["states"]).action == ""
    for wrong in (
        ["--to", "much"],
        ["--to", "-1"],
        ["--older", "nan"],
        ["--older", "1", "--all"],
        ["drop"],
    ):
        with pytest.raises(SystemExit):
            arguments.parse(["states", *wrong])
