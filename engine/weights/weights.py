"""Named views into the mapped file: every tensor of the architecture, checked, as an address and a
shape.

Weights are in the file's map; a copy in huge pages is made only on request. This module knows the
tensors, shapes and types that a model may have, and no arithmetic.
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

ROWS_OF_HEAD = "d2t"
"""Tensor with the token ids of the rows of a smaller head for guesses."""
_COPY_ALIGNMENT = 128
_COPY_STEP_BYTES = 8 << 20
_GLANCE_PAGES = 16 << 10
FACTORS = ".lora_a", ".lora_b"
"""Suffixes of an adapter's two matrices for a tensor, after the tensor's own name."""
STREAMED_AT_ONCE = 3
"""Streamed matrices in memory at a time: the one in use, the next, and the previous one."""


@dataclass(frozen=True)
class TensorSpec:
    """Tensor that an architecture expects.

    Attributes:
        shape: (n_rows, n_cols) of a matrix, (n,) of a vector; the reverse of GGUF's dimensions.
        required: Whether a file without it is refused.
        is_table: Whether a token looks up one of its rows.
        read_share: Share that a token reads: less than 1 if only some experts are used.
        replaces: Table that the model multiplies by if the file lacks this tensor.
        instead_of: Another tensor that a file may have instead; one of the two is required.
        is_vectors: Whether it is not a factor of a product, although a matrix: norms of heads.
        stays_in_file: Whether it stays out of memory, since a token reads very little of it.
        n_parts: Equal parts of a row that are read separately; each must be full blocks.
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
        """Whether it must be F32, with finite values."""
        return len(self.shape) == 1 or self.is_vectors

    def bytes_read(self, size_bytes: int) -> int:
        """Return the bytes that a decode step reads of a tensor of this size."""
        if self.is_table:
            return size_bytes // self.shape[0]
        return round(size_bytes * self.read_share)


@dataclass(frozen=True)
class Tensor:
    """Tensor inside the map.

    Attributes:
        name: GGUF name, suffix included: ``blk.0.attn_q.weight``.
        quant: Key of ``engine.quants.QUANTS``.
        n_rows: Number of rows; 1 for a vector.
        n_cols: Elements of a row, a multiple of the type's block.
        row_bytes: Bytes from one row to the next; rows follow each other without gaps.
        address: Address of row 0, valid as long as the ``Weights`` it came from. It is aligned as
            in the file (8 bytes or more), not to cache lines.
        first_row: Index of the first row in the full tensor, for a part.
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
        """Return some rows of a matrix, or elements of an F32 vector, in place."""
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
    """Product of two matrices that adapters add to a matrix: up @ down, for each expert.

    Attributes:
        rank: Columns of ``up``, and rows of ``down`` of one expert.
        down: (n_experts * rank, n_cols of the matrix).
        up: (n_rows of the matrix, rank), scale included.
        back: Transposed ``down``, (n_cols, rank), for a table whose rows are looked up.
        memory: Memory of the matrices, and perhaps of those of other matrices.
    """

    rank: int
    down: Tensor
    up: Tensor
    back: Tensor | None
    memory: Memory


class Weights:
    """Tensors of a model, by GGUF name. Holds the map, so all addresses stay valid while it lives.

    Attributes:
        tensors: name -> tensor, in the architecture's order.
        total_bytes: Bytes of all tensors.
        memory_bytes: Bytes of the tensors that are brought into memory.
        places: File, first byte and end of each part that is brought into memory, in full pages.
        exceeds_memory: Whether tensors are read from disk again and again, as they are needed.
        streamed: Names of the dense layers' matrices that every token reads from disk, so the
            others can stay in memory.
        low_ranks: Matrices that adapters add to a tensor, by its name.
    """

    exceeds_memory = False
    streamed: frozenset[str] = frozenset()

    def __init__(
        self, gguf: GGUFFile, tensors: Mapping[str, TensorInfo], staying: Collection[str] = ()
    ) -> None:
        """View tensors of a file; ``staying`` are the names of those that stay in the file."""
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
        cls,
        gguf: GGUFFile,
        config: ModelConfig,
        expected: Mapping[str, TensorSpec],
        ignored: Collection[str] = (),
    ) -> Weights:
        """Compare the file's tensors with those the architecture expects.

        Args:
            ignored: Names of other tensors that a file may have.

        Raises:
            GGUFError: a tensor is missing, unexpected, of the wrong shape, or a vector that is not
                F32.
            UnsupportedQuantError: a tensor's type is not in ``QUANTS``.
            BrokenModelError: a norm, bias or rope factor is NaN or infinite, or a rope factor is
                not above zero.
        """
        present = checked_tensors(gguf, config, expected, ignored)
        weights = cls(gguf, present, [name for name in present if expected[name].stays_in_file])
        weights._record_use(expected)
        plain = [name for name in weights.tensors if expected[name].is_plain]
        weights._check_vectors(
            gguf, plain, [name for rope in config.ropes for name in rope.factor_names]
        )
        return weights

    def _record_use(self, expected: Mapping[str, TensorSpec]) -> None:
        """Store which matrices every token reads in full, in order, and the bytes of the others."""
        in_layers = [(name, expected[name]) for name in self.tensors if name.startswith("blk.")]
        self._dense = [
            name for name, spec in in_layers if spec.read_share == 1 and not spec.is_plain
        ]
        partly = [name for name, spec in in_layers if 0 < spec.read_share < 1]
        self._expert_bytes = sum(self.tensors[name].size_bytes for name in partly)

    def _without(self, names: Collection[str]) -> tuple[list[Place], list[View]]:
        """Return the files without some tensors, in full pages.

        Returns:
            (file, first byte and end of each part; view of each part).
        """
        places = []
        views = []
        for file_index, (path, view) in enumerate(zip(self._paths, self._views, strict=True)):
            left_out = [self._infos[name] for name in names if self._infos[name].part == file_index]
            ranges = [(info.offset_bytes, info.offset_bytes + info.size_bytes) for info in left_out]
            for first, end in residency.pages_without(len(view), ranges):
                places.append((path, first, end))
                views.append(view[first:end])
        return places, views

    def fit_into(self, available_bytes: int | None, other_bytes: int = 0) -> None:
        """Choose the matrices to read from disk for every token if the weights exceed available
        memory.

        Args:
            available_bytes: Available memory; None if the weights fit.
            other_bytes: Memory that must also fit.

        Dense layers are read in order, so the system's cache of the pages used last would hold
        nothing of use. ``other_bytes`` decides how much is read, not whether: a cache that is not
        filled yet costs no memory.
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
        """Return names of dense matrices of at least that size, evenly spread.

        One is read while others are computed.
        """
        sizes = {name: self.tensors[name].size_bytes for name in reversed(self._dense)}
        needed_bytes = excess_bytes + STREAMED_AT_ONCE * max(sizes.values(), default=0)
        names = []
        streamed_bytes = 0
        passed_bytes = 0
        for name, n_bytes in sizes.items():
            passed_bytes += n_bytes
            if streamed_bytes * sum(sizes.values()) < passed_bytes * needed_bytes:
                names.append(name)
                streamed_bytes += n_bytes
        return frozenset(names)

    def places_to_read(self) -> list[Place]:
        """Return file, first byte and end of each part that is to stay in memory.

        The list is empty if nearly all of it is there.
        """
        if not self.exceeds_memory:
            return self.places
        if self.streamed:
            places, views = self._without(self._staying | self.streamed)
        else:
            places = []
            views = []
        if (_share_in_memory(views) or 0) >= residency.RESIDENT_ENOUGH:
            return []
        return places

    def with_copies(self, copies: Mapping[str, Memory]) -> Weights:
        """Return the same weights with the bytes of some tensors replaced, in their own type."""
        changed = object.__new__(Weights)
        changed.__dict__ |= self.__dict__ | {"_copies": copies}
        changed.tensors = self.tensors | {
            name: replace(self.tensors[name], address=memory.address)
            for name, memory in copies.items()
        }
        return changed

    def copied_to_huge_pages(self, progress: Callable[[int, int], None]) -> Weights:
        """Copy the tensors that are brought into memory, in file order, to huge pages.

        The memory is anonymous and advised for huge pages.

        Args:
            progress: called with (bytes done, bytes in all) after every few megabytes.

        Raises:
            MemoryPlanError: The system does not grant the memory.
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
            for offset in range(0, tensor.size_bytes, _COPY_STEP_BYTES):
                n = min(_COPY_STEP_BYTES, tensor.size_bytes - offset)
                target = starts[tensor.name] + offset
                copy._views[0][target : target + n] = view[start + offset : start + offset + n]
                done += n
                progress(done, self.memory_bytes)
        places = {name: copy._memory.address + start for name, start in starts.items()}
        copy.tensors = {
            name: replace(tensor, address=places.get(name, tensor.address))
            for name, tensor in self.tensors.items()
        }
        return copy

    def map_ahead(self) -> residency.MappingAhead:
        """Start to prepare the file's map for the first run; stop it before the file is closed."""
        return residency.MappingAhead(self._brought_in)

    @property
    def huge_bytes(self) -> int:
        """Bytes in huge pages: 0 for weights in the file's map."""
        if self._memory:
            return self._memory.huge_backed_bytes()
        return 0

    def resident_share(self) -> float:
        """Return the share of the weights for memory that is there now.

        It is 1 for copied weights, and if the system does not report it.
        """
        if self._memory:
            share = None
        else:
            share = _share_in_memory(self._brought_in)
        if share is None:
            return 1.0
        return share

    def resident_bytes(self) -> int | None:
        """Estimate the bytes of the weights, in the map or copied, that are in memory now.

        Only some of the pages are examined. None if the system does not report them.
        """
        share = _share_in_memory(self._brought_in, _GLANCE_PAGES)
        if share is None:
            return None
        return round(self.memory_bytes * share)

    def get(self, name: str) -> Tensor | None:
        """Return a tensor by its GGUF name, or None if the file lacks it."""
        return self.tensors.get(name)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def rows(self, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return a tensor's bytes: (n_rows, row_bytes) uint8, C-contiguous, read-only, inside the
        map."""
        tensor = self.tensors[name]
        view, start = self._place(tensor)
        return view[start : start + tensor.size_bytes].reshape(tensor.n_rows, tensor.row_bytes)

    def _place(self, tensor: Tensor) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], int]:
        """Return the view that a tensor is in, and its offset there."""
        for view in self._views:
            start = tensor.address - view.ctypes.data
            if 0 <= start < len(view):
                return view, start
        raise AssertionError(f"{tensor.name} is in no view")

    def quantization_label(self) -> str:
        """Return the name of the mix: the file's (``Q4_K_M``) if its tensors agree, else the
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
            quant = ""
            claimed = ""
        if quant in counts:
            return claimed
        return counts.most_common(1)[0][0]

    def _check_vectors(self, gguf: GGUFFile, names: Iterable[str], factors: Iterable[str]) -> None:
        """Refuse damaged vectors at once; damaged matrices show in the first logits.

        Args:
            factors: Names of tensors that frequencies are divided by.
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
        """Return a tensor of type F32: (n_rows, n_cols)."""
        return self.rows(name).view(np.float32)


def checked_tensors(
    gguf: GGUFFile,
    config: ModelConfig,
    expected: Mapping[str, TensorSpec],
    ignored: Collection[str] = (),
) -> dict[str, TensorInfo]:
    """Compare the tensors of a file's header with those the architecture expects, and return them.

    Raises:
        GGUFError, UnsupportedQuantError: as ``Weights.check`` says.
    """
    _present(gguf, expected)
    _refuse_unexpected(gguf, {*expected, *ignored}, config)
    return present_tensors(gguf, expected)


def present_tensors(gguf: GGUFFile, expected: Mapping[str, TensorSpec]) -> dict[str, TensorInfo]:
    """Return those of the expected tensors that a file has.

    Raises:
        GGUFError, UnsupportedQuantError: a required tensor is missing, or one has a wrong shape or
            type.
    """
    present = _present(gguf, expected)
    for name, info in present.items():
        _check_tensor(gguf, info, expected[name])
    return present


def multiplied(
    present: Collection[str], expected: Mapping[str, TensorSpec]
) -> dict[str, TensorSpec]:
    """Return the specifications of a file's tensors; a table that is multiplied by counts as a
    matrix."""
    specs = {name: expected[name] for name in present}
    for name, spec in expected.items():
        if spec.replaces in specs and name not in specs:
            specs[spec.replaces] = replace(specs[spec.replaces], is_table=False)
    return specs


def _share_in_memory(views: Sequence[View], most_pages: int = 0) -> float | None:
    total_bytes = sum(map(len, views))
    total_resident = 0
    for view in views:
        resident_bytes = residency.resident_bytes(
            view, most_pages and max(1, most_pages * len(view) // total_bytes)
        )
        if resident_bytes is None:
            return None
        total_resident += resident_bytes
    if total_bytes:
        return total_resident / total_bytes
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
    """Return the expected tensors of a file; refuse a file that lacks a required one."""
    present = {}
    for name, spec in expected.items():
        info = gguf.tensors.get(name)
        has_alternative = spec.instead_of in gguf.tensors
        if info is not None:
            if has_alternative:
                raise _fail(
                    gguf, f"tensor {name} is there twice: {spec.instead_of} names the same weights"
                )
            present[name] = info
        elif spec.required and not has_alternative:
            raise _fail(gguf, f"tensor {name} is missing (truncated, or not converted completely)")
    return present


def _refuse_unexpected(gguf: GGUFFile, expected: Collection[str], config: ModelConfig) -> None:
    """Refuse tensors that nothing would read.

    Half a model would run as silently wrong as one without its biases.
    """
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
        if name == ROWS_OF_HEAD and config.ignored_blocks:
            continue
        raise _fail(gguf, f"tensor {name} is unknown to the architecture {config.architecture}")


def _check_tensor(gguf: GGUFFile, info: TensorInfo, expected: TensorSpec) -> None:
    if _without_leading_ones(info.shape) != _without_leading_ones(expected.shape):
        shape_text = _shape(info.shape)
        expected_text = _shape(expected.shape)
        raise _fail(
            gguf,
            f"tensor {info.name} has shape {shape_text}, the hyperparameters say {expected_text}",
        )
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
    part_size = info.shape[-1] // expected.n_parts
    if part_size % block:
        raise _fail(
            gguf,
            f"tensor {info.name} is {info.type_name}: {part_size} weights of a layer "
            f"are no blocks of {block}",
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
    """Drop the padding that GGUF writers add to shapes: (1, 64) and (64,) are the same vector."""
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
