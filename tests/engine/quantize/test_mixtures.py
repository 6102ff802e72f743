"""Mixtures against those of llama.cpp's library, recorded in ``mixtures.json``."""

import json
import os

import pytest

from engine.quantize.mixtures import MIXTURES, TypedShape, may_shrink, mixture
from tests.programs.engine.mixtures_peer import CASES, GOLDEN, Library, folded

GIVEN = json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_every_tensor_gets_the_type_that_llama_cpp_gives(name: str) -> None:
    case = CASES[name]
    assert set(GIVEN[name]) == set(MIXTURES) - {"F32", "F16", "BF16"}
    for mix, expected in GIVEN[name].items():
        assert folded(mixture(case.metadata(), case.tensors(), mix)) == expected, mix


@pytest.mark.parametrize("name", CASES)
def test_the_golden_file_equals_the_output_of_the_library(name: str) -> None:
    path = os.environ.get("JALOPY_LIBLLAMA")
    if path is None:
        pytest.skip("JALOPY_LIBLLAMA names no libllama.so")
    library = Library(path)
    assert GIVEN[name] == {mix: folded(library.types(CASES[name], mix)) for mix in GIVEN[name]}


def test_casts_do_not_change_norms_and_the_router() -> None:
    case = CASES["qwen3moe"]
    types = folded(mixture(case.metadata(), case.tensors(), "BF16"))
    casts = {name for name, quant in types.items() if "F32" in quant.replace("BF16", "")}
    assert casts == {
        "output_norm.weight", "x_norm.weight", "ffn_gate_inp.weight"
    }  # fmt: skip


def test_with_importance_the_first_layers_have_a_minimum() -> None:
    case = CASES["llama 3"]
    types = folded(mixture(case.metadata(), case.tensors(), "Q4_0", has_importance=True))
    assert types["ffn_down.weight"] == "4 Q4_1, 28 Q4_0"
    types = folded(mixture(case.metadata(), case.tensors(), "IQ4_XS", has_importance=True))
    assert types["ffn_down.weight"] == "32 IQ4_XS"


def test_named_tensors_get_the_requested_type() -> None:
    case = CASES["llama 3"]
    keep = {
        "output.weight": "Q8_0",
        "blk.?.attn_k.weight": "F16",
        "blk.*.attn_k.weight": "Q5_0",
        "x": "F32",
    }
    types = folded(mixture(case.metadata(), case.tensors(), "Q4_K_M", keep=keep))
    assert types["output.weight"] == "1 Q8_0"
    assert types["attn_k.weight"] == "10 F16, 22 Q5_0"


def test_a_matrix_of_one_row_is_not_quantised() -> None:
    assert not may_shrink("blk.0.attn_q.weight", (1, 512))
    assert may_shrink("blk.0.attn_q.weight", (1, 2, 512))
    shapes = {
        "token_embd.weight": TypedShape((64, 512), "F16"),
        "blk.0.attn_q.weight": TypedShape((1, 512), "F16"),
    }
    assert mixture({}, shapes, "Q4_K_M") == {
        "token_embd.weight": "Q6_K",
        "blk.0.attn_q.weight": "F16",
    }


def test_wrong_metadata_gives_plain_types_only() -> None:
    case = CASES["llama 3"]
    lies = {key: "many" if key != "general.architecture" else [] for key in case.metadata()}
    assert set(mixture(lies, case.tensors(), "Q4_K_M").values()) <= {"Q4_K", "Q6_K", "F32"}
