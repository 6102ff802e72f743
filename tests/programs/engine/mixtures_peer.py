"""Types that llama.cpp's mixtures give to the tensors of some models, read from its library.

The types are saved in ``mixtures.json``.

JALOPY_LIBLLAMA=.../libllama.so python -m tests.programs.engine.mixtures_peer
"""

from __future__ import annotations

import ctypes
import json
import os
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from engine.gguf.ggml_types import GGML_TYPES
from engine.quantize.mixtures import MIXTURES, TypedShape

GOLDEN = Path(__file__).parents[2] / "engine" / "quantize" / "mixtures.json"
ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
DENSE = ("ffn_gate", "ffn_up", "ffn_down")
EXPERTS = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


class Case(NamedTuple):
    """A model as the mixtures see it; every tensor of a layer is one of ``kinds``."""

    architecture: str
    n_layers: int
    heads: tuple[int, int]
    kinds: tuple[str, ...]
    n_experts: int = 0
    n_cols: int = 512
    is_tied: bool = False

    def tensors(self) -> dict[str, TypedShape]:
        """All tensors as float32, in the order of llama.cpp's files."""
        names = ["output_norm.weight", "token_embd.weight"] + (
            [] if self.is_tied else ["output.weight"]
        )
        layers = [
            f"blk.{n}.{matrix}.weight"
            for n in range(self.n_layers)
            for matrix in (*sorted(self.kinds), "x_norm")
        ]
        return {name: TypedShape(self._shape(name), "F32") for name in [*sorted(names), *layers]}

    def _shape(self, name: str) -> tuple[int, ...]:
        if "norm" in name:
            return (self.n_cols,)
        return (self.n_experts, 64, self.n_cols) if "_exps" in name else (64, self.n_cols)

    def metadata(self) -> dict[str, Any]:
        """The keys that the mixtures ask for."""
        about = {"block_count": self.n_layers, "attention.head_count": self.heads[0]}
        about |= {"attention.head_count_kv": self.heads[1], "expert_count": self.n_experts}
        return {"general.architecture": self.architecture} | {
            f"{self.architecture}.{k}": v for k, v in about.items()
        }


CASES = {
    "llama 3": Case("llama", 32, (32, 8), (*ATTENTION, *DENSE)),
    "llama 2": Case("llama", 22, (32, 32), (*ATTENTION, *DENSE)),
    "llama 2 of 70B": Case("llama", 80, (64, 8), (*ATTENTION, *DENSE)),
    "qwen2 of odd rows": Case("qwen2", 24, (14, 2), (*ATTENTION, *DENSE), n_cols=896, is_tied=True),
    "gpt2 of odder rows": Case("gpt2", 12, (12, 12), ("attn_qkv", "attn_output", "ffn_up",
                                                      "ffn_down"), n_cols=100),
    "falcon": Case("falcon", 32, (71, 1), ("attn_qkv", "attn_output", "ffn_up", "ffn_down")),
    "mixtral": Case("llama", 32, (32, 8), (*ATTENTION, *EXPERTS), n_experts=8),
    "qwen3moe": Case("qwen3moe", 48, (32, 4), (*ATTENTION, *EXPERTS), n_experts=128),
    "deepseek2": Case(
        "deepseek2", 27, (16, 16), ("attn_q", "attn_kv_b", "attn_output", *EXPERTS,
                                    "ffn_down_shexp"), 64
    ),
    "lfm2": Case("lfm2", 16, (32, 8), (*ATTENTION, *DENSE, "shortconv.conv", "shortconv.in_proj"),
                 is_tied=True),
}  # fmt: skip


def folded(types: dict[str, str]) -> dict[str, str]:
    """A line for each kind of tensor: ``2 Q6_K, 3 Q4_K`` counts its layers."""
    kinds: dict[str, list[str]] = {}
    for name, type_name in types.items():
        kinds.setdefault(name.split(".", 2)[2] if name.startswith("blk.") else name, []).append(
            type_name
        )
    return {
        matrix: ", ".join(f"{len(list(run))} {name}" for name, run in groupby(type_names))
        for matrix, type_names in kinds.items()
    }


class _Description(ctypes.Structure):
    _fields_ = (
        ("architecture", ctypes.c_char_p),
        *((name, ctypes.c_uint32) for name in (
            "n_embd", "n_ff", "n_layer", "n_head", "n_head_kv", "n_expert", "n_embd_head_k",
            "n_embd_head_v"
        )),
    )  # fmt: skip


class _Room(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class _Parameters(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_byte * 256),)  # longer than what is in it


class Library:
    """llama.cpp's functions for tests of its mixtures (llama-ext.h), by their names in C++."""

    def __init__(self, path: str) -> None:
        self._base = ctypes.CDLL(str(Path(path).with_name("libggml-base.so")))
        self._llama = ctypes.CDLL(path)
        pointer = ctypes.c_void_p
        self._base.ggml_init.argtypes = [_Room]
        self._base.ggml_init.restype = pointer
        self._base.ggml_new_tensor.argtypes = [pointer, ctypes.c_int, ctypes.c_int, pointer]
        self._base.ggml_new_tensor.restype = pointer
        self._base.ggml_set_name.argtypes = [pointer, ctypes.c_char_p]
        self._base.ggml_free.argtypes = [pointer]
        self._describe = self._function(
            "_Z31llama_quant_model_from_metadataPK22llama_quant_model_desc", pointer
        )
        self._begin = self._function(
            "_Z16llama_quant_initPK11llama_modelPK27llama_model_quantize_params", pointer, pointer
        )
        self._compute = self._function(
            "_Z25llama_quant_compute_typesP19quantize_state_impl11llama_ftypePP11ggml_tensorP9ggml_typem",
            pointer, ctypes.c_int, pointer, pointer, ctypes.c_size_t,
        )  # fmt: skip

    def _function(self, name: str, *arguments: Any) -> Any:
        function = getattr(self._llama, name)
        function.argtypes = list(arguments)
        function.restype = ctypes.c_void_p
        return function

    def types(self, case: Case, mix: str) -> dict[str, str]:
        """Each tensor's type, of those that have more than one dimension."""
        about = _Description(
            case.architecture.encode(),
            case.n_cols,
            64,
            case.n_layers,
            *case.heads,
            case.n_experts,
            64,
            64,
        )
        self._llama.llama_model_quantize_default_params.restype = _Parameters
        parameters = self._llama.llama_model_quantize_default_params()
        state = self._begin(self._describe(ctypes.byref(about)), ctypes.byref(parameters))
        context = self._base.ggml_init(_Room(64 << 20, None, True))
        tensors = case.tensors()
        tensor_pointers = (ctypes.c_void_p * len(tensors))()
        for k, (name, (shape, _)) in enumerate(tensors.items()):
            sizes = (ctypes.c_int64 * len(shape))(*reversed(shape))
            tensor_pointers[k] = self._base.ggml_new_tensor(context, 0, len(shape), sizes)
            self._base.ggml_set_name(tensor_pointers[k], name.encode())
        type_numbers = (ctypes.c_int * len(tensors))()
        self._compute(state, MIXTURES[mix], tensor_pointers, type_numbers, len(tensors))
        self._base.ggml_free(context)
        return {
            name: GGML_TYPES[number].name
            for name, number in zip(tensors, type_numbers, strict=True)
        }


def main() -> None:
    """Ask the library, and write the file."""
    library = Library(os.environ["JALOPY_LIBLLAMA"])
    mixtures = {
        name: {
            mix: folded(library.types(case, mix))
            for mix in MIXTURES
            if mix not in ("F32", "F16", "BF16")
        }
        for name, case in CASES.items()
    }
    GOLDEN.write_text(json.dumps(mixtures, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
