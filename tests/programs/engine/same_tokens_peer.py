"""llama.cpp's ids of texts, run as a file by whatever Python has llama-cpp-python. Imports nothing
of ours.

Arguments: the model, a file with a JSON list of texts, and where the lists of ids go: of each text
as a user's (control tokens stay text), and as trusted text. Without begin-of-text; the tensors are
not read.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import llama_cpp


def ids_of(vocabulary: Any, text: str, parses_special: bool) -> list[int]:
    """Ids of one text."""
    raw = text.encode()
    room = (llama_cpp.llama_token * (len(raw) + 8))()
    n = llama_cpp.llama_tokenize(vocabulary, raw, len(raw), room, len(room), False, parses_special)
    return list(room[:n])


def main(model_path: str, texts_file: str, ids_file: str) -> None:
    """Tokenize all texts."""
    quiet = llama_cpp.llama_log_callback(lambda level, text, user: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    parameters = llama_cpp.llama_model_default_params()
    parameters.n_gpu_layers = 0
    parameters.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(model_path.encode(), parameters)
    if not model:
        raise SystemExit(f"llama.cpp refuses {model_path}")
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    texts = json.loads(Path(texts_file).read_text())
    ids = [[ids_of(vocabulary, text, special) for special in (False, True)] for text in texts]
    Path(ids_file).write_text(json.dumps(ids))


if __name__ == "__main__":
    main(*sys.argv[1:])
