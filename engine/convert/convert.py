"""Conversion of a Hugging Face directory to a GGUF file.

Everything is checked before the first byte is written. Tensors pass through memory in pieces of a
few megabytes. The engine can open each converted model: the content of the file is checked like the
header of a file.
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
from engine.convert.tensors import ConvertedTensor, converted_tensors, is_of_encoder
from engine.convert.vocabulary import vocabulary_keys
from engine.errors import BrokenModelError, ConversionError, UnsupportedArchitectureError, printable
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
"""Bytes of the length of a string in a file."""
_MOST_REVISION_BYTES = 1 << 20
_MORE_HEADER_BYTES = 1 << 20
"""Allowance for the tensor table and the keys in the header of a file."""
_QUANTISED = "quantization_config", "quantization", "compression_config"
"""Settings of models whose weights are quantised.

They are those of transformers, of MLX, and of older compressed-tensors.
"""


@dataclass(frozen=True)
class Conversion:
    """Model that can be converted: everything except the weights.

    Attributes:
        name: Name of the model.
        mix: Mix of the weights.
        metadata: Metadata of the file.
        tensors: Tensors and the types that they get.
        numbers: Tensors that are computed from settings.
        n_left_out: Number of tensors for pictures or audio, which are left out.
    """

    name: str
    mix: str
    metadata: Mapping[str, Any]
    tensors: Sequence[tuple[ConvertedTensor, str]]
    numbers: Mapping[str, np.ndarray[Any, Any]]
    n_left_out: int = 0

    @property
    def architecture(self) -> str:
        """Value of ``general.architecture``."""
        return str(self.metadata["general.architecture"])

    @property
    def writes(self) -> bool:
        """Whether the model generates text; other models compute vectors of texts."""
        return self.architecture not in ENCODERS

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.size_bytes for tensor in self.table)

    @property
    def table(self) -> list[TensorToWrite]:
        """Tensor table of the file."""
        constants = [
            TensorToWrite(name, values.shape, "F32") for name, values in self.numbers.items()
        ]
        return constants + [
            TensorToWrite(tensor.name, tensor.shape, type_name)
            for tensor, type_name in self.tensors
        ]

    def close(self) -> None:
        """Close the files of weights; nothing may be read afterwards."""
        close_files(piece.source for tensor, _ in self.tensors for piece in tensor.pieces)

    def write(self, path: Path, progress: Callable[[int, str], object], n_threads: int = 1) -> None:
        """Write the file; it gets its name when it is complete, and replaces a file of the same
        name.

        Args:
            progress: Called with the number of bytes that are done and the name of a tensor.

        Raises:
            ConversionError: A weight is NaN, infinite, or too large for the type.
            FileUnwritableError: The disk is full.
        """
        done_bytes = 0
        with writing(path, self.metadata, self.table) as out:
            for values in self.numbers.values():
                out.write(values)
            for tensor, type_name in self.tensors:
                for rows in (rows for piece in tensor.pieces for rows in piece.rows()):
                    packed = _packed(tensor, rows, type_name, n_threads)
                    out.write(packed)
                    done_bytes += packed.nbytes
                    progress(done_bytes, tensor.name)


def _packed(tensor: ConvertedTensor, rows: Floats, type_name: str, n_threads: int) -> Bytes:
    try:
        return quantise_rows(rows, type_name, n_threads=n_threads)
    except BrokenModelError as error:
        name = tensor.source.file.shown_name
        raise ConversionError(
            f"{name}: {tensor.name} {error} (damaged? else take --type BF16)"
        ) from None


def model_directory(directory: Path) -> Path:
    """Return the directory itself, or the snapshot in a repository's folder.

    The cache of Hugging Face's programs has such folders.

    Raises:
        ConversionError: There are several snapshots, and the folder does not name the latest
            one.
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
        name = printable(directory.name)
        advice = f"name the one that is meant, in {name}/snapshots"
        raise ConversionError(f"{name}: has {len(candidates)} snapshots ({advice})")
    return candidates[0]


def prepare(directory: Path, mix: str = "") -> Conversion:
    """Read the model's settings and tensors, and check that the engine can open the result.

    Args:
        mix: Mix of the weights; "" for the type of the source.

    Raises:
        EngineError: The message is a line with the file, the problem, and a remedy.
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
    converted = describe(config, recipe.has_rope)
    for add_keys in recipe.more_keys:
        add_keys(config, converted)
    is_tied = config.flag("tie_word_embeddings", False)
    tensors = converted_tensors(recipe, converted, sources, is_tied)
    mix = mix or _main_type(tensors)
    embedding = next((tensor for tensor in tensors if tensor.name == "token_embd.weight"), None)
    if embedding is None or len(embedding.shape) != 2:
        raise ConversionError(
            f"{printable(directory.name)}: has no embedding of tokens (are all its files here?)"
        )
    name = _name(directory)
    metadata = {
        "general.architecture": recipe.architecture,
        "general.type": "model",
        "general.name": name,
        **{
            f"{recipe.architecture}.{key}": value
            for key, value in (converted.keys | pooling_keys(directory)).items()
        },
        f"{recipe.architecture}.vocab_size": embedding.shape[0],
        "general.file_type": mixtures.MIXTURES[mix],
        "general.quantization_version": QUANTIZATION_VERSION,
        **vocabulary_keys(directory, config, embedding.shape[0]),
        **{f"tokenizer.ggml.{key}": value for key, value in converted.vocabulary.items()},
    }
    shapes = {tensor.name: mixtures.TypedShape(tensor.shape, "F32") for tensor in tensors}
    types = mixtures.mixture(metadata, shapes, mix)
    typed_tensors = [(tensor, types[tensor.name]) for tensor in tensors]
    n_left_out = sum(map(is_of_encoder, sources))
    conversion = Conversion(name, mix, metadata, typed_tensors, converted.tensors, n_left_out)
    _check(conversion)
    return conversion


def _configuration(directory: Path) -> tuple[JsonObject, Recipe]:
    """Return the settings of the text model, and the recipe."""
    values = read_object(directory / "config.json")
    if values is None:
        raise _no_model(directory)
    file_config = JsonObject(values, "config.json")
    name = _class_name(file_config)
    recipe = RECIPES.get(name)
    if recipe is None:
        examples = list(RECIPES)[:_N_NAMED]
        supported = (
            f"{', '.join(examples)} and {len(RECIPES) - len(examples)} others (jalopy help convert)"
        )
        raise UnsupportedArchitectureError(
            f"config.json: architecture {printable(name)} cannot be converted; can be: {supported}"
        )
    inner = {**values, **file_config.under("text_config").values}
    config = JsonObject({**recipe.defaults, **inner}, "config.json")
    for setting in _QUANTISED:
        if config.get(setting) is not None:
            method = printable(config.under(setting).word("quant_method", setting))
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
            f"hidden_act is {printable(function)}: {recipe.architecture} means "
            f"{recipe.activations[0]}"
        )
    for setting, expected in recipe.expects.items():
        if config.values.get(setting, expected) != expected:
            raise config.fail(
                f"{setting} is {shown_value(config.get(setting))}, which a GGUF file cannot say"
            )
    return config, recipe


def _no_model(directory: Path) -> ConversionError:
    """Return the exception for a directory without config.json."""
    name = printable(directory.name or str(directory))
    adapter = read_object(directory / "adapter_config.json")
    if adapter is None:
        return ConversionError(
            f"{name}: has no config.json (name a directory of Hugging Face's form)"
        )
    base = adapter.get("base_model_name_or_path")
    if isinstance(base, str):
        model = f" of {printable(base)}"
    else:
        model = ""
    advice = (
        "merge it into its model with PEFT's merge_and_unload, or get its GGUF file and give that "
        "to --lora"
    )
    return ConversionError(f"{name}: is an adapter (LoRA){model}, not a model ({advice})")


def _class_name(config: JsonObject) -> str:
    """Return the class name of the model in transformers."""
    names = config.get("architectures")
    if names is None or names == []:
        return "missing"
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise config.fail_value("architectures", "a list of names")
    return names[0]


def _name(directory: Path) -> str:
    """Return the name of the model's directory, or of its repository in the cache of Hugging Face's
    programs."""
    path = directory.resolve()
    in_cache = re.fullmatch(r"models--.+?--(.+)", path.parent.parent.name)
    return printable((in_cache[1] if in_cache else path.name).rpartition("--")[2], 200)


def _main_type(tensors: Sequence[ConvertedTensor]) -> str:
    """Return the type of most matrices; F16 instead of F32."""
    sizes = dict.fromkeys(("BF16", "F16", "F32"), 0)
    for tensor in tensors:
        if len(tensor.shape) > 1:
            sizes[tensor.source.dtype] += math.prod(tensor.shape)
    main_type = max(sizes, key=lambda name: sizes[name])
    if main_type == "F32":
        return "F16"
    return main_type


def _header_bytes(conversion: Conversion) -> int:
    """Return an upper estimate of the bytes of the metadata and the tensor table."""
    total_bytes = _MORE_HEADER_BYTES
    for value in conversion.metadata.values():
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


def _check(conversion: Conversion) -> None:
    """Check the content of the file as if it existed."""
    numbers = {layout.name: number for number, layout in GGML_TYPES.items()}
    tensors = {
        tensor.name: TensorInfo(
            tensor.name,
            numbers[tensor.type_name],
            tensor.type_name,
            tensor.shape,
            0,
            tensor.size_bytes,
        )
        for tensor in conversion.table
    }
    if _header_bytes(conversion) > MAX_HEADER_BYTES:
        raise ConversionError(
            f"{conversion.name}: its vocabulary is larger than {MAX_HEADER_BYTES >> 20} MiB "
            f"(damaged?)"
        )
    if len(tensors) < len(conversion.table):
        raise ConversionError(
            f"{conversion.name}: two of its tensors have one meaning (are its files of one model?)"
        )
    gguf = GGUFFile(
        cast(ModelFile, SimpleNamespace(shown_name=conversion.name)),
        3,
        dict(conversion.metadata),
        tensors,
        0,
    )
    config = read_config(gguf)
    checked_tensors(gguf, config, expected_tensors(config))
    Tokenizer.from_metadata(gguf.metadata, conversion.name)
