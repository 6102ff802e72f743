"""Files of encoders: the second GGUF file of a model that sees, checked before it is trusted."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import GGUFError, UnsupportedArchitectureError, printable
from engine.gguf.contents import GGUFFile
from engine.gguf.hyperparameters import Hyperparameters
from engine.gguf.read import read_gguf
from engine.vision.config import EncoderConfig, read_config
from engine.vision.families import FAMILIES, NOT_YET, load_family
from engine.vision.family import EncoderFamily
from engine.weights.weights import TensorSpec

ARCHITECTURE = "clip"
OTHER_SENSES = "a.", "mm.a."
"""Beginnings of the names of tensors for sounds, which are not read."""


@dataclass(frozen=True, eq=False)
class MmprojFile:
    """A checked file, still open.

    Attributes:
        expected: Specification of each tensor that is read.
    """

    gguf: GGUFFile
    config: EncoderConfig
    family: EncoderFamily
    expected: Mapping[str, TensorSpec]

    def close(self) -> None:
        """Close the file and its map."""
        self.gguf.close()


def read_mmproj(path: str | os.PathLike[str]) -> MmprojFile:
    """Open an mmproj file and check its structure, its keys, and the names of its tensors.

    Raises:
        EngineError: The file is no such file, damaged, or of a family that is not supported.
    """
    gguf = read_gguf(path, keeps_strings=False)
    try:
        return _checked(gguf)
    except BaseException:
        gguf.close()
        raise


def _checked(gguf: GGUFFile) -> MmprojFile:
    keys = Hyperparameters(gguf.metadata, ARCHITECTURE, gguf.shown_name, gguf.tensors)
    architecture = gguf.metadata.get("general.architecture")
    if architecture != ARCHITECTURE:
        raise UnsupportedArchitectureError(
            f"{gguf.shown_name}: is a model and no encoder of pictures: its architecture is "
            f"{printable(str(architecture))}, not {ARCHITECTURE} (name its mmproj file)"
        )
    projector = _projector(keys)
    family = load_family(projector)
    config = read_config(projector, family.merge, keys)
    try:
        expected = family.tensors(config, gguf.tensors)
    except ValueError as error:
        raise keys.fail(str(error)) from None
    _refuse_unexpected(gguf, expected)
    return MmprojFile(gguf, config, family, expected)


def _projector(keys: Hyperparameters) -> str:
    """Return the name of the projector of pictures, a key of ``FAMILIES``."""
    if not keys.flag("has_vision_encoder", default=True):
        raise keys.fail("has no encoder of pictures")
    name = keys.word("projector_type", "") or keys.under("clip.vision").word("projector_type", "")
    if name in FAMILIES:
        return name
    supported = ", ".join(f"{known} ({title})" for known, title in FAMILIES.items())
    if not name:
        raise keys.fail(f"clip.projector_type is missing; supported: {supported}")
    problem = "is not supported yet" if name in NOT_YET else "is unknown"
    raise UnsupportedArchitectureError(
        str(keys.fail(f"projector {printable(name)} {problem}; supported: {supported}"))
    )


def _refuse_unexpected(gguf: GGUFFile, expected: Mapping[str, TensorSpec]) -> None:
    """Refuse tensors that nothing would read: half an encoder would be wrong without a word."""
    for name in gguf.tensors:
        if name not in expected and not name.startswith(OTHER_SENSES):
            layer = re.match(r"v\.blk\.(\d{1,9})\.", name)
            reason = "is unknown to its projector"
            if layer and f"v.blk.{layer[1]}.ln1.weight" not in expected:
                reason = "is beyond clip.vision.block_count"
            raise GGUFError(f"{gguf.shown_name}: tensor {name} {reason}")
