"""``jalopy imatrix``: the file it writes of texts and of conversations, and what is refused."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from app.cli import imatrix as command
from app.cli.arguments import parse
from app.cli.chunks import ChunkReading
from app.cli.dispatch import guard, run_command
from app.cli.imatrix import ImatrixOptions, imatrix
from app.conversations.conversation import Conversation, Ending
from app.conversations.journal import Journal
from app.conversations.store import Store
from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.settings import built_in_settings
from engine import Model, read_gguf
from engine.gguf.imatrix import read_imatrix
from tests.engine import tiny_gguf

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("imatrix")
    tiny_gguf.write(found / "m.gguf")
    (found / "text.txt").write_text("The cat sat on the mat, and the dog lay near the door. " * 4)
    return found


def run(place: Path, out: Path, **more: Any) -> int:
    given = {"model": str(place / "m.gguf"), "out": str(out), "n_chunk": 32, **more}
    return imatrix(ImatrixOptions(**given), built_in_settings())


def test_texts_are_read_and_the_file_is_written(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--ctx", "32", "--chunks", "2", "--threads", "1"]
    words = ["imatrix", str(place / "m.gguf"), str(place / "text.txt"), *options]
    assert guard(lambda: run_command(parse(words))) == exit_codes.OK
    assert (
        capsys.readouterr().out
        == "m.imatrix.gguf: importance of 14 tensors from 2 chunks of 32 tokens\n"
    )
    found = read_imatrix("m.imatrix.gguf")
    assert found["blk.1.ffn_down.weight"].shape == (96,)
    assert list(read_gguf("m.imatrix.gguf").metadata["imatrix.datasets"]) == [b"text.txt"]


def test_own_conversations_are_read_as_the_model_gets_them(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = Conversation(system="Be brief.")
    journal = Journal(Store())
    conversation.add_user("Where is the cat?")
    conversation.add_reply("On the mat.", Ending.COMPLETE, None)
    journal.begin()
    journal.save_turn_end(conversation)
    assert journal.close(10.0) == ""
    with closing(Model.open(place / "m.gguf", threads=1)) as model:
        found = command._conversation_tokens(model, model.session(64), built_in_settings())
        text = model.tokenizer.decode(list(found))
    assert re.search("Be brief.*Where is the cat.*assistant.*On the mat.$", text, re.DOTALL)


def test_ctrl_c_writes_what_is_known(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    follow = ChunkReading.follow

    def stop_after_two(self: ChunkReading[Any], found: Any, n_chunks: int) -> Any:
        def stopping() -> Any:
            for one in found:
                if one.n_chunks == 2:
                    self._stop()
                yield one

        return follow(self, stopping(), n_chunks)

    monkeypatch.setattr(ChunkReading, "follow", stop_after_two)
    assert (
        run(place, tmp_path / "i.gguf", files=[str(place / "text.txt")]) == exit_codes.INTERRUPTED
    )
    assert capsys.readouterr().out.startswith("stopped after 2 of ")
    assert read_gguf(tmp_path / "i.gguf").metadata["imatrix.chunk_count"] == 2


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "give either text files or --conversations"),
        (
            {"files": ["text.txt"], "conversations": True},
            "give either text files or --conversations",
        ),
        ({"files": ["nowhere.txt"]}, r"nowhere\.txt: No such file"),
        (
            {"files": ["text.txt"], "n_chunk": 4096},
            r"has \d+ tokens, less than one chunk of 4,096 \(give more text",
        ),
        ({"conversations": True}, "has 0 tokens, less than one chunk of 32"),
        ({"files": ["text.txt"], "out": "m.gguf"}, r"m\.gguf: is an input file"),
        (
            {"files": ["text.txt"], "out": "text.txt"},
            r"text\.txt: is an input file",
        ),
        (
            {"files": ["text.txt"], "out": __file__},
            r"test_imatrix\.py: already exists \(-o FILE names another file\)",
        ),
        ({"files": ["text.txt"], "out": "none/i.gguf"}, r"none/i\.gguf: its folder does not exist"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(
    place: Path, tmp_path: Path, given: dict[str, Any], why: str
) -> None:
    named = {**given, "files": [str(place / name) for name in given.get("files", ())]}
    out = place / named.pop("out") if "out" in given else tmp_path / "i.gguf"
    with pytest.raises(Refusal, match=why) as refused:
        run(place, out, **named)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "i.gguf").exists()
