"""The one check of a whole model file: sound files pass with their parts, broken vocabularies are
refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine.loader import validate
from tests.engine import tiny_gguf
from tests.engine.refusals import Break, broken, refusal
from tests.engine.tiny_gguf import bpe_vocabulary, spm_vocabulary

NAN = float("nan")
SPM = spm_vocabulary()
BPE = bpe_vocabulary()
N = len(SPM["tokenizer.ggml.tokens"])


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_sound_file_passes_with_all_its_parts(architecture: str, tmp_path: Path) -> None:
    checked = validate(tiny_gguf.write(tmp_path / "model.gguf", architecture, "Q8_0"))
    assert checked.config.architecture == architecture
    assert checked.tokenizer.vocab_size == checked.config.vocab_size
    assert checked.weights["token_embd.weight"].n_rows == checked.config.vocab_size
    assert checked.tokenizer.decode(checked.tokenizer.encode("the rest", bos=False)) == "the rest"
    assert not checked.gguf.changed()


def test_trained_models_pass(shared_data: Path) -> None:
    for name in ("stories260K", "babyllama105"):
        assert (
            validate(shared_data / "models" / f"{name}.gguf").weights.quantization_label() == "F32"
        )


def test_checking_a_whole_model_imports_no_numba(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf")
    program = (
        "import sys, engine.loader; engine.loader.validate(sys.argv[1]); sys.exit('numba' in "
        "sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == 0


def test_a_file_without_tensors_is_called_a_vocabulary(tmp_path: Path) -> None:
    assert "has no tensors" in refusal(broken(tmp_path, lambda t: t.tensors.clear()), validate)


def tokens(index: int, text: str | bytes) -> Break:
    """Replace one entry of the SPM token list."""
    changed = list(SPM["tokenizer.ggml.tokens"])
    changed[index] = text
    return lambda tiny: tiny.set("tokenizer.ggml.tokens", changed)


def key(name: str, value: object, value_type: int | None = None) -> Break:
    return lambda tiny: tiny.set(f"tokenizer.ggml.{name}", value, value_type)


def drop(name: str) -> Break:
    return lambda tiny: tiny.drop(f"tokenizer.ggml.{name}")


SPM_FAULTS: dict[str, tuple[Break, str]] = {
    "no tokenizer named": (drop("model"), "tokenizer.ggml.model"),
    "unknown tokenizer": (key("model", "rwkv"), "tokenizer.ggml.model"),
    "tokenizer with escapes": (key("model", "\x1b[2J\n"), "tokenizer.ggml.model"),
    "scores too short": (key("scores", np.zeros(N - 1, "<f4")), "tokenizer.ggml.scores"),
    "types too short": (key("token_type", np.ones(N - 1, "<i4")), "tokenizer.ggml.token_type"),
    "types of the wrong type": (key("token_type", np.ones(N, "<f4")), "tokenizer.ggml.token_type"),
    **{
        f"{name} {value}": (
            key(f"{name}_token_id", value, value_type),
            f"tokenizer.ggml.{name}_token_id",
        )
        for name in ("bos", "eos", "unknown")
        for value, value_type in (("1", None),)
    },
    "add_bos a string": (key("add_bos_token", "yes"), "tokenizer.ggml.add_bos_token"),
    "token of 1 MB": (tokens(265, "x" * 10**6), "tokenizer.ggml.tokens"),
}

BPE_FAULTS: dict[str, tuple[Break, str]] = {
    "no merges": (drop("merges"), "tokenizer.ggml.merges"),
    "merges of numbers": (key("merges", np.arange(9, dtype="<u4")), "tokenizer.ggml.merges"),
    "unknown pre-tokenizer": (key("pre", "made-up"), "tokenizer.ggml.pre"),
    "pre-tokenizer a number": (key("pre", 7), "tokenizer.ggml.pre"),
}


@pytest.mark.parametrize("case", SPM_FAULTS)
def test_a_broken_sentencepiece_vocabulary_is_refused(case: str, tmp_path: Path) -> None:
    break_it, word = SPM_FAULTS[case]
    assert word in refusal(broken(tmp_path, break_it), validate)


@pytest.mark.parametrize("case", BPE_FAULTS)
def test_a_broken_byte_level_vocabulary_is_refused(case: str, tmp_path: Path) -> None:
    break_it, word = BPE_FAULTS[case]
    assert word in refusal(broken(tmp_path, break_it, architecture="qwen2"), validate)
