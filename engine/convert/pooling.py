"""Pooling settings of a sentence-transformers directory.

Source: https://sbert.net/docs/package_reference/sentence_transformer/models.html
"""

from __future__ import annotations

import re
from pathlib import Path

from engine.convert.bounded import (
    MAX_SETTINGS_BYTES,
    JsonObject,
    parse_json,
    read_bytes,
    read_object,
)
from engine.errors import ConversionError
from engine.models.reading import POOLINGS

_MODES = {
    "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}  # fmt: skip


def pooling_keys(directory: Path) -> dict[str, int]:
    """Return the key of the pooling type; empty if the directory has none.

    Raises:
        ConversionError: GGUF cannot express the pooling.
    """
    content = read_bytes(directory / "modules.json", MAX_SETTINGS_BYTES)
    if content is None:
        modules = []
    else:
        modules = parse_json(content, "modules.json")
    if not isinstance(modules, list):
        raise ConversionError("modules.json: is not a list in JSON (get the file again)")
    for module in modules:
        if not isinstance(module, dict):
            continue
        module_type = module.get("type")
        folder = module.get("path")
        if not (
            isinstance(module_type, str)
            and module_type.endswith(".Pooling")
            and re.fullmatch(r"[\w-]{1,100}", str(folder))
        ):
            continue
        read = JsonObject(
            read_object(directory / str(folder) / "config.json") or {}, f"{folder}/config.json"
        )
        mode = next((mode for setting, mode in _MODES.items() if read.flag(setting, False)), "")
        if not mode:
            raise read.fail(
                "pools in a way that a GGUF file cannot say (mean, cls or the last token)"
            )
        return {"pooling_type": POOLINGS.index(mode)}
    return {}
