"""Model stores of Ollama and Hugging Face programs, written into a directory of a test."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tests.engine import tiny_gguf


def ollama_model(
    store: Path, name: str, tag: str, content: bytes, host: str = "registry.ollama.ai/library"
) -> Path:
    """Add a model to an Ollama store and return the path of its blob."""
    digest = hashlib.sha256(content).hexdigest()
    blob = store / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    manifest = store / "manifests" / host / name / tag
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {
            "mediaType": "application/vnd.ollama.image.template",
            "digest": "sha256:" + "0" * 64,
            "size": 1,
        },
        {
            "mediaType": "application/vnd.ollama.image.model",
            "digest": f"sha256:{digest}",
            "size": len(content),
        },
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return blob


def hugging_face_model(cache: Path, repository: str, file_name: str, revisions: int = 1) -> Path:
    """Add a model to a Hugging Face cache and return the blob that its snapshots link to."""
    content = tiny_gguf.build()
    directory = cache / f"models--{repository.replace('/', '--')}"
    blob = directory / "blobs" / hashlib.sha256(content).hexdigest()
    blob.parent.mkdir(parents=True)
    blob.write_bytes(content)
    for n in range(revisions):
        snapshot = directory / "snapshots" / f"{n:040x}"
        snapshot.mkdir(parents=True)
        (snapshot / file_name).symlink_to(blob)
    return blob
