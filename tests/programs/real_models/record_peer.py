"""Record llama.cpp's tokens and replies, in a Python that has llama-cpp-python and Jinja.

Imports nothing of ours. Arguments: the model, a JSON file that says what is asked, and where the
answer goes. Flash attention is off: it sums values in half precision.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment

N_CTX = 1024
MOST_TOKENS = 16


class Peer:
    """An opened model."""

    def __init__(self, model_path: str, n_threads: int) -> None:
        llama_cpp.llama_backend_init()
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(model_path.encode(), parameters)
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        chosen = llama_cpp.llama_context_default_params()
        chosen.n_ctx = chosen.n_batch = N_CTX
        chosen.n_threads = chosen.n_threads_batch = n_threads
        chosen.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = llama_cpp.llama_init_from_model(self.model, chosen)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(self.vocabulary)

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of a text."""
        raw = text.encode()
        room = (llama_cpp.llama_token * (len(raw) + 8))()
        n = llama_cpp.llama_tokenize(
            self.vocabulary, raw, len(raw), room, len(room), add_special, parse_special
        )
        return list(room[:n])

    def feed(self, ids: list[int], start: int, every: bool = False) -> Any:
        """Logits of the last token, or of every one."""
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.pos[i] = start + i
            batch.token[i] = token
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = every or i == len(ids) - 1
        if llama_cpp.llama_decode(self.context, batch):
            raise SystemExit("llama_decode failed")
        llama_cpp.llama_batch_free(batch)
        positions = range(len(ids)) if every else [len(ids) - 1]
        rows = (llama_cpp.llama_get_logits_ith(self.context, i) for i in positions)
        return [np.ctypeslib.as_array(row, (self.n_vocab,)).astype(np.float64) for row in rows]

    def clear(self) -> None:
        """Forget all tokens."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def greedy(self, ids: list[int], least_margin: float) -> list[int]:
        """The likeliest tokens, as long as each is far enough before the second."""
        self.clear()
        token_ids: list[int] = []
        (logits,) = self.feed(ids, 0)
        while len(token_ids) < MOST_TOKENS:
            second, first = np.argsort(logits)[-2:]
            if logits[first] - logits[second] < least_margin:
                break
            token_ids.append(int(first))
            if llama_cpp.llama_vocab_is_eog(self.vocabulary, token_ids[-1]):
                break
            (logits,) = self.feed([token_ids[-1]], len(ids) + len(token_ids) - 1)
        return token_ids

    def perplexity(self, ids: list[int], block: int = 64) -> float:
        """Return the losses of all tokens but the first, in one context."""
        self.clear()
        rates = []
        for start in range(0, len(ids) - 1, block):
            fed = ids[start : min(start + block, len(ids) - 1)]
            for row, target in zip(
                self.feed(fed, start, every=True), ids[start + 1 :], strict=False
            ):
                rates.append(np.log(np.exp(row - row.max()).sum()) + row.max() - row[target])
        return float(np.exp(np.mean(rates)))

    def metadata(self, key: str) -> str:
        """A text of the file's metadata, or ""."""
        room = ctypes.create_string_buffer(1 << 18)
        n = llama_cpp.llama_model_meta_val_str(self.model, key.encode(), room, len(room))
        return room.value.decode() if n >= 0 else ""

    def spelled(self, token: int) -> str:
        """A token as the vocabulary spells it."""
        return llama_cpp.llama_vocab_get_text(self.vocabulary, token).decode() if token >= 0 else ""


def rendered(peer: Peer, messages: list[dict[str, str]]) -> str:
    """Render the file's template as transformers do; "" if there is none."""
    source = peer.metadata("tokenizer.chat_template")
    if not source:
        return ""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    bos, eos = (f(peer.vocabulary) for f in (llama_cpp.llama_vocab_bos, llama_cpp.llama_vocab_eos))
    specials = {"bos_token": peer.spelled(bos), "eos_token": peer.spelled(eos)}
    return environment.from_string(source).render(
        messages=messages, add_generation_prompt=True, tools=None, **specials
    )


def main(model_path: str, asked_path: str, told_path: str) -> None:
    """Answer what is asked."""
    quiet = llama_cpp.llama_log_callback(lambda level, text, user: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    questions = json.loads(Path(asked_path).read_text())
    peer = Peer(model_path, questions["threads"])
    tokens = [
        [text, peer.encode(text, False, False), peer.encode(text, False, True)]
        for text in questions["texts"]
    ]
    replies = []
    for text in questions["prompts"]:
        ids = peer.encode(text, True, True)
        replies.append({"prompt": text, "ids": peer.greedy(ids, questions["least_margin"])})
    conversations = [
        {"messages": conversation, "text": rendered(peer, conversation)}
        for conversation in questions["conversations"]
    ]
    for conversation in conversations:
        if conversation["text"]:
            ids = peer.encode(conversation["text"], False, True)
            replies.append(
                {"prompt": conversation["text"], "ids": peer.greedy(ids, questions["least_margin"])}
            )
    ids = peer.encode(questions["text"], True, True)
    answers = {
        "tokens": tokens,
        "conversations": [conversation for conversation in conversations if conversation["text"]],
        "greedy": [
            conversation
            for conversation in replies
            if len(conversation["ids"]) >= questions["least_tokens"]
        ],
        "perplexity": round(peer.perplexity(ids), 4),
        "n_tokens": len(ids),
    }
    Path(told_path).write_text(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
