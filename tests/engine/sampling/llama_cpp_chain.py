"""llama.cpp's sampling chain on given logits, run as a file by whatever Python has llama-cpp-python. No import of ours.

Arguments: a model, for its vocabulary; a JSON file of cases, each with logits, tokens and settings; where the
probabilities of what is left go (JSON, one object of token ids for each case).
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import llama_cpp as peer
import numpy as np


def chain_of(vocab: Any, n_vocab: int, s: dict[str, Any]) -> Any:
    """The default order, without a draw."""
    chain = peer.llama_sampler_chain_init(peer.llama_sampler_chain_default_params())
    biases = (peer.llama_logit_bias * len(s["logit_bias"]))(*map(tuple, s["logit_bias"]))
    breakers = [one.encode() for one in s["dry_breakers"]]
    for one in (
        peer.llama_sampler_init_logit_bias(n_vocab, len(biases), biases),
        peer.llama_sampler_init_penalties(
            n_vocab, s["repeat_window"], s["repeat_penalty"], s["frequency_penalty"], s["presence_penalty"]
        ),
        peer.llama_sampler_init_dry(
            vocab, s["dry_multiplier"], s["dry_base"], s["dry_allowed_length"], s["dry_window"] or -1,
            (ctypes.c_char_p * len(breakers))(*breakers), len(breakers),
        ),
        peer.llama_sampler_init_top_n_sigma(s["top_n_sigma"]),
        peer.llama_sampler_init_top_k(s["top_k"]),
        peer.llama_sampler_init_typical(s["typical_p"], 0),
        peer.llama_sampler_init_top_p(s["top_p"], 0),
        peer.llama_sampler_init_min_p(s["min_p"], 0),
        peer.llama_sampler_init_xtc(s["xtc_probability"], s["xtc_threshold"], 0, 1),
        peer.llama_sampler_init_temp(s["temperature"]),
    ):  # fmt: skip
        peer.llama_sampler_chain_add(chain, one)
    return chain


def left(chain: Any, logits: np.ndarray, tokens: list[int]) -> dict[int, float]:
    """Apply a chain after tokens; returns the probabilities of what is left."""
    for token in tokens:
        peer.llama_sampler_accept(chain, token)
    data = (peer.llama_token_data * len(logits))(*((i, float(x), 0.0) for i, x in enumerate(logits)))
    found = peer.llama_token_data_array(data=data, size=len(logits), selected=-1, sorted=False)
    peer.llama_sampler_apply(chain, ctypes.byref(found))
    kept = {found.data[i].id: found.data[i].logit for i in range(found.size)}
    top = max(kept.values())
    weights = {token: float(np.exp(logit - top)) for token, logit in kept.items()}
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items() if weight > 0.0}


def main(model_path: str, cases_path: str, out_path: str) -> None:
    peer.llama_backend_init()
    wanted = peer.llama_model_default_params()
    wanted.vocab_only = True
    model = peer.llama_model_load_from_file(model_path.encode(), wanted)
    vocab = peer.llama_model_get_vocab(model)
    found = []
    for case in json.loads(Path(cases_path).read_text(encoding="utf-8")):
        logits = np.array(case["logits"], np.float32)
        found.append(left(chain_of(vocab, len(logits), case["settings"]), logits, case["tokens"]))
    Path(out_path).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
