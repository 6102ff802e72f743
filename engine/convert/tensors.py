"""Tensors of a GGUF file from those of a directory; rows are read in pieces of a few megabytes."""

from __future__ import annotations

import math
import mmap
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.convert.delta_net import (
    LINEAR_ATTENTION,
    add_predictor,
    head_order,
    predictor_layer_name,
    predictor_name,
)
from engine.convert.hyperparameters import ConvertedConfig
from engine.convert.recipes import Recipe
from engine.convert.safetensors import SourceTensor
from engine.errors import ConversionError, printable
from engine.gguf.read import MAX_DIMS

Array = np.ndarray[Any, Any]
_CHUNK_ELEMENTS = 1 << 22
_ONE_OF_MANY = re.compile(r"(.+\.(?:experts|norms))\.(\d{1,5})\.((?:\w+\.)?(?:weight|bias))")
"""Pattern of a tensor of one expert, or of the norm of one head; in GGUF all of them are one
tensor."""
_NOT_NEEDED = re.compile(
    r".*(rotary_emb\.inv_freq|\.attn\.(masked_)?bias|\.attention\.(masked_)?bias|position_ids"
    r"|pooler\.dense\.\w+)"
)
"""Pattern of computed constants."""
_ENCODER = re.compile(
    r"(model\.)?(vision_tower|vision_model|visual|multi_modal_projector|audio_tower)\..*"
)
"""Pattern of tensors for pictures or audio."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows of a tensor that come from one tensor of the source.

    Attributes:
        values: (n_rows, n_cols), a view of the file; BF16 as uint16.
        order: Index of the source row for each row; None for the order of the source.
        columns: Index of the source column for each column; None for the order of the source.
        added: Number to add to each value.
        is_log: Whether the values are logarithms of rates, which GGUF has as negative numbers.
    """

    source: SourceTensor
    values: Array
    order: Array | None = None
    columns: Array | None = None
    added: float = 0.0
    is_log: bool = False

    def rows(self) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
        """Yield the rows as float32, in groups; pages that were read are released."""
        if self.order is None:
            n_rows = len(self.values)
        else:
            n_rows = len(self.order)
        step = max(1, _CHUNK_ELEMENTS // max(1, self.values.shape[1]))
        for first in range(0, n_rows, step):
            selection = slice(first, first + step)
            raw = np.ascontiguousarray(
                self.values[selection if self.order is None else self.order[selection]]
            )
            if self.source.dtype == "BF16":
                raw = (raw.astype(np.uint32) << 16).view(np.float32)
            values = raw.astype(np.float32, copy=False)
            if self.columns is not None:
                values = values[:, self.columns]
            if self.is_log:
                values = -np.exp(values)
            yield values + np.float32(self.added) if self.added else values
        first_page = self.source.offset // mmap.PAGESIZE * mmap.PAGESIZE
        if hasattr(mmap, "MADV_DONTNEED"):
            self.source.file.map.madvise(
                mmap.MADV_DONTNEED,
                first_page,
                self.source.offset - first_page + self.source.size_bytes,
            )


@dataclass(frozen=True, eq=False)
class ConvertedTensor:
    """Tensor of the GGUF file.

    Attributes:
        shape: Shape in the order of NumPy.
        pieces: Consecutive pieces of its rows.
    """

    name: str
    shape: tuple[int, ...]
    pieces: Sequence[Piece]

    @property
    def source(self) -> SourceTensor:
        """First source tensor."""
        return self.pieces[0].source


def is_of_encoder(source_name: str) -> bool:
    """Whether a tensor is for pictures or audio; a GGUF file of the text model does not have it."""
    return _ENCODER.fullmatch(source_name) is not None


def converted_tensors(
    recipe: Recipe, converted: ConvertedConfig, sources: Mapping[str, SourceTensor], is_tied: bool
) -> list[ConvertedTensor]:
    """Return the tensors of the file, in the order of the source.

    Args:
        is_tied: Whether the embedding is also the head; a separate head is then ignored.

    Raises:
        ConversionError: A tensor has an unsupported type, or a name that the architecture does
            not have.
    """
    n_layers = converted.keys["block_count"]
    if recipe.is_delta_net:
        n_layers = add_predictor(converted, sources)
    names = _Names(recipe.architecture, converted.keys["block_count"], n_layers)
    tensors = []
    groups = defaultdict[str, dict[int, SourceTensor]](dict)
    for source_name, source in sources.items():
        if _NOT_NEEDED.fullmatch(source_name) or is_of_encoder(source_name):
            continue
        if is_tied and source_name.endswith("lm_head.weight"):
            continue
        if not source.is_float or not math.prod(source.shape):
            problem = (
                f"has type {source.dtype}, which is not supported (get the model in BF16 or F16)"
            )
            raise ConversionError(
                f"{source.file.shown_name}: tensor {printable(source_name)} {problem}"
            )
        source_name = predictor_layer_name(source_name, n_layers)
        match = _ONE_OF_MANY.fullmatch(source_name)
        if match:
            merged_name = f"{match[1].removesuffix('.norms')}.{match[3]}"
            groups[names.of(merged_name, source)][int(match[2])] = source
            continue
        tensors.append(
            _converted(recipe, converted, source_name, names.of(source_name, source), source)
        )
    return tensors + [_stacked(name, group) for name, group in groups.items()]


class _Names:
    """Names of tensors in GGUF, by their names in transformers.

    Prefixes of training wrappers are removed.

    Args:
        n_blocks: Number of layers, with those of a predictor.
        n_layers: Number of layers without these.
    """

    def __init__(self, architecture: str, n_blocks: int, n_layers: int) -> None:
        from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

        architecture_id = next(
            architecture_id
            for architecture_id, name in MODEL_ARCH_NAMES.items()
            if name == architecture
        )
        self._map = get_tensor_name_map(architecture_id, n_blocks)
        self._architecture = architecture
        self._n_layers = n_layers

    def of(self, name: str, source: SourceTensor) -> str:
        source_name = name.removeprefix("module.").replace("_orig_mod.", "")
        source_name = re.sub(
            r"^(model\.language_model\.|language_model\.model\.|bert\.)",
            _shorter_prefix,
            source_name,
        )
        source_name = source_name.removeprefix("language_model.")
        if own_name := predictor_name(source_name, self._n_layers):
            return own_name
        if source_name.endswith(".dt_bias"):
            source_name = source_name.removesuffix(".dt_bias") + ".dt_proj.bias"
        ends = (".weight", ".bias")
        gguf_name = self._map.get_name(source_name, ends) or self._map.get_name(
            source_name.removeprefix("transformer."), ends
        )
        if gguf_name is None:
            problem = (
                f"is not known of the architecture {self._architecture} (a GGUF file of this "
                f"model may be had)"
            )
            raise ConversionError(f"{source.file.shown_name}: tensor {printable(name)} {problem}")
        return str(gguf_name)


def _shorter_prefix(prefix: re.Match[str]) -> str:
    if prefix[0] == "bert.":
        return ""
    return "model."


def _converted(
    recipe: Recipe, converted: ConvertedConfig, source_name: str, name: str, source: SourceTensor
) -> ConvertedTensor:
    values = source.values()
    if not 1 <= values.ndim <= MAX_DIMS:
        problem = f"has {values.ndim} dimensions: must have 1 to {MAX_DIMS}"
        raise ConversionError(
            f"{source.file.shown_name}: tensor {printable(source_name)} {problem} (damaged?)"
        )
    if values.ndim == 2 and source_name.endswith(recipe.transposed):
        values = values.T
    if source_name.endswith("conv1d.weight") and values.ndim == 3 and values.shape[1] == 1:
        values = values[:, 0]
    shape = values.shape
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    added = 0.0
    if _is_difference(name, source_name):
        added = recipe.norm_added
    order = columns = None
    if recipe.is_delta_net and LINEAR_ATTENTION in source_name:
        order, columns = head_order(converted, source_name)
        _check_size(source_name, values.shape[0], order)
        _check_size(source_name, values.shape[-1], columns)
    for letter, n_heads in (("q", converted.n_heads), ("k", converted.n_kv_heads)):
        if recipe.is_turned and f".attn_{letter}." in name:
            order = _interleaved_halves(values.shape[0], n_heads)
    if recipe.is_by_head and ".attn_qkv." in name:
        order = _grouped_qkv(values.shape[0], converted.n_heads)
    if order is not None and len(shape) == 1:
        # a bias is one row
        values = values[order][None, :]
        order = None
    return ConvertedTensor(
        name,
        shape,
        [
            Piece(
                source,
                values.reshape(-1, shape[-1]),
                order,
                columns,
                added,
                is_log=source_name.endswith(".A_log") and recipe.is_delta_net,
            )
        ],
    )


def _is_difference(name: str, source_name: str) -> bool:
    """Whether a tensor is the weight of a norm that some models store as difference from 1."""
    if source_name.endswith(f"{LINEAR_ATTENTION}norm.weight"):
        return False
    return source_name.endswith("norm.weight") or name.endswith(("enorm.weight", "hnorm.weight"))


def _check_size(source_name: str, size: int, order: Array | None) -> None:
    if order is not None and len(order) != size:
        raise ConversionError(
            f"config.json: {printable(source_name)} has {size} rows or columns where the heads "
            f"have {len(order)}"
        )


def _interleaved_halves(n_rows: int, n_heads: int) -> Array:
    """Return the order of rows that interleaves the two halves of each head."""
    if not n_heads or n_rows % (2 * n_heads):
        raise ConversionError(
            f"config.json: {n_heads} heads do not fit a projection of {n_rows} rows"
        )
    order: Array = np.arange(n_rows).reshape(n_heads, 2, -1).swapaxes(1, 2).ravel()
    return order


def _grouped_qkv(n_rows: int, n_heads: int) -> Array:
    """Return the order of rows with all queries first, then all keys, then all values."""
    if not n_heads or n_rows % (3 * n_heads):
        raise ConversionError(
            f"config.json: {n_heads} heads do not fit a projection of {n_rows} rows"
        )
    order: Array = np.arange(n_rows).reshape(n_heads, 3, -1).swapaxes(0, 1).ravel()
    return order


def _stacked(name: str, group: Mapping[int, SourceTensor]) -> ConvertedTensor:
    """Merge the tensors of all experts, or of all heads."""
    ordered = [group[number] for number in sorted(group)]
    first = ordered[0]
    is_complete = sorted(group) == list(range(len(group)))
    if (
        not is_complete
        or not 1 <= len(first.shape) < MAX_DIMS
        or any(tensor.shape != first.shape for tensor in ordered)
    ):
        raise ConversionError(
            f"{first.file.shown_name}: the tensors of {name} are not all there, or of one shape"
        )
    pieces = [Piece(tensor, tensor.values().reshape(-1, first.shape[-1])) for tensor in ordered]
    return ConvertedTensor(name, (len(ordered), *first.shape), pieces)
