"""An opened encoder: pictures are prepared, then encoded to rows of embeddings."""

from __future__ import annotations

import gc
import hashlib
import mmap
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import BrokenModelError, EngineError, ModelChangedError, printable
from engine.machine import level, processor
from engine.vision import layers, pixels
from engine.vision.cost import CostModel
from engine.vision.family import Frame
from engine.vision.finding import mmproj_problem
from engine.vision.idle import IdleWatch
from engine.vision.mmproj import MmprojFile, read_mmproj
from engine.vision.needs import needed_bytes
from engine.vision.rows import (
    DETAILS,
    LOW,
    USUAL,
    PicturePart,
    PictureRows,
    Pixels,
    PreparedPicture,
    Rows,
)
from engine.vision.stage import EncoderStage, Progress, Scratch, capacity_for, tap_name
from engine.vision.tensors import Q8_0_BLOCK, EncoderWeights

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.plan.crew import Crew

DIGEST_VERSION = 2
"""Incremented whenever the same picture gets other rows."""


class PictureEncoder:
    """Encoder of pictures, with its weights and plans. One thread at a time may use it.

    Weights and plans are made when the first picture comes, and released when none came for some
    minutes or memory is short (``IdleWatch``).

    Args:
        file: Checked file, which the encoder closes.
        crew: Threads that run the plans.
        n_threads: Number of them.
        is_exact: Whether matrices are read in the type of the file, else they become Q8_0, which
            is several times as fast and as exact as files of Q8_0.

    Attributes:
        config: Shape of the encoder.
        family: Functions of its family.
        path: Path of the file.
        taps: Numbers of the layers whose results become further embeddings.
        costs: Costs of pictures by their sizes.
    """

    def __init__(
        self, file: MmprojFile, crew: Crew, n_threads: int, is_exact: bool = False
    ) -> None:
        self.config = file.config
        self.family = file.family
        self.path = file.gguf.path
        self._file = file
        self._is_exact = is_exact
        self._has_bf16 = not is_exact and level.HAS_AMX and "amx-bf16" in processor.FEATURES
        self._crew = crew
        self._n_threads = n_threads
        self._shown_name = file.gguf.shown_name
        self.taps = self.family.taps(self.config, file.gguf.tensors)
        self.costs = CostModel(self.config, self.family, len(self.taps))
        self._fingerprint = _fingerprint(file, is_exact)
        self._weights: EncoderWeights | None = None
        self._stages: tuple[EncoderStage, EncoderStage] | None = None
        self._scratch: Scratch | None = None
        self._products_per_second = 0.0
        self._in_use = threading.Lock()
        self._idle_watch = IdleWatch(self.release)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], crew: Crew, n_threads: int, is_exact: bool = False
    ) -> PictureEncoder:
        """Open an mmproj file.

        Raises:
            EngineError: The file cannot be used; the message is one line.
        """
        file = read_mmproj(path)
        try:
            return cls(file, crew, n_threads, is_exact)
        except BaseException:
            file.close()
            raise

    @property
    def row_width(self) -> int:
        """Numbers in a row: the embedding and those of deepstack."""
        return self.config.text_width * (1 + len(self.taps))

    @property
    def visibility(self) -> str:
        """How the rows of its pictures see each other, as in ``PreparedPicture``."""
        return self.family.visibility(self.config)

    @property
    def matrix_type(self) -> str:
        """Type of most of the file's matrices; a projection may have another one."""
        infos = self._file.gguf.tensors
        names = Counter(
            info.type_name
            for name, info in infos.items()
            if name in self._file.expected and layers.is_product(self._file.expected[name])
        )
        return names.most_common(1)[0][0]

    def check_fits(self, model: ModelConfig, model_name: str) -> None:
        """Refuse a text model of another family or width.

        Raises:
            EngineError: The encoder belongs to another model.
        """
        if problem := mmproj_problem(self._file, model_name, model):
            raise EngineError(problem)

    @property
    def needed_bytes(self) -> int:
        """Memory that it takes to read a picture of the usual detail."""
        return needed_bytes(self._file)

    @property
    def used_bytes(self) -> int:
        """Memory of weights and plans now; 0 if they are released. Any thread may ask."""
        weights = self._weights
        n_bytes = 0
        if weights is not None:
            n_bytes += weights.copied_bytes + weights.file_bytes
        for stage in self._stages or ():
            n_bytes += stage.n_bytes
        return n_bytes

    def close(self) -> None:
        """Release weights and plans and close the file. Closing twice is harmless."""
        self._idle_watch.close()
        self.release()
        self._file.close()

    def release(self) -> None:
        """Release weights and plans; the next picture reads them again. Any thread may call it."""
        with self._in_use:
            self._stages = None
            self._weights = None
            self._scratch = None
            gc.collect()  # a plan and the writers of its rows refer to each other
            file_map = self._file.gguf.map
            if hasattr(mmap, "MADV_DONTNEED") and not file_map.closed:
                file_map.madvise(mmap.MADV_DONTNEED)

    # ---- preparing

    def prepare_file(self, path: str | os.PathLike[str], detail: str = USUAL) -> PreparedPicture:
        """Read a picture's file and prepare it.

        Raises:
            PictureError: It cannot be read.
        """
        return self.prepare_bytes(pixels.read_bytes(path), detail, Path(path).name)

    def prepare_bytes(
        self, data: bytes, detail: str = USUAL, name: str = "picture"
    ) -> PreparedPicture:
        """Decode a picture and prepare it; the name is for messages."""
        return self.prepare(pixels.decode(data, name), detail)

    def prepare(self, picture: Pixels, detail: str = USUAL) -> PreparedPicture:
        """Resize a picture of (height, width, 3) uint8 and cut it into parts."""
        if detail not in DETAILS:
            raise EngineError(
                f"picture detail {printable(detail)} is unknown; supported: {', '.join(DETAILS)}"
            )
        height, width, _ = picture.shape
        frames, text_after = self.family.frames(self.config, (width, height), detail)
        parts = tuple(self._parts(picture, frames))
        return PreparedPicture(
            width,
            height,
            parts,
            text_after,
            self._digest(parts, text_after),
            self.visibility,
            self.family.has_grid_positions,
        )

    def _parts(self, picture: Pixels, frames: list[Frame]) -> list[PicturePart]:
        parts = []
        canvases: dict[Frame, Pixels] = {}
        for frame in frames:
            key = replace(frame, text_before="", box=None)
            if key not in canvases:
                canvases[key] = self._canvas(picture, frame)
            canvas = canvases[key]
            if frame.box is not None:
                left, top, right, bottom = frame.box
                canvas = canvas[top:bottom, left:right]
            parts.append(PicturePart(frame.text_before, canvas, frame.grid))
        return parts

    def _canvas(self, picture: Pixels, frame: Frame) -> Pixels:
        resample = self.family.resample
        for size in frame.before:
            picture = pixels.stretch(picture, size, resample)
        if frame.is_stretched:
            return pixels.stretch(picture, frame.canvas, resample)
        return pixels.fit(picture, frame.canvas, resample)

    def _digest(self, parts: tuple[PicturePart, ...], text_after: str) -> str:
        digest = hashlib.sha256(self._fingerprint)
        for part in parts:
            digest.update(f"{part.text_before}\0{part.pixels.shape}\0".encode())
            digest.update(np.ascontiguousarray(part.pixels).data)
        digest.update(text_after.encode())
        return digest.hexdigest()

    # ---- time

    def products(self, picture: PreparedPicture) -> int:
        """Return the approximate number of multiplications that a picture takes."""
        return sum(self.costs.products(part.grid.n) for part in picture.parts)

    @property
    def products_per_second(self) -> float:
        """Multiplications per second of the last picture; 0 before the first."""
        return self._products_per_second

    def expected_seconds(self, picture: PreparedPicture) -> float:
        """Return about how long ``encode`` will take, from a small picture that is encoded now, or
        from the last picture."""
        if not self._products_per_second:
            side = 8 * self.config.cell
            grey = self.prepare(np.full((side, side, 3), 128, np.uint8), LOW)
            self.encode(grey)  # reads the weights and links the kernels
            self.encode(grey)
        return self.products(picture) / self._products_per_second

    # ---- encoding

    def encode(
        self, picture: PreparedPicture, progress: Callable[[float], None] | None = None
    ) -> PictureRows:
        """Compute the rows of a prepared picture.

        Args:
            progress: Called with the share that is done, 0 to 1: at once, after every tensor that
                is opened, and after every layer. It may raise ``Cancelled``.

        Raises:
            Cancelled: The crew was told to stop.
            BrokenModelError: The encoder computed NaN or infinity.
            ModelChangedError: The file was changed on disk.
        """
        with self._in_use:
            rows = self._encode(picture, progress)
        self._idle_watch.report_use()
        return rows

    def _encode(
        self, picture: PreparedPicture, progress: Callable[[float], None] | None
    ) -> PictureRows:
        if self._file.gguf.changed():
            raise ModelChangedError(f"{self._shown_name}: was changed on disk (open it again)")
        on_tensor: Callable[[], object] = bool
        if progress is not None:
            on_tensor = partial(progress, 0.0)
        on_tensor()
        self._opened_weights(on_tensor)
        began = time.perf_counter()
        n_parts = len(picture.parts)
        rows = []
        for index, part in enumerate(picture.parts):

            def report(done: int, total: int, index: int = index) -> None:
                if progress is not None:
                    progress((index + done / total) / n_parts)

            with np.errstate(all="ignore"):  # of damaged weights; rows that result are refused
                rows.append(self._encode_part(part, report))
        self._products_per_second = self.products(picture) / (time.perf_counter() - began)
        return PictureRows(picture, tuple(rows), len(self.taps))

    def _encode_part(self, part: PicturePart, progress: Progress) -> Rows:
        weights = self._opened_weights()
        config = self.config
        inputs = self.family.inputs(config, weights, part.pixels)
        n = len(inputs.patches)
        height, part_width, _ = part.pixels.shape
        n_cells = (height // config.cell) * (part_width // config.cell)
        blocks, head = self._stages_for(n, n_cells)
        _fill(blocks, "patches", inputs.patches)
        _fill(blocks, "x", inputs.start)
        if inputs.angles is not None:
            _fill(blocks, "angles", inputs.angles)
        blocks.run(n, progress)
        width = self.family.cell_width(config)
        sources = {
            "cells": "encoded",
            **{tap_name(number): tap_name(number) for number in self.taps},
        }
        for name, source in sources.items():
            x = blocks.array(source, config.dim)[:n]
            cells = self.family.merge_cells(config, weights, x)
            assert cells.shape == (n_cells, width), (cells.shape, n_cells, width)
            _fill(head, name, cells)
        head.run(n_cells)
        rows: Rows = head.array("rows", self.row_width)[:n_cells].copy()
        rows = self.family.finish(config, weights, rows, part.pixels)
        assert len(rows) == part.grid.n, (rows.shape, part.grid)
        self._refuse_damage(rows)
        return rows

    def _refuse_damage(self, rows: Rows) -> None:
        if not np.isfinite(rows).all():
            raise BrokenModelError(
                f"{self._shown_name}: the encoder computed NaN or infinity: its weights are "
                f"damaged (download it again)"
            )

    def _opened_weights(self, on_tensor: Callable[[], object] = bool) -> EncoderWeights:
        if self._weights is None:
            with np.errstate(all="ignore"):
                self._weights = self._open_weights(on_tensor)
        return self._weights

    def _open_weights(self, on_tensor: Callable[[], object]) -> EncoderWeights:
        file = self._file
        config = self.config
        weights = EncoderWeights(file.gguf, file.expected)
        if layers.are_exchanged(config, file.gguf.tensors):
            layers.exchange(config, weights)
        self.family.prepare(config, weights)
        if not self._is_exact:
            if config.hidden_dim % Q8_0_BLOCK:
                layers.fill_hidden(
                    config, weights, -(-config.hidden_dim // Q8_0_BLOCK) * Q8_0_BLOCK
                )
            for name, tensor in list(weights.tensors.items()):
                if tensor.n_rows > 1 and layers.is_product(file.expected[name]):
                    weights.quantise(name)
                    on_tensor()
        layers.split_fused(config, weights)
        return weights

    def _stages_for(self, n_patches: int, n_cells: int) -> tuple[EncoderStage, EncoderStage]:
        """Return the plans for so many patches and cells; those of the last size stay."""
        sizes = capacity_for(n_patches), capacity_for(n_cells)
        if self._stages is not None and sizes == tuple(stage.capacity for stage in self._stages):
            return self._stages
        self._stages = None
        if self._scratch is None:
            self._scratch = Scratch(self.config, self._n_threads)
        weights = self._opened_weights()
        blocks, head = (
            EncoderStage(
                compose,
                self.config,
                weights,
                self.taps,
                size,
                self._crew,
                self._scratch,
                self._has_bf16,
            )
            for compose, size in zip(
                (self.family.compose, self.family.compose_head), sizes, strict=True
            )
        )
        self._stages = blocks, head
        return self._stages


def _fill(stage: EncoderStage, name: str, values: Rows) -> None:
    stage.array(name, values.shape[1])[: len(values)] = values


def _fingerprint(file: MmprojFile, is_exact: bool) -> bytes:
    """Return a hash of the encoder and its arithmetic, on which rows depend like on the pixels."""
    gguf = file.gguf
    digest = hashlib.sha256(f"{DIGEST_VERSION} {is_exact} {gguf.file_bytes} {file.config}".encode())
    data = memoryview(gguf.map)
    digest.update(data[: min(len(data), gguf.data_start)])
    for info in gguf.tensors.values():
        digest.update(data[info.offset_bytes : info.offset_bytes + min(64, info.size_bytes)])
    data.release()
    return digest.digest()
