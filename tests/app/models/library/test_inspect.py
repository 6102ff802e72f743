import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.backend.local import engine_access
from app.models.library.inspect import describe, inspect
from app.program import exit_codes
from app.program.settings import built_in_settings
from tests.app.fake_engine import Script
from tests.app.scripted_access import use_script


def tensor(name: str, type_name: str, shape: tuple[int, ...], size_bytes: int) -> SimpleNamespace:
    return SimpleNamespace(
        name=name, type_name=type_name, shape=shape, size_bytes=size_bytes, offset_bytes=1024
    )


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    tensors = [
        tensor("token_embd.weight", "Q6_K", (512, 64), 26_880),
        tensor("blk.0.attn_q\x1b[31m", "Q4_K", (64, 64), 2_304),
        tensor("output.weight", "Q6_K", (512, 64), 26_880),
    ]
    gguf = SimpleNamespace(
        path=Path("/models/evil\x1b]0;x\x07.gguf"),
        version=3,
        file_bytes=60_000,
        tensors={tensor.name: tensor for tensor in tensors},
        metadata={
            "general.name": "nice\x1b[2J\nname",
            "llama.rope.freq_base": float("nan"),
            "tokenizer.ggml.tokens": [b"a\xff\x9b"] * 512,
            "tokenizer.ggml.scores": np.zeros(512, np.float32),
            "short": np.arange(3),
            "flag": True,
            "tokenizer.chat_template": "x" * 5000,
        },
        close=lambda: None,
    )
    gguf.files = (gguf,)
    shape = {"architecture": "llama", "dim": 64, "rope_factors": None}
    config = SimpleNamespace(
        architecture="llama", context_length=128, ropes=(), summary=lambda: shape
    )
    tokenizer = SimpleNamespace(vocab_size=512, control_texts={}, end_ids=(), add_bos=None)
    checked = SimpleNamespace(gguf=gguf, config=config, tokenizer=tokenizer)
    use_script(monkeypatch, Script())
    monkeypatch.setattr(engine_access, "validate_model", lambda path: checked)
    return checked


def report(capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    assert inspect(built_in_settings(), "m.gguf", **options) == exit_codes.OK
    return capsys.readouterr().out


@pytest.mark.parametrize("as_json", [False, True])
def test_file_text_reaches_the_terminal_only_filtered(
    checked: SimpleNamespace, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    out = report(capsys, tensors=True, plan=True, as_json=as_json)
    assert not any((ord(c) < 0x20 and c != "\n") or 0x7F <= ord(c) <= 0x9F for c in out)
    assert "\\u001b" not in out


def test_the_text_shows_types_sizes_and_shortened_values(
    checked: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    out = report(capsys)
    assert "types: Q6_K (2 tensors, 52K), Q4_K (1 tensors, 2.2K)" in out
    assert "512 elements: 0.0, 0.0, 0.0, 0.0, ..." in out
    assert "nice␛[2J\\nname" in out
    assert max(map(len, out.splitlines())) < 200
    assert "blk.0" not in out


def test_tensors_and_plan_are_listed_on_request(
    checked: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    out = report(capsys, tensors=True, plan=True)
    assert "token_embd.weight  Q6_K  512 x 64  26880" in out
    assert "decode  matvec  blk.0.attn_q  Q4_K  64 x 64  2304   2" in out


def test_json_has_the_same_values_and_is_strict(
    checked: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    values = json.loads(
        report(capsys, tensors=True, plan=True, as_json=True), parse_constant=refuse
    )
    assert values["types"][0] == {"type": "Q6_K", "tensors": 2, "bytes": 53_760}
    assert values["metadata"]["llama.rope.freq_base"] == "nan"
    assert values["metadata"]["short"] == [0, 1, 2]
    assert values["metadata"]["flag"] is True
    assert len(values["metadata"]["tokenizer.chat_template"]) == 5000
    assert values["tensors"][0]["shape"] == [512, 64]
    assert values["plan"][1]["op"] == "matvec"


def test_texts_are_cut_in_the_readable_report(checked: SimpleNamespace) -> None:
    assert len(describe(checked)["metadata"]["tokenizer.chat_template"]) == 60


def test_a_cut_template_says_that_it_is_cut(checked: SimpleNamespace) -> None:
    metadata = checked.gguf.metadata
    metadata["tokenizer.chat_template"] = "y" * 200_000
    assert describe(checked)["template"] == "y" * 200_000
    metadata["tokenizer.chat_template"] = "y" * 300_000
    assert describe(checked)["template"] == "y" * 262_144 + "\n… (cut here, of 300,000 characters)"
