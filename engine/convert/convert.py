"""From a directory of Hugging Face's form to a GGUF file. All reasons to refuse are found before a
byte is written.

Tensors pass through memory a few megabytes at a time. A model that is converted is one that the
engine opens: what the file will say is checked as a file's header is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from engine.convert.bounded import JsonObject, read_bytes, read_object, shown_value
from engine.convert.hyperparameters import describe
from engine.convert.pooling import pooling_keys
from engine.convert.recipes import RECIPES, Recipe
from engine.convert.safetensors import SourceTensor, close_files, read_directory
from engine.convert.tensors import ConvertedTensor, made_tensors
from engine.convert.vocabulary import vocabulary_keys
from engine.errors import BrokenModelError, ConversionError, UnsupportedArchitectureError, shown
from engine.gguf.contents import GGUFFile, TensorInfo
from engine.gguf.file import ModelFile
from engine.gguf.ggml_types import GGML_TYPES
from engine.gguf.header import MAX_HEADER_BYTES
from engine.gguf.write import TensorToWrite, writing
from engine.models import ENCODERS, expected_tensors, read_config
from engine.quantize import mixtures
from engine.quantize.file import QUANTIZATION_VERSION
from engine.quantize.rows import Bytes, Floats, quantise_rows
from engine.tokenizer import Tokenizer
from engine.weights.weights import checked_tensors

_N_NAMED = 6
_LENGTH_BYTES = 8
"""Bytes before each text in a file."""
_MOST_REVISION_BYTES = 1 << 20
_MORE_HEADER_BYTES = 1 << 20
"""Room for the table of tensors and the keys of a file's header."""
_QUANTISED = "quantization_config", "quantization", "compression_config"
"""Settings of models whose weights are quantised.

They are those of transformers, of MLX, and of older compressed-tensors.
"""


@dataclass(frozen=True)
class Conversion:
    """A model that can be converted: everything but its bytes.

    Attributes:
        name: of the model.
        mix: of its weights.
        metadata: of the file.
        tensors: with the type that each will have.
        numbers: tensors that are made of settings.
    """

    name: str
    mix: str
    metadata: Mapping[str, Any]
    tensors: Sequence[tuple[ConvertedTensor, str]]
    numbers: Mapping[str, np.ndarray[Any, Any]]

    @property
    def architecture(self) -> str:
        """As GGUF names it."""
        return str(self.metadata["general.architecture"])

    @property
    def writes(self) -> bool:
        """Whether it writes text; others make vectors of it."""
        return self.architecture not in ENCODERS

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(one.size_bytes for one in self.table)

    @property
    def table(self) -> list[TensorToWrite]:
        """The file's table of tensors."""
        constants = [
            TensorToWrite(name, values.shape, "F32") for name, values in self.numbers.items()
        ]
        return constants + [
            TensorToWrite(made.name, made.shape, kind) for made, kind in self.tensors
        ]

    def close(self) -> None:
        """Close the files of weights, of which nothing may be read afterwards."""
        close_files(piece.source for made, _ in self.tensors for piece in made.pieces)

    def write(self, path: Path, progress: Callable[[int, str], object], n_threads: int = 1) -> None:
        """Write the file, which has its name only when it is whole; one of that name is replaced.

        Args:
            progress: is told of the bytes that are done, and a tensor's name.

        Raises:
            ConversionError: a weight is NaN or infinity, or too large for the type.
            FileUnwritableError: the disk is full.
        """
        done_bytes = 0
        with writing(path, self.metadata, self.table) as out:
            for values in self.numbers.values():
                out.write(values)
            for made, type_name in self.tensors:
                for rows in (rows for piece in made.pieces for rows in piece.rows()):
                    packed = _packed(made, rows, type_name, n_threads)
                    out.write(packed)
                    done_bytes += packed.nbytes
                    progress(done_bytes, made.name)


def _packed(made: ConvertedTensor, rows: Floats, type_name: str, n_threads: int) -> Bytes:
    try:
        return quantise_rows(rows, type_name, n_threads=n_threads)
    except BrokenModelError as error:
        name = made.source.file.shown_name
        raise ConversionError(
            f"{name}: {made.name} {error} (damaged? else take --type BF16)"
        ) from None


def model_directory(directory: Path) -> Path:
    """Return the directory itself, or the snapshot in a repository's folder.

    Hugging Face's programs have such folders in their cache.

    Raises:
        ConversionError: there are several snapshots, and the folder does not say which is the
            latest.
    """
    snapshots = directory / "snapshots"
    if (directory / "config.json").exists() or not snapshots.is_dir():
        return directory
    latest = read_bytes(directory / "refs" / "main", _MOST_REVISION_BYTES) or b""
    revision = latest.decode("ascii", "replace").strip()
    if re.fullmatch(r"\w+", revision) and (snapshots / revision).is_dir():
        return snapshots / revision
    candidates = sorted(path for path in snapshots.iterdir() if path.is_dir())
    if len(candidates) != 1:
        name = shown(directory.name)
        advice = f"name the one that is meant, in {name}/snapshots"
        raise ConversionError(f"{name}: has {len(candidates)} snapshots ({advice})")
    return candidates[0]


def prepare(directory: Path, mix: str = "") -> Conversion:
    """Read what a directory says of its model, and check that the engine would open it.

    Args:
        mix: of the weights; "" for the type that they have.

    Raises:
        EngineError: one line that says which file, what is wrong with it, and what to do.
    """
    config, recipe = _configuration(directory)
    sources = read_directory(directory)
    try:
        return _prepared(directory, config, recipe, sources, mix)
    except BaseException:
        close_files(sources.values())
        raise


def _prepared(
    directory: Path,
    config: JsonObject,
    recipe: Recipe,
    sources: Mapping[str, SourceTensor],
    mix: str,
) -> Conversion:
    described = describe(config, recipe.has_rope)
    for add in recipe.more:
        add(config, described)
    is_tied = config.flag("tie_word_embeddings", False)
    made = made_tensors(recipe, described, sources, is_tied)
    mix = mix or _main_type(made)
    embedding = next((tensor for tensor in made if tensor.name == "token_embd.weight"), None)
    if embedding is None or len(embedding.shape) != 2:
        raise ConversionError(
            f"{shown(directory.name)}: has no embedding of tokens (are all its files here?)"
        )
    name = _name(directory)
    metadata = {
        "general.architecture": recipe.architecture,
        "general.type": "model",
        "general.name": name,
        **{
            f"{recipe.architecture}.{key}": value
            for key, value in (described.keys | pooling_keys(directory)).items()
        },
        f"{recipe.architecture}.vocab_size": embedding.shape[0],
        "general.file_type": mixtures.MIXTURES[mix],
        "general.quantization_version": QUANTIZATION_VERSION,
        **vocabulary_keys(directory, config, embedding.shape[0]),
        **{f"tokenizer.ggml.{key}": value for key, value in described.vocabulary.items()},
    }
    shapes = {tensor.name: mixtures.TypedShape(tensor.shape, "F32") for tensor in made}
    types = mixtures.mixture(metadata, shapes, mix)
    typed = [(tensor, types[tensor.name]) for tensor in made]
    conversion = Conversion(name, mix, metadata, typed, described.tensors)
    _check(conversion)
    return conversion


def _configuration(directory: Path) -> tuple[JsonObject, Recipe]:
    """Return the settings of the part that writes, and the recipe."""
    values = read_object(directory / "config.json")
    if values is None:
        raise _no_model(directory)
    whole = JsonObject(values, "config.json")
    name = _class_name(whole)
    recipe = RECIPES.get(name)
    if recipe is None:
        named = list(RECIPES)[:_N_NAMED]
        others = f"{', '.join(named)} and {len(RECIPES) - len(named)} others (jalopy help convert)"
        raise UnsupportedArchitectureError(
            f"config.json: architecture {shown(name)} cannot be converted; can be: {others}"
        )
    inner = {**values, **whole.under("text_config").values}
    config = JsonObject({**recipe.defaults, **inner}, "config.json")
    for setting in _QUANTISED:
        if config.get(setting) is not None:
            method = shown(config.under(setting).word("quant_method", setting))
            raise config.fail(
                f"the weights are quantised ({method}): get the model as it was trained (BF16 "
                f"or F16)"
            )
    function = config.word(
        "hidden_act|hidden_activation|activation_function|hidden_activation_function",
        recipe.activations[0],
    )
    if function not in recipe.activations:
        raise config.fail(
            f"hidden_act is {shown(function)}: {recipe.architecture} means {recipe.activations[0]}"
        )
    for setting, expected in recipe.expects.items():
        if config.values.get(setting, expected) != expected:
            raise config.fail(
                f"{setting} is {shown_value(config.get(setting))}, which a GGUF file cannot say"
            )
    return config, recipe


def _no_model(directory: Path) -> ConversionError:
    """Make the exception for a directory without config.json."""
    name = shown(directory.name or str(directory))
    adapter = read_object(directory / "adapter_config.json")
    if adapter is None:
        return ConversionError(
            f"{name}: has no config.json (name a directory of Hugging Face's form)"
        )
    base = adapter.get("base_model_name_or_path")
    if isinstance(base, str):
        model = f" of {shown(base)}"
    else:
        model = ""
    advice = (
        "merge it into its model with PEFT's merge_and_unload, or get its GGUF file and give that "
        "to --lora"
    )
    return ConversionError(f"{name}: is an adapter (LoRA){model}, not a model ({advice})")


def _class_name(config: JsonObject) -> str:
    """Return the name of the model's class in transformers."""
    names = config.get("architectures")
    if names is None or names == []:
        return "missing"
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise config.fail_value("architectures", "a list of names")
    return names[0]


def _name(directory: Path) -> str:
    """Return the model's name: that of its directory, or of its repository in the cache of Hugging
    Face's programs."""
    place = directory.resolve()
    in_cache = re.fullmatch(r"models--.+?--(.+)", place.parent.parent.name)
    return shown((in_cache[1] if in_cache else place.name).rpartition("--")[2], 200)


def _main_type(made: Sequence[ConvertedTensor]) -> str:
    """Return the type that holds most matrices as they are; F16 in place of F32."""
    sizes = dict.fromkeys(("BF16", "F16", "F32"), 0)
    for one in made:
        if len(one.shape) > 1:
            sizes[one.source.dtype] += math.prod(one.shape)
    found = max(sizes, key=lambda name: sizes[name])
    if found == "F32":
        return "F16"
    return found


def _header_bytes(found: Conversion) -> int:
    """Return about as many bytes as the file's metadata and table of tensors take.

    It is never fewer.
    """
    total_bytes = _MORE_HEADER_BYTES
    for value in found.metadata.values():
        if isinstance(value, np.ndarray):
            total_bytes += value.nbytes
        elif isinstance(value, (str, bytes)):
            if isinstance(value, bytes):
                total_bytes += len(value)
            else:
                total_bytes += len(value.encode())
        elif isinstance(value, Sequence):
            total_bytes += sum(len(item) + _LENGTH_BYTES for item in value)
    return total_bytes


def _check(found: Conversion) -> None:
    """Look at what the file will say, as if it were there."""
    numbers = {layout.name: number for number, layout in GGML_TYPES.items()}
    tensors = {
        one.name: TensorInfo(
            one.name, numbers[one.type_name], one.type_name, one.shape, 0, one.size_bytes
        )
        for one in found.table
    }
    if _header_bytes(found) > MAX_HEADER_BYTES:
        raise ConversionError(
            f"{found.name}: its vocabulary is larger than {MAX_HEADER_BYTES >> 20} MiB (damaged?)"
        )
    if len(tensors) < len(found.table):
        raise ConversionError(
            f"{found.name}: two of its tensors have one meaning (are its files of one model?)"
        )
    gguf = GGUFFile(
        cast(ModelFile, SimpleNamespace(shown_name=found.name)), 3, dict(found.metadata), tensors, 0
    )
    config = read_config(gguf)
    checked_tensors(gguf, config, expected_tensors(config))
    Tokenizer.from_metadata(gguf.metadata, found.name)
