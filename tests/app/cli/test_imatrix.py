"""``jalopy imatrix``: files from texts and conversations, and refusals."""

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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    imatrix_file = tmp_path_factory.mktemp("imatrix")
    tiny_gguf.write(imatrix_file / "m.gguf")
    (imatrix_file / "text.txt").write_text(
        "The cat sat on the mat, and the dog lay near the door. " * 4
    )
    return imatrix_file


def run(folder: Path, out: Path, **overrides: Any) -> int:
    options = {"model": str(folder / "m.gguf"), "out": str(out), "n_chunk": 32, **overrides}
    return imatrix(ImatrixOptions(**options), built_in_settings())


def test_texts_are_read_and_the_file_is_written(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--ctx", "32", "--chunks", "2", "--threads", "1"]
    words = ["imatrix", str(folder / "m.gguf"), str(folder / "text.txt"), *options]
    assert guard(lambda: run_command(parse(words))) == exit_codes.OK
    assert (
        capsys.readouterr().out
        == "m.imatrix.gguf: importance of 14 tensors from 2 chunks of 32 tokens\n"
    )
    imatrix_file = read_imatrix("m.imatrix.gguf")
    assert imatrix_file["blk.1.ffn_down.weight"].shape == (96,)
    assert list(read_gguf("m.imatrix.gguf").metadata["imatrix.datasets"]) == [b"text.txt"]


def test_saved_conversations_are_read_with_the_template(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = Conversation(system="Be brief.")
    journal = Journal(Store())
    conversation.add_user("Where is the cat?")
    conversation.add_reply("On the mat.", Ending.COMPLETE, None)
    journal.begin()
    journal.save_turn_end(conversation)
    assert journal.close(10.0) == ""
    with closing(Model.open(folder / "m.gguf", threads=1)) as model:
        imatrix_file = command._conversation_tokens(model, model.session(64), built_in_settings())
        text = model.tokenizer.decode(list(imatrix_file))
    assert re.search("Be brief.*Where is the cat.*assistant.*On the mat.$", text, re.DOTALL)


def test_ctrl_c_writes_the_result_so_far(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    follow = ChunkReading.follow

    def stop_after_two(self: ChunkReading[Any], imatrix_file: Any, n_chunks: int) -> Any:
        def stopping() -> Any:
            for matrix in imatrix_file:
                if matrix.n_chunks == 2:
                    self._stop()
                yield matrix

        return follow(self, stopping(), n_chunks)

    monkeypatch.setattr(ChunkReading, "follow", stop_after_two)
    assert (
        run(folder, tmp_path / "i.gguf", files=[str(folder / "text.txt")]) == exit_codes.INTERRUPTED
    )
    assert capsys.readouterr().out.startswith("stopped after 2 of ")
    assert read_gguf(tmp_path / "i.gguf").metadata["imatrix.chunk_count"] == 2


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("options", "why"),
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
def test_unusable_texts_are_refused_in_one_line(
    folder: Path, tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    arguments = {**options, "files": [str(folder / name) for name in options.get("files", ())]}
    out = folder / arguments.pop("out") if "out" in options else tmp_path / "i.gguf"
    with pytest.raises(Refusal, match=why) as refused:
        run(folder, out, **arguments)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "i.gguf").exists()
