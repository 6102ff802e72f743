"""Layers, rope, tokens and template in the report of a model file."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.models.library.inspect import describe, report_lines, report_of_file
from engine.loader import validate
from tests.engine import tiny_gguf


def test_equal_layers_are_one_row(tmp_path: Path) -> None:
    tiny = tiny_gguf.model(n_layers=4)
    odd = tiny_gguf.model(n_layers=4, quant="Q8_0").tensor("blk.2.attn_v.weight")
    tiny.tensors[tiny.tensors.index(tiny.tensor("blk.2.attn_v.weight"))] = odd
    report = describe(validate(tiny.write(tmp_path / "m.gguf")))
    assert [row["layers"] for row in report["layers"]] == ["outside", "0-1", "2", "3"]
    assert report["layers"][2]["types"] == {"attention": "F32 Q8_0", "feed-forward": "F32"}
    assert report["layers"][0]["types"] == {"embedding": "F32", "output head": "F32"}
    per_layer = sum(
        row["parameters"] * n for row, n in zip(report["layers"], (1, 2, 1, 1), strict=True)
    )
    assert per_layer == report["parameters"]


def test_special_tokens_have_ids_spelling_and_roles(tmp_path: Path) -> None:
    report = describe(validate(tiny_gguf.write(tmp_path / "m.gguf", "qwen2")))
    special = {token["text"]: token["roles"] for token in report["tokenizer"]["special"]}
    assert special["<|endoftext|>"].startswith("bos")
    assert "eos" in special["<|im_end|>"]
    assert "ends" in special["<|im_end|>"]
    assert special["<|im_start|>"] == "control"
    assert (report["tokenizer"]["model"], report["tokenizer"]["pre"]) == ("gpt2", "qwen2")


def test_rope_and_context_are_named(tmp_path: Path) -> None:
    tiny = tiny_gguf.model(rope_factors=True)
    tiny.set("llama.rope.scaling.type", "linear")
    tiny.set("llama.rope.scaling.factor", 4.0)
    rope = describe(validate(tiny.write(tmp_path / "m.gguf")))["rope"]
    assert (rope["context_length"], rope["rope_theta"], rope["has_factors"]) == (128, 10000.0, True)
    assert rope["scaling"] == {"type": "linear", "factor": 4.0}


@pytest.mark.parametrize(("shows", "n_shown"), [(False, 8), (True, 20)])
def test_a_long_template_is_shown_whole_on_request(
    shows: bool, n_shown: int, tmp_path: Path
) -> None:
    tiny = tiny_gguf.model()
    tiny.set(
        "tokenizer.chat_template", "\n".join(f"line {n} {{{{ messages }}}}" for n in range(20))
    )
    lines = list(report_lines(describe(validate(tiny.write(tmp_path / "m.gguf"))), shows))
    assert sum("{{ messages }}" in line and line.startswith("  line") for line in lines) == n_shown
    assert any("12 more lines" in line for line in lines) != shows


def test_a_long_template_line_is_shown_whole_on_request(tmp_path: Path) -> None:
    tiny = tiny_gguf.model()
    tiny.set("tokenizer.chat_template", "{{ messages }}" + "\x1b[2J\t" * 1000 + "the end")
    report = describe(validate(tiny.write(tmp_path / "m.gguf")))
    template_line = "  {{ messages }}" + "␛[2J\\t" * 1000 + "the end"
    assert template_line in report_lines(report, shows_template=True)
    assert max(map(len, report_lines(report))) < 200


def test_hostile_template_and_token_text_is_filtered(tmp_path: Path) -> None:
    tiny = tiny_gguf.model()
    vocabulary = tiny_gguf.spm_vocabulary()
    vocabulary["tokenizer.ggml.tokens"][1] = "<s>\x1b]52;c;aGk=\x07\u202e"
    tiny.set("tokenizer.ggml.tokens", vocabulary["tokenizer.ggml.tokens"])
    tiny.set("tokenizer.chat_template", "a\x1b[2J\u202eb\r\nc" + "\t" * 5)
    text = "\n".join(report_of_file(tiny.write(tmp_path / "m.gguf")))
    assert not any(
        (ord(c) < 0x20 and c != "\n") or 0x7F <= ord(c) <= 0x9F or c == "\u202e" for c in text
    )


def test_a_model_in_several_files_is_reported(tmp_path: Path) -> None:
    assert any(
        "in 3 files" in line for line in report_of_file(tiny_gguf.write_parts(tmp_path, "m", 3)[0])
    )
