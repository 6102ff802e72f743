"""Encoders for pictures (mmproj files): which file in a model's folder lets it see."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from app.models.library.header import HeaderCache, ModelHeader
from app.models.library.model_files import StoredModel, file_at


class EncoderFinder:
    """Search for the encoders of models. The names in each folder are read once."""

    def __init__(self, headers: HeaderCache) -> None:
        self._headers = headers
        self._names: dict[Path, list[str]] = {}

    def find(self, file: StoredModel, header: ModelHeader) -> StoredModel | None:
        """Return the encoder that the engine uses with a model; None if it does not see."""
        from engine.vision.finding import candidates

        folder = file.path.parent
        for name in candidates(file.path.name, self._names_in(folder)):
            encoder = file_at(folder / name, file.place)
            if encoder is not None and fits(header, self._headers.header(encoder)):
                return encoder
        return None

    def counted(self, header: ModelHeader, encoder: StoredModel | None) -> ModelHeader:
        """Return a model's header whose needs count the memory of its encoder."""
        if header.needs is None or encoder is None:
            return header
        encoder_bytes = self._headers.header(encoder).encoder_bytes
        return replace(header, needs=replace(header.needs, encoder_bytes=encoder_bytes))

    def _names_in(self, folder: Path) -> list[str]:
        names = self._names.get(folder)
        if names is None:
            names = []
            with suppress(OSError):
                names = os.listdir(folder)
            self._names[folder] = names
        return names


def sees_pictures(file: StoredModel, header: ModelHeader, mmproj: str) -> bool:
    """Whether a model reads pictures.

    Args:
        mmproj: Setting ``pictures.mmproj``.
    """
    if mmproj:
        return mmproj != "off"
    return EncoderFinder(HeaderCache()).find(file, header) is not None


def encoder_bytes_of(path: Path, mmproj: str) -> int:
    """Return the memory that a model's encoder takes; 0 if it has none that can be used.

    Args:
        path: Path of the model.
        mmproj: Setting ``pictures.mmproj``.
    """
    model = file_at(path, "")
    if model is None or mmproj == "off":
        return 0
    headers = HeaderCache()
    if mmproj:
        encoder = file_at(Path(mmproj), "")
    else:
        encoder = EncoderFinder(headers).find(model, headers.header(model))
    if encoder is None:
        return 0
    return headers.header(encoder).encoder_bytes


def fits(model: ModelHeader, encoder: ModelHeader) -> bool:
    """Whether a model can use an encoder."""
    from engine.vision.families import load_family

    if not encoder.projector or encoder.text_width != model.dim:
        return False
    return model.architecture in load_family(encoder.projector).architectures
