"""llama-server's dialect about tokens: ``/tokenize`` and ``/detokenize``.

Each function reads a request before its model is open. They raise ApiError for a wrong field.
"""

from __future__ import annotations

from typing import Any

from app.server.api_error import ApiError, invalid
from app.server.dialects.computation import Computation
from app.server.fields import Fields

MAX_TOKENIZED_CHARS = 1 << 18
_MAX_IDS = 1 << 18


def read_tokenize_request(fields: Fields) -> Computation:
    """Read a request for ``/tokenize``."""
    text = fields.required(fields.text("content"), "content", "a string")
    if len(text) > MAX_TOKENIZED_CHARS:
        raise ApiError(
            f"content is longer than {MAX_TOKENIZED_CHARS} characters", 413, "content", "too_long"
        )
    adds_special = fields.flag("add_special")
    parses_special = fields.flag("parse_special", True)
    with_pieces = fields.flag("with_pieces")

    def compute(model_name: str, model: Any) -> dict[str, Any]:
        bos = None if adds_special else False
        ids = model.tokenizer.encode(text, bos=bos, special=parses_special)
        if not with_pieces:
            return {"tokens": list(ids)}
        return {"tokens": [_with_piece(model.tokenizer, token_id) for token_id in ids]}

    return Computation(compute)


def _with_piece(tokenizer: Any, token_id: int) -> dict[str, Any]:
    """Return a token with its text, or with its bytes if they are not a text."""
    token_bytes = tokenizer.token_bytes(token_id) or tokenizer.token_text(token_id).encode()
    try:
        return {"id": token_id, "piece": token_bytes.decode()}
    except UnicodeDecodeError:
        return {"id": token_id, "piece": list(token_bytes)}


def read_detokenize_request(fields: Fields) -> Computation:
    """Read a request for ``/detokenize``."""
    ids = fields.required(fields.array("tokens", _MAX_IDS), "tokens", "a list of token ids")

    def compute(model_name: str, model: Any) -> dict[str, Any]:
        n_vocab = model.tokenizer.vocab_size
        if not all(type(token_id) is int and 0 <= token_id < n_vocab for token_id in ids):
            raise invalid("tokens", f"must be token ids from 0 to {n_vocab - 1}")
        return {"content": model.tokenizer.decode(ids)}

    return Computation(compute)
