"""Registry of architectures, by their names in ``general.architecture`` of GGUF.

Importing this package imports none of the architectures.
"""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from engine.config import ModelConfig
from engine.errors import EngineError, GGUFError, UnsupportedArchitectureError, printable
from engine.gguf.contents import GGUFFile
from engine.gguf.hyperparameters import Hyperparameters, kind_of
from engine.models import predictor
from engine.models.base import Architecture
from engine.models.not_yet import KINDS, NOT_YET
from engine.models.reading import pooling
from engine.weights.weights import ROWS_OF_HEAD, TensorSpec, present_tensors

ARCHITECTURES: dict[str, str] = {
    "llama": "engine.models.llama",
    "qwen2": "engine.models.qwen2",
    "qwen3": "engine.models.qwen3",
    "gemma3": "engine.models.gemma3",
    "gemma2": "engine.models.gemma2",
    "gemma4": "engine.models.gemma4",
    "granite": "engine.models.granite",
    "smollm3": "engine.models.smollm3",
    "olmo2": "engine.models.olmo2",
    "phi3": "engine.models.phi3",
    "mistral3": "engine.models.mistral3",
    "exaone4": "engine.models.exaone4",
    "hunyuan-dense": "engine.models.hunyuan_dense",
    "ernie4_5": "engine.models.ernie4_5",
    "internlm2": "engine.models.internlm2",
    "minicpm": "engine.models.minicpm",
    "arcee": "engine.models.arcee",
    "seed_oss": "engine.models.seed_oss",
    "glm4": "engine.models.glm4",
    "cohere2": "engine.models.cohere2",
    "command-r": "engine.models.command_r",
    "stablelm": "engine.models.stablelm",
    "starcoder2": "engine.models.starcoder2",
    "phi2": "engine.models.phi2",
    "nemotron": "engine.models.nemotron",
    "apertus": "engine.models.apertus",
    "bitnet": "engine.models.bitnet",
    "qwen3moe": "engine.models.qwen3moe",
    "gpt-oss": "engine.models.gpt_oss",
    "olmoe": "engine.models.olmoe",
    "granitemoe": "engine.models.granitemoe",
    "qwen2moe": "engine.models.qwen2moe",
    "ernie4_5-moe": "engine.models.ernie4_5_moe",
    "bailingmoe2": "engine.models.bailingmoe2",
    "dots1": "engine.models.dots1",
    "phimoe": "engine.models.phimoe",
    "deepseek2": "engine.models.deepseek2",
    "lfm2": "engine.models.lfm2",
    "qwen35": "engine.models.qwen35",
    "qwen35moe": "engine.models.qwen35moe",
    "qwen3next": "engine.models.qwen3next",
    "lfm2moe": "engine.models.lfm2moe",
    "granitehybrid": "engine.models.granitehybrid",
    "falcon-h1": "engine.models.falcon_h1",
    "nemotron_h": "engine.models.nemotron_h",
    "nemotron_h_moe": "engine.models.nemotron_h",
    "qwen2vl": "engine.models.qwen2",
    "qwen3vl": "engine.models.qwen3",
    "qwen3vlmoe": "engine.models.qwen3moe",
    "hunyuan_vl": "engine.models.hunyuan_dense",
    "muse-glimmer": "engine.models.muse_glimmer",
    "gemma": "engine.models.gemma",
    "exaone": "engine.models.exaone",
    "glm4moe": "engine.models.glm4moe",
    "deepseek": "engine.models.deepseek",
    "bailingmoe": "engine.models.deepseek",
    "hunyuan-moe": "engine.models.hunyuan_moe",
    "mellum": "engine.models.mellum",
    "olmo": "engine.models.olmo",
    "falcon": "engine.models.falcon",
    "gpt2": "engine.models.gpt2",
    "starcoder": "engine.models.gpt2",
    "gptneox": "engine.models.gptneox",
    "mpt": "engine.models.mpt",
    "bloom": "engine.models.bloom",
    "qwen": "engine.models.qwen",
    "chatglm": "engine.models.chatglm",
    "baichuan": "engine.models.baichuan",
    "xverse": "engine.models.internlm2",
    "orion": "engine.models.stablelm",
    "codeshell": "engine.models.starcoder2",
    "refact": "engine.models.refact",
    "openelm": "engine.models.qwen3",
    "plamo": "engine.models.plamo",
    "pangu-embedded": "engine.models.exaone",
    "maincoder": "engine.models.maincoder",
    "jais": "engine.models.jais",
    "jais2": "engine.models.nemotron",
    "dbrx": "engine.models.dbrx",
    "granite_swa": "engine.models.granite_swa",
    "plm": "engine.models.plm",
    "minicpm3": "engine.models.minicpm3",
    "smallthinker": "engine.models.smallthinker",
}
ENCODERS: dict[str, str] = {
    "bert": "engine.models.bert",
    "nomic-bert": "engine.models.nomic_bert",
    "modern-bert": "engine.models.modern_bert",
    "gemma-embedding": "engine.models.gemma_embedding",
}
"""Architectures that compute vectors of texts, and generate no text."""


N_NAMED = 5
"""Number of architectures that the message of a refusal names; it is one line."""


def load_architecture(name: str) -> Architecture:
    """Import the module of an architecture and return its ``ARCHITECTURE``.

    Args:
        name: Key of ``ARCHITECTURES`` or ``ENCODERS``.

    Raises:
        KeyError: The architecture is not registered; ``read_config`` checks files before.
    """
    architecture: Architecture = import_module((ARCHITECTURES | ENCODERS)[name]).ARCHITECTURE
    return architecture


def read_config(gguf: GGUFFile) -> ModelConfig:
    """Read and check all hyperparameters of a file. A predictor that is not whole is left out.

    Raises:
        UnsupportedArchitectureError: The file is sound but no model, or its architecture is in
            neither table.
        GGUFError: A key is missing, has the wrong type, contradicts another or exceeds the
            engine's bounds.
    """
    config = _read_with_predictor(gguf)
    if _problem_of_predictor(gguf, config):
        return replace(config, predictor=None)
    return config


def predictor_problem(gguf: GGUFFile) -> str:
    """Return the reason why a file's predictor is not used; empty if it is, or if it has none."""
    return _problem_of_predictor(gguf, _read_with_predictor(gguf))


def _read_with_predictor(gguf: GGUFFile) -> ModelConfig:
    name = _architecture(gguf.metadata, gguf.shown_name)
    _refuse_lone_predictor(gguf)
    read = Hyperparameters(gguf.metadata, name, gguf.shown_name, gguf.tensors)
    return replace(load_architecture(name).read(read), **pooling(read))


def _refuse_lone_predictor(gguf: GGUFFile) -> None:
    has_predictor = any(".nextn." in name for name in gguf.tensors)
    if has_predictor and not any(name.startswith("blk.0.") for name in gguf.tensors):
        raise UnsupportedArchitectureError(
            f"{gguf.shown_name}: holds only a block that guesses ahead for a model (MTP); open the "
            f"model's own file"
        )


def _problem_of_predictor(gguf: GGUFFile, config: ModelConfig) -> str:
    if config.predictor is not None and ROWS_OF_HEAD in gguf.tensors:
        return f"{gguf.shown_name}: tensor {ROWS_OF_HEAD}: heads with chosen rows are not supported"
    layers = load_architecture(config.architecture).tensors
    try:
        present_tensors(gguf, predictor.tensors(config, layers))
    except EngineError as error:
        return str(error)
    return ""


def expected_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """Return all tensors that a file with this configuration may contain, by GGUF name."""
    architecture = load_architecture(config.architecture)
    return (
        architecture.tensors(config)
        | predictor.tensors(config, architecture.tensors)
        | _pooling_tensors(config)
    )


def _pooling_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """Return the tensors that classify a pooled vector; no token reads them."""
    n_labels = max(1, config.n_labels)
    shapes = {
        "cls.weight": (config.dim, config.dim),
        "cls.bias": (config.dim,),
        "cls.output.weight": (n_labels, config.dim),
        "cls.output.bias": (n_labels,),
    }
    return {
        name: TensorSpec(shape, required=False, read_share=0.0) for name, shape in shapes.items()
    }


def why_refused(name: str) -> str:
    """Return what an architecture outside ``ARCHITECTURES`` is, and what to use instead."""
    if name in NOT_YET:
        family, instead = NOT_YET[name]
        return f"not supported yet ({family}); use {instead}"
    examples = list(ARCHITECTURES)[:N_NAMED]
    return (
        f"not supported; supported: {', '.join(examples)} and "
        f"{len(ARCHITECTURES) - N_NAMED} others (see the README)"
    )


def _architecture(metadata: Mapping[str, Any], file_name: str) -> str:
    value = metadata.get("general.architecture")
    file_type = metadata.get("general.type")
    if (
        isinstance(file_type, str) and file_type in KINDS
    ):  # these files need no general.architecture
        raise UnsupportedArchitectureError(
            f"{file_name}: general.type is '{file_type}': this is {KINDS[file_type]}"
        )
    if value is None:
        raise GGUFError(f"{file_name}: general.architecture is missing")
    if not isinstance(value, str):
        raise GGUFError(f"{file_name}: general.architecture is {kind_of(value)}: must be a string")
    if value not in ARCHITECTURES and value not in ENCODERS:
        raise UnsupportedArchitectureError(
            f"{file_name}: general.architecture '{printable(value)}' is {why_refused(value)}"
        )
    return value
