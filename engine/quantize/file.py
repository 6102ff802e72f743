"""A model file rewritten with smaller types: a slice of a tensor at a time, by all threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.errors import BrokenModelError, UnsupportedQuantError
from engine.gguf.contents import GGUFFile
from engine.gguf.read import typed_metadata
from engine.gguf.write import TensorToWrite, TensorWriter, writing
from engine.plan.dequantise import dequantised
from engine.quantize.mixtures import MIXTURES, Described, mixture
from engine.quantize.rows import WRITABLE, Bytes, Floats, quantise_rows
from engine.quants import QUANTS
from engine.quants.base import QUANT_TYPES
from engine.weights.weights import Tensor, Weights

_SLICE = 1 << 20
"""Elements that a thread works on at a time: 4 MB as float32."""
QUANTIZATION_VERSION = 2
"""``general.quantization_version`` of the layouts that all tools of today write. Source: GGML_QNT_VERSION, ggml.h."""


@dataclass(frozen=True)
class Report:
    """What was written.

    Attributes:
        source_bytes, written_bytes: of all tensors.
        rmse: root of the mean square error of all values that got another type.
        n_changed: tensors that did.
        types: number of tensors by type.
    """

    source_bytes: int
    written_bytes: int
    rmse: float
    n_changed: int
    types: Mapping[str, int]
