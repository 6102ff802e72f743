"""An opened assistant: a file with a small model that guesses the next tokens of another model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import EngineError, ModelChangedError, UnsupportedArchitectureError, printable
from engine.gguf.hyperparameters import Hyperparameters
from engine.gguf.read import read_gguf
from engine.machine import residency
from engine.models import gemma4_assistant, read_config
from engine.weights.weights import Weights

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.gguf.contents import GGUFFile
    from engine.weights.weights import Tensor


MAX_FILES = 500
"""Limit on the files of a folder that are looked at."""
START_BYTES = 4096
"""Bytes of a file that name its architecture."""


@dataclass(frozen=True)
class Assistant:
    """Small model that guesses the next tokens of a model; it reads that model's keys and values.

    Attributes:
        gguf: its open file, which owns the map of the weights.
        config: its shape; ``Attention.kv_of`` is the number of a layer of the model.
    """

    gguf: GGUFFile
    config: ModelConfig
    weights: Weights

    @classmethod
    def open(cls, path: str | os.PathLike[str], model: ModelConfig) -> Assistant:
        """Open and check the file of an assistant.

        Raises:
            EngineError: the file has a fault, or is no assistant of the model; the message is one
                line.
        """
        gguf = read_gguf(path)
        try:
            architecture = gguf.metadata.get("general.architecture")
            if architecture != gemma4_assistant.NAME:
                raise UnsupportedArchitectureError(
                    f"{gguf.shown_name}: general.architecture '{printable(str(architecture))}' "
                    f"does not guess ahead for other models (known: {gemma4_assistant.NAME})"
                )
            keys = Hyperparameters(
                gguf.metadata, gemma4_assistant.NAME, gguf.shown_name, gguf.tensors
            )
            config = gemma4_assistant.config_of(keys, model)
            expected = gemma4_assistant.tensors(config, model.dim)
            weights = Weights.check(gguf, config, expected, gemma4_assistant.IGNORED)
        except BaseException:
            gguf.close()
            raise
        return cls(gguf, config, weights)

    @property
    def head(self) -> Tensor:
        """Matrix of its logits."""
        return self.weights[gemma4_assistant.EMBEDDING]

    def bring_weights_in(self) -> None:
        """Load the weights into memory, if they are not there yet."""
        if self.weights.resident_share() < residency.RESIDENT_ENOUGH:
            residency.read_in_order(self.weights.places, lambda done, total: None)

    def refuse_changed_file(self) -> None:
        """Raise ModelChangedError if the file was changed since it was opened."""
        if self.gguf.changed():
            raise ModelChangedError(
                f"{self.gguf.shown_name}: the file was changed since it was opened (open the model "
                f"again)"
            )


class OpenedAssistant(NamedTuple):
    """Result of opening the file of an assistant.

    Attributes:
        assistant: None if there is none, or if it cannot be used.
        problem: reason why it is not used, one line; empty if there is none.
    """

    assistant: Assistant | None = None
    problem: str = ""

    def close(self) -> None:
        """Unmap the file."""
        if self.assistant is not None:
            self.assistant.gguf.close()


def open_assistant(path: str | os.PathLike[str] | None, model: ModelConfig) -> OpenedAssistant:
    """Open the file of an assistant of a model, if there is one."""
    if path is None:
        return OpenedAssistant()
    try:
        return OpenedAssistant(Assistant.open(path, model))
    except EngineError as error:
        return OpenedAssistant(problem=f"{error}: it is not used")


def assistant_next_to(model_path: str | os.PathLike[str]) -> Path | None:
    """Return the first file in a model's folder that is an assistant of it; None if there is none.

    Only the beginnings of the other files are read.
    """
    model = Path(model_path)
    try:
        entries = sorted(islice(model.parent.glob("*.gguf"), MAX_FILES))
    except OSError:
        return None
    candidates = [entry for entry in entries if entry.name != model.name and _may_assist(entry)]
    if not candidates:
        return None
    try:
        gguf = read_gguf(model, keeps_strings=False)
    except EngineError:
        return None
    try:
        config = read_config(gguf)
        return next((entry for entry in candidates if _assists(entry, config)), None)
    except EngineError:
        return None
    finally:
        gguf.close()


def _may_assist(path: Path) -> bool:
    """Whether a file begins like that of an assistant."""
    try:
        with path.open("rb") as file:
            return gemma4_assistant.NAME.encode() in file.read(START_BYTES)
    except OSError:
        return False


def _assists(path: Path, model: ModelConfig) -> bool:
    opened = open_assistant(path, model)
    opened.close()
    return opened.assistant is not None
