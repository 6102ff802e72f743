"""Which tensors of a GGUF file are made of which tensors of a directory, and their rows, a few
megabytes at a time."""

from __future__ import annotations

import math
import mmap
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.convert.hyperparameters import ConvertedConfig
from engine.convert.recipes import Recipe
from engine.convert.safetensors import SourceTensor
from engine.errors import ConversionError, shown
from engine.gguf.read import MAX_DIMS

Array = np.ndarray[Any, Any]
_CHUNK_ELEMENTS = 1 << 22
_OF_ONE = re.compile(r"(.+\.(?:experts|norms))\.(\d{1,5})\.((?:\w+\.)?(?:weight|bias))")
"""A tensor of one expert, or of the norm of one head: in GGUF those of all are one tensor."""
_NOT_NEEDED = re.compile(
    r".*(rotary_emb\.inv_freq|\.attn\.(masked_)?bias|\.attention\.(masked_)?bias|position_ids|pooler\.dense\.\w+)|"
    r"(model\.)?(vision_tower|vision_model|visual|multi_modal_projector|audio_tower)\..*"
)
"""Constants that are computed, and what looks at pictures or listens."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows of a tensor that are made of one tensor of the source.

    Attributes:
        values: (n_rows, n_cols), a view of the file; BF16 as uint16.
        order: number of the source's row for each row; None for the source's own order.
        added: to each value.
    """

    source: SourceTensor
    values: Array
    order: Array | None = None
    added: float = 0.0

    def rows(self) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
        """Yield the rows as float32, some at a time; what was read does not stay in memory."""
        if self.order is None:
            n_rows = len(self.values)
        else:
            n_rows = len(self.order)
        step = max(1, _CHUNK_ELEMENTS // max(1, self.values.shape[1]))
        for first in range(0, n_rows, step):
            wanted = slice(first, first + step)
            raw = np.ascontiguousarray(
                self.values[wanted if self.order is None else self.order[wanted]]
            )
            if self.source.dtype == "BF16":
                raw = (raw.astype(np.uint32) << 16).view(np.float32)
            values = raw.astype(np.float32, copy=False)
            yield values + np.float32(self.added) if self.added else values
        first_page = self.source.at // mmap.PAGESIZE * mmap.PAGESIZE
        if hasattr(mmap, "MADV_DONTNEED"):
            self.source.file.map.madvise(
                mmap.MADV_DONTNEED, first_page, self.source.at - first_page + self.source.size_bytes
            )


@dataclass(frozen=True, eq=False)
class ConvertedTensor:
    """A tensor of the GGUF file.

    Attributes:
        shape: in NumPy's order.
        pieces: of which its rows are made, one after the other.
    """

    name: str
    shape: tuple[int, ...]
    pieces: Sequence[Piece]

    @property
    def source(self) -> SourceTensor:
        """The first tensor that it is made of."""
        return self.pieces[0].source


def made_tensors(
    recipe: Recipe, described: ConvertedConfig, sources: Mapping[str, SourceTensor], is_tied: bool
) -> list[ConvertedTensor]:
    """Return the tensors of the file, in the source's order.

    Args:
        is_tied: the embedding is the head, too; a head next to it counts for nothing.

    Raises:
        ConversionError: a tensor has a type that cannot be read, or a name that the architecture
            does not know.
    """
    names = _Names(recipe.architecture, described.keys["block_count"])
    made = []
    groups = defaultdict[str, dict[int, SourceTensor]](dict)
    for source_name, source in sources.items():
        if _NOT_NEEDED.fullmatch(source_name) or (
            is_tied and source_name.endswith("lm_head.weight")
        ):
            continue
        if not source.is_float or not math.prod(source.shape):
            what = f"has type {source.dtype}, which is not supported (get the model in BF16 or F16)"
            raise ConversionError(f"{source.file.shown_name}: tensor {shown(source_name)} {what}")
        of_one = _OF_ONE.fullmatch(source_name)
        if of_one:
            whole = f"{of_one[1].removesuffix('.norms')}.{of_one[3]}"
            groups[names.of(whole, source)][int(of_one[2])] = source
            continue
        made.append(_made(recipe, described, source_name, names.of(source_name, source), source))
    return made + [_stacked(name, group) for name, group in groups.items()]


class _Names:
    """Names of tensors in GGUF, by those of transformers.

    What wrappers for training put before these is left out.
    """

    def __init__(self, architecture: str, n_blocks: int) -> None:
        from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

        kind = next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == architecture)
        self._map = get_tensor_name_map(kind, n_blocks)
        self._architecture = architecture

    def of(self, name: str, source: SourceTensor) -> str:
        plain = name.removeprefix("module.").replace("_orig_mod.", "")
        plain = re.sub(
            r"^(model\.language_model\.|language_model\.model\.|bert\.)", _standing_for, plain
        )
        plain = plain.removeprefix("language_model.")
        ends = (".weight", ".bias")
        found = self._map.get_name(plain, ends) or self._map.get_name(
            plain.removeprefix("transformer."), ends
        )
        if found is None:
            what = (
                f"is not known of the architecture {self._architecture} (a GGUF file of this "
                f"model may be had)"
            )
            raise ConversionError(f"{source.file.shown_name}: tensor {shown(name)} {what}")
        return str(found)


def _standing_for(prefix: re.Match[str]) -> str:
    if prefix[0] == "bert.":
        return ""
    return "model."


def _made(
    recipe: Recipe, described: ConvertedConfig, source_name: str, name: str, source: SourceTensor
) -> ConvertedTensor:
    values = source.values()
    if not 1 <= values.ndim <= MAX_DIMS:
        what = f"has {values.ndim} dimensions: must have 1 to {MAX_DIMS}"
        raise ConversionError(
            f"{source.file.shown_name}: tensor {shown(source_name)} {what} (damaged?)"
        )
    if values.ndim == 2 and source_name.endswith(recipe.transposed):
        values = values.T
    shape = values.shape
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    if source_name.endswith("norm.weight"):
        added = recipe.norm_added
    else:
        added = 0.0
    order = None
    for letter, n_heads in (("q", described.n_heads), ("k", described.n_kv_heads)):
        if recipe.is_turned and f".attn_{letter}." in name:
            order = _turned(values.shape[0], n_heads)
    if recipe.is_by_head and ".attn_qkv." in name:
        order = _by_kind(values.shape[0], described.n_heads)
    if order is not None and len(shape) == 1:
        # a bias is one row
        values = values[order][None, :]
        order = None
    return ConvertedTensor(
        name, shape, [Piece(source, values.reshape(-1, shape[-1]), order, added)]
    )


def _turned(n_rows: int, n_heads: int) -> Array:
    """Return the order of rows in which the two halves of each head take turns."""
    if not n_heads or n_rows % (2 * n_heads):
        raise ConversionError(
            f"config.json: {n_heads} heads do not fit a projection of {n_rows} rows"
        )
    order: Array = np.arange(n_rows).reshape(n_heads, 2, -1).swapaxes(1, 2).ravel()
    return order


def _by_kind(n_rows: int, n_heads: int) -> Array:
    """Return the order of rows in which all queries are before all keys, and those before all
    values."""
    if not n_heads or n_rows % (3 * n_heads):
        raise ConversionError(
            f"config.json: {n_heads} heads do not fit a projection of {n_rows} rows"
        )
    order: Array = np.arange(n_rows).reshape(n_heads, 3, -1).swapaxes(0, 1).ravel()
    return order


def _stacked(name: str, group: Mapping[int, SourceTensor]) -> ConvertedTensor:
    """Put the tensors of all experts, or of all heads, into one."""
    ordered = [group[number] for number in sorted(group)]
    first = ordered[0]
    is_whole = sorted(group) == list(range(len(group)))
    if (
        not is_whole
        or not 1 <= len(first.shape) < MAX_DIMS
        or any(one.shape != first.shape for one in ordered)
    ):
        raise ConversionError(
            f"{first.file.shown_name}: the tensors of {name} are not all there, or of one shape"
        )
    pieces = [Piece(one, one.values().reshape(-1, first.shape[-1])) for one in ordered]
    return ConvertedTensor(name, (len(ordered), *first.shape), pieces)
