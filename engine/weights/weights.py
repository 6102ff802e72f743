"""Named views into the mapped file: every tensor the architecture asks for, checked, as an address
and a shape.

Weights are in the file's map; a copy in huge pages is made only when asked for. Knows which
tensors, shapes and types a model may have; knows no arithmetic.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import BrokenModelError, EngineError, GGUFError, UnsupportedQuantError
from engine.gguf.ggml_types import GGML_TYPES, MIXES
from engine.machine import residency
from engine.machine.memory import Memory
from engine.quants import QUANTS

if TYPE_CHECKING:
    from pathlib import Path

    from engine.config import ModelConfig
    from engine.gguf.contents import GGUFFile, TensorInfo

    Place = tuple[Path, int, int]
    View = np.ndarray[Any, np.dtype[np.uint8]]

_COPY_ALIGNMENT = 128
_COPY_STEP_BYTES = 8 << 20
_GLANCE_PAGES = 16 << 10
FACTORS = ".lora_a", ".lora_b"
"""What the names of an adapter's two matrices for a tensor end with, after the tensor's own."""
STREAMED_AT_ONCE = 3
"""Streamed matrices in memory at a time: the one in use, the next, and the one before, about to be
dropped."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor an architecture asks for.

    Attributes:
        shape: (n_rows, n_cols) of a matrix, (n,) of a vector; the reverse of GGUF's dimensions.
        required: a file without it is refused.
        is_table: rows are looked up in it, one for a token.
        read_share: of the whole, what a token reads: less than 1 where only some of the experts are
            asked.
        replaces: a table that is multiplied with in this one's place where the file does without
            it.
        instead_of: another tensor that a file may have in this one's place; one of the two is
            required.
        is_vectors: rows of a matrix that is no factor of a product: norms of heads.
        stays_in_file: so little of it is read for a token that it is not brought into memory.
        n_parts: equal parts of a row that are read by themselves: each must be whole blocks.
    """

    shape: tuple[int, ...]
    required: bool = True
    is_table: bool = False
    read_share: float = 1.0
    replaces: str = ""
    instead_of: str = ""
    is_vectors: bool = False
    stays_in_file: bool = False
    n_parts: int = 1

    @property
    def is_plain(self) -> bool:
        """Whether its type must be F32, and its values be sound."""
        return len(self.shape) == 1 or self.is_vectors

    def bytes_read(self, size_bytes: int) -> int:
        """Bytes that a decode step reads of a tensor of this size."""
        if self.is_table:
            return size_bytes // self.shape[0]
        return round(size_bytes * self.read_share)


@dataclass(frozen=True)
class Tensor:
    """One tensor inside the map.

    Attributes:
        name: its GGUF name, suffix included: ``blk.0.attn_q.weight``.
        quant: a key of ``engine.quants.QUANTS``.
        n_rows: 1 for a vector.
        n_cols: elements of a row, a multiple of the type's block.
        row_bytes: from one row to the next; rows follow each other without gaps.
        address: where row 0 begins, valid as long as the ``Weights`` it came from. Aligned as the
            file aligns it (8 bytes or more), not to cache lines.
        first_row: of a part, its place in the whole tensor.
    """

    name: str
    quant: str
    n_rows: int
    n_cols: int
    row_bytes: int
    size_bytes: int
    address: int
    first_row: int = 0

    def part(self, first: int, n: int) -> Tensor:
        """Some rows of a matrix, or elements of an F32 vector, where they are."""
        if self.n_rows == 1:
            return replace(
                self, n_cols=n, row_bytes=4 * n, size_bytes=4 * n, address=self.address + 4 * first
            )
        n_bytes = n * self.row_bytes
        address = self.address + first * self.row_bytes
        return replace(
            self, n_rows=n, size_bytes=n_bytes, address=address, first_row=self.first_row + first
        )


@dataclass(frozen=True)
class LowRank:
    """What adapters add to one matrix: up @ down, of each expert by itself.

    Attributes:
        rank: columns of ``up``, rows of ``down`` of one expert.
        down: (n_experts * rank, n_cols of the matrix).
        up: (n_rows of the matrix, rank), with the scale in it.
        back: ``down`` turned over, (n_cols, rank), for a table whose rows are looked up.
        memory: what they, and perhaps those of other matrices, are in.
    """

    rank: int
    down: Tensor
    up: Tensor
    back: Tensor | None
    memory: Memory


class Weights:
    """All tensors of a model, by GGUF name. Holds the map, so that no address outlives it while
    this object lives.

    Attributes:
        tensors: name -> tensor, in the architecture's order.
        total_bytes: of all of them.
        memory_bytes: of those that are brought into memory.
        places: file, first byte and end of what is brought into memory, in whole pages.
        exceeds_memory: they are read from disk again and again, as they are needed.
        streamed: names of the dense layers' matrices that every token reads from disk, so that the
            others stay.
        low_ranks: what adapters add to a tensor, by its name.
    """

    exceeds_memory = False
    streamed: frozenset[str] = frozenset()

    def __init__(
        self, gguf: GGUFFile, tensors: Mapping[str, TensorInfo], staying: Collection[str] = ()
    ) -> None:
        """Look at tensors of a file; ``staying``: names of those that stay in the file."""
        self._memory: Memory | None = None
        self.low_ranks: Mapping[str, LowRank] = {}
        self._staying = frozenset(staying)
        self._views = [np.frombuffer(file.map, np.uint8) for file in gguf.files]
        self._paths = [file.path for file in gguf.files]
        self._infos = tensors
        self._dense: list[str] = []
        self._expert_bytes = 0
        self.places, self._brought_in = self._without(self._staying)
        self._file_type = gguf.metadata.get("general.file_type")
        bases = [view.ctypes.data for view in self._views]
        self.tensors = {name: _tensor(info, bases[info.part]) for name, info in tensors.items()}
        self.total_bytes = sum(tensor.size_bytes for tensor in self.tensors.values())
        self.memory_bytes = self.total_bytes - sum(
            self.tensors[name].size_bytes for name in staying
        )

    @classmethod
    def check(
        cls, gguf: GGUFFile, config: ModelConfig, expected: Mapping[str, TensorSpec]
    ) -> Weights:
        """Compare the file's tensors with what the architecture expects.

        Raises:
            GGUFError: a tensor is missing, unexpected, of the wrong shape, or a vector that is not
                F32.
            UnsupportedQuantError: a tensor's type is not in ``QUANTS``.
            BrokenModelError: a norm, bias or rope factor is NaN or infinite, or a rope factor is
                not above zero.
        """
        present = checked_tensors(gguf, config, expected)
        weights = cls(gguf, present, [name for name in present if expected[name].stays_in_file])
        weights._note_use(expected)
        plain = [name for name in weights.tensors if expected[name].is_plain]
        weights._check_vectors(
            gguf, plain, [name for rope in config.ropes for name in rope.factor_names]
        )
        return weights

    def _note_use(self, expected: Mapping[str, TensorSpec]) -> None:
        """Note which matrices every token reads whole, in order, and how much it reads in part."""
        in_layers = [(name, expected[name]) for name in self.tensors if name.startswith("blk.")]
        self._dense = [
            name for name, spec in in_layers if spec.read_share == 1 and not spec.is_plain
        ]
        partly = [name for name, spec in in_layers if spec.read_share < 1]
        self._expert_bytes = sum(self.tensors[name].size_bytes for name in partly)

    def _without(self, names: Collection[str]) -> tuple[list[Place], list[View]]:
        """The files but for some tensors, in whole pages: file, first byte and end of each part,
        and its view."""
        places = []
        views = []
        for part, (path, view) in enumerate(zip(self._paths, self._views, strict=True)):
            left = [self._infos[name] for name in names if self._infos[name].part == part]
            ranges = [(one.offset_bytes, one.offset_bytes + one.size_bytes) for one in left]
            for first, end in residency.pages_without(len(view), ranges):
                places.append((path, first, end))
                views.append(view[first:end])
        return places, views

    def fit_into(self, available_bytes: int | None, other_bytes: int = 0) -> None:
        """Choose what is read from disk for every token where the weights exceed available memory;
        None: they fit.

        Dense layers are read in order, so that the system's memory of what was used last would hold
        nothing of use. What else has to fit decides how much is read, not whether: a cache that is
        not filled yet costs no memory.
        """
        size_bytes = sum(end - first for _, first, end in self.places)
        self.exceeds_memory = available_bytes is not None and size_bytes >= available_bytes
        room_bytes = max(0, (available_bytes or 0) - other_bytes)
        if self.exceeds_memory:
            excess = self.memory_bytes - self._expert_bytes - room_bytes
        else:
            excess = 0
        if excess > 0:
            self.streamed = self._spread(excess)
        else:
            self.streamed = frozenset()

    def _spread(self, excess_bytes: int) -> frozenset[str]:
        """Names of dense matrices of that size at least, evenly spread: one is read while others
        are computed."""
        sizes = {name: self.tensors[name].size_bytes for name in reversed(self._dense)}
        wanted = excess_bytes + STREAMED_AT_ONCE * max(sizes.values(), default=0)
        found = []
        streamed_bytes = 0
        passed_bytes = 0
        for name, n_bytes in sizes.items():
            passed_bytes += n_bytes
            if streamed_bytes * sum(sizes.values()) < passed_bytes * wanted:
                found.append(name)
                streamed_bytes += n_bytes
        return frozenset(found)

    def places_to_read(self) -> list[Place]:
        """File, first byte and end of what is to stay in memory, unless nearly all of it is
        there."""
        if not self.exceeds_memory:
            return self.places
        if self.streamed:
            places, views = self._without(self._staying | self.streamed)
        else:
            places, views = ([], [])
        if (_share_in_memory(views) or 0) >= residency.RESIDENT_ENOUGH:
            return []
        return places

    def with_copies(self, copies: Mapping[str, Memory]) -> Weights:
        """Return the same weights, of which some tensors have other bytes, in their own type."""
        changed = object.__new__(Weights)
        changed.__dict__ |= self.__dict__ | {"_copies": copies}
        changed.tensors = self.tensors | {
            name: replace(self.tensors[name], address=memory.address)
            for name, memory in copies.items()
        }
        return changed

    def copied_to_huge_pages(self, progress: Callable[[int, int], None]) -> Weights:
        """Copy what is brought into memory, in file order, to anonymous memory that is advised for
        huge pages.

        Args:
            progress: called with (bytes done, bytes in all) after every few megabytes.

        Raises:
            MemoryPlanError: the system gives no such memory.
        """
        copy = object.__new__(Weights)
        copy._file_type = self._file_type
        copy.total_bytes = self.total_bytes
        copy.memory_bytes = self.memory_bytes
        copy._staying = self._staying
        copy.places = self.places
        copy.low_ranks = self.low_ranks
        starts = {}
        size_bytes = 0
        copied = [tensor for name, tensor in self.tensors.items() if name not in self._staying]
        in_file_order = sorted(copied, key=lambda tensor: tensor.address)
        for tensor in in_file_order:
            starts[tensor.name] = size_bytes
            size_bytes += (
                (tensor.size_bytes + _COPY_ALIGNMENT - 1) // _COPY_ALIGNMENT * _COPY_ALIGNMENT
            )
        copy._memory = Memory(size_bytes + _COPY_ALIGNMENT)
        copy._brought_in = [copy._memory.bytes]
        copy._views = [*copy._brought_in, *self._views]
        done = 0
        for tensor in in_file_order:
            view, start = self._place(tensor)
            for part in range(0, tensor.size_bytes, _COPY_STEP_BYTES):
                n = min(_COPY_STEP_BYTES, tensor.size_bytes - part)
                at = starts[tensor.name] + part
                copy._views[0][at : at + n] = view[start + part : start + part + n]
                done += n
                progress(done, self.memory_bytes)
        places = {name: copy._memory.address + start for name, start in starts.items()}
        copy.tensors = {
            name: replace(tensor, address=places.get(name, tensor.address))
            for name, tensor in self.tensors.items()
        }
        return copy

    def map_ahead(self) -> residency.MappingAhead:
        """Begin to prepare the file's map for the first walk; to be stopped before the file is
        closed."""
        return residency.MappingAhead(self._brought_in)

    @property
    def huge_bytes(self) -> int:
        """Bytes that are in huge pages: 0 for weights in the file's map."""
        if self._memory:
            return self._memory.huge_backed_bytes()
        return 0

    def resident_share(self) -> float:
        """Share of what should be in memory that is there; 1 for copied weights and where the
        system is silent."""
        if self._memory:
            share = None
        else:
            share = _share_in_memory(self._brought_in)
        if share is None:
            return 1.0
        return share

    def resident_bytes(self) -> int | None:
        """Estimate how much of the weights, in the map or copied, is in memory now, looking at a
        part of the pages.

        None where the system does not say.
        """
        share = _share_in_memory(self._brought_in, _GLANCE_PAGES)
        if share is None:
            return None
        return round(self.memory_bytes * share)

    def get(self, name: str) -> Tensor | None:
        """Return a tensor by its GGUF name, or None where the file does without."""
        return self.tensors.get(name)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def rows(self, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Look at a tensor's bytes: (n_rows, row_bytes) uint8, C-contiguous, read-only, inside the
        map."""
        tensor = self.tensors[name]
        view, start = self._place(tensor)
        return view[start : start + tensor.size_bytes].reshape(tensor.n_rows, tensor.row_bytes)

    def _place(self, tensor: Tensor) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], int]:
        """Return the view that a tensor is in, and where in it."""
        for view in self._views:
            start = tensor.address - view.ctypes.data
            if 0 <= start < len(view):
                return view, start
        raise AssertionError(f"{tensor.name} is in no view")

    def quantization_label(self) -> str:
        """Name the mix: what the file says (``Q4_K_M``) if its tensors agree, else its matrices'
        commonest type."""
        matrices = [
            tensor
            for tensor in self.tensors.values()
            if tensor.name.startswith("blk.") and tensor.n_rows > 1
        ]
        counts = Counter(tensor.quant for tensor in matrices)
        if isinstance(self._file_type, int):
            quant, claimed = MIXES.get(self._file_type, ("", ""))
        else:
            quant, claimed = ("", "")
        if quant in counts:
            return claimed
        return counts.most_common(1)[0][0]

    def _check_vectors(self, gguf: GGUFFile, names: Iterable[str], factors: Iterable[str]) -> None:
        """Refuse damaged vectors at once; damaged matrices show in the first logits.

        Args:
            factors: those of tensors that frequencies are divided by.
        """
        for name in names:
            if not np.isfinite(self.float32(name)).all():
                raise BrokenModelError(
                    f"{gguf.shown_name}: tensor {name} holds NaN or infinity: "
                    f"its weights are damaged (download it again)"
                )
        for name in factors:
            if name in self.tensors and not (self.float32(name) > 0).all():
                raise BrokenModelError(
                    f"{gguf.shown_name}: tensor {name} holds a factor that is not above zero: "
                    f"its weights are damaged (download it again)"
                )

    def float32(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Look at a tensor of type F32: (n_rows, n_cols)."""
        return self.rows(name).view(np.float32)


def checked_tensors(
    gguf: GGUFFile, config: ModelConfig, expected: Mapping[str, TensorSpec]
) -> dict[str, TensorInfo]:
    """Compare what the header says of the file's tensors with what the architecture expects, and
    return them.

    Raises:
        GGUFError, UnsupportedQuantError: as ``Weights.check`` says.
    """
    present = _present(gguf, expected)
    _refuse_unexpected(gguf, expected, config)
    for name, info in present.items():
        _check_tensor(gguf, info, expected[name])
    return present


def multiplied(
    present: Collection[str], expected: Mapping[str, TensorSpec]
) -> dict[str, TensorSpec]:
    """Specifications of the tensors that a file holds; a table that is multiplied with counts as a
    matrix."""
    found = {name: expected[name] for name in present}
    for name, spec in expected.items():
        if spec.replaces in found and name not in found:
            found[spec.replaces] = replace(found[spec.replaces], is_table=False)
    return found


def _share_in_memory(views: Sequence[View], most_pages: int = 0) -> float | None:
    total_bytes = sum(map(len, views))
    found_bytes = 0
    for view in views:
        found = residency.resident_bytes(
            view, most_pages and max(1, most_pages * len(view) // total_bytes)
        )
        if found is None:
            return None
        found_bytes += found
    if total_bytes:
        return found_bytes / total_bytes
    return 1.0


def _tensor(info: TensorInfo, base: int) -> Tensor:
    layout = GGML_TYPES[info.ggml_type]
    n_cols = info.shape[-1]
    row_bytes = n_cols // layout.block_size * layout.type_size
    return Tensor(
        info.name,
        info.type_name,
        info.size_bytes // row_bytes,
        n_cols,
        row_bytes,
        info.size_bytes,
        base + info.offset_bytes,
    )


def _fail(gguf: GGUFFile, problem: str, error: type[EngineError] = GGUFError) -> EngineError:
    return error(f"{gguf.shown_name}: {problem}")


def _present(gguf: GGUFFile, expected: Mapping[str, TensorSpec]) -> dict[str, TensorInfo]:
    """Pick the expected tensors; refuse a file that lacks a required one."""
    present = {}
    for name, spec in expected.items():
        info = gguf.tensors.get(name)
        other = spec.instead_of in gguf.tensors
        if info is not None:
            if other:
                raise _fail(
                    gguf, f"tensor {name} is there twice: {spec.instead_of} names the same weights"
                )
            present[name] = info
        elif spec.required and not other:
            raise _fail(gguf, f"tensor {name} is missing (truncated, or not converted completely)")
    return present


def _refuse_unexpected(
    gguf: GGUFFile, expected: Mapping[str, TensorSpec], config: ModelConfig
) -> None:
    """Refuse tensors no one would read: half a model runs as silently wrong as one without its
    biases."""
    for name in gguf.tensors:
        if name in expected:
            continue
        layer = re.match(r"blk\.(\d{1,9})\.", name)
        n_blocks = config.n_layers + config.ignored_blocks
        if layer and int(layer[1]) >= n_blocks:
            raise _fail(
                gguf, f"tensor {name} is beyond {config.architecture}.block_count {n_blocks}"
            )
        if layer and int(layer[1]) >= config.n_layers:
            continue
        raise _fail(gguf, f"tensor {name} is unknown to the architecture {config.architecture}")


def _check_tensor(gguf: GGUFFile, info: TensorInfo, expected: TensorSpec) -> None:
    if _without_leading_ones(info.shape) != _without_leading_ones(expected.shape):
        found = _shape(info.shape)
        wanted = _shape(expected.shape)
        raise _fail(gguf, f"tensor {info.name} has shape {found}, the hyperparameters say {wanted}")
    if info.type_name not in QUANTS:
        raise _fail(
            gguf,
            (
                f"tensor {info.name} is {info.type_name} (ggml type {info.ggml_type}); supported: "
                f"{', '.join(QUANTS)}"
            ),
            UnsupportedQuantError,
        )
    block = GGML_TYPES[info.ggml_type].block_size
    part = info.shape[-1] // expected.n_parts
    if part % block:
        raise _fail(
            gguf,
            (
                f"tensor {info.name} is {info.type_name}: {part} weights of a layer are no blocks "
                f"of {block}"
            ),
        )
    if expected.is_plain and info.type_name != "F32":
        raise _fail(
            gguf,
            (
                f"tensor {info.name} is {info.type_name}; norms, biases, positions and rope "
                f"factors must be F32"
            ),
        )


def _without_leading_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Drop what GGUF writers pad shapes with: (1, 64) and (64,) are the same vector."""
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
