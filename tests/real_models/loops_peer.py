"""What llama.cpp replies to many prompts at once, run as a file by whatever Python has llama-cpp-python.

Imports nothing of ours. Argument: a JSON file that says what is asked. Prints a line of JSON for each reply when it is
over: its number and tokens. Each reply has a sequence and a sampler of its own: the others change nothing but the order
in which sums are added.
"""

from __future__ import annotations

import ctypes
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp

MOST_BATCH_TOKENS = 512


@dataclass
class Replying:
    """A reply in the making."""

    n: int
    prompt: list[int]
    chain: Any
    """Its sampler."""
    ids: list[int] = field(default_factory=list)
    text: bytes = b""


class Peer:
    """A model, and replies in as many sequences as are asked for."""

    def __init__(self, asked: dict[str, Any]) -> None:
        llama_cpp.llama_backend_init()
        wanted = llama_cpp.llama_model_default_params()
        wanted.n_gpu_layers = 0
        self.asked = asked
        self.model = llama_cpp.llama_model_load_from_file(asked["model"].encode(), wanted)
        if not self.model:
            raise SystemExit(f"llama.cpp refuses {asked['model']}")
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        chosen = llama_cpp.llama_context_default_params()
        chosen.n_seq_max = asked["at_once"]
        chosen.n_ctx = asked["at_once"] * asked["n_ctx"]
        chosen.n_batch = MOST_BATCH_TOKENS
        chosen.n_threads = chosen.n_threads_batch = asked["threads"]
        self.context = llama_cpp.llama_init_from_model(self.model, chosen)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(MOST_BATCH_TOKENS, 0, 1)

    def started(self, n: int, prompt: list[int]) -> Replying:
        """A reply with a sampling seed of its number; its penalties know the prompt, as ours do."""
        how = self.asked["sampling"]
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        penalties = how["repeat_window"], how["repeat_penalty"], how["frequency_penalty"], how["presence_penalty"]
        for one in (
            llama_cpp.llama_sampler_init_penalties(llama_cpp.llama_vocab_n_tokens(self.vocabulary), *penalties),
            llama_cpp.llama_sampler_init_top_k(how["top_k"]),
            llama_cpp.llama_sampler_init_top_p(how["top_p"], 1),
            llama_cpp.llama_sampler_init_min_p(how["min_p"], 1),
            llama_cpp.llama_sampler_init_temp(how["temperature"]),
            llama_cpp.llama_sampler_init_dist(n),
        ):
            llama_cpp.llama_sampler_chain_add(chain, one)
        for token in prompt:
            llama_cpp.llama_sampler_accept(chain, token)
        return Replying(n, prompt, chain)

    def add(self, token: int, at: int, sequence: int, is_last: bool) -> None:
        """Put a token into the batch."""
        batch, i = self.batch, self.batch.n_tokens
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, at, 1
        batch.seq_id[i][0], batch.logits[i] = sequence, is_last
        batch.n_tokens += 1

    def step(self, active: dict[int, Replying]) -> None:
        """Give each reply another token."""
        self.batch.n_tokens = 0
        places = {}
        for sequence, one in active.items():
            if not one.ids and self.batch.n_tokens + len(one.prompt) + len(active) > MOST_BATCH_TOKENS:
                continue  # its prompt is read in a later step
            fed, at = ([one.ids[-1]], len(one.prompt) + len(one.ids) - 1) if one.ids else (one.prompt, 0)
            for i, token in enumerate(fed):
                self.add(token, at + i, sequence, i == len(fed) - 1)
            places[sequence] = self.batch.n_tokens - 1
        if llama_cpp.llama_decode(self.context, self.batch):
            raise SystemExit("llama_decode failed")
        for sequence, place in places.items():
            one = active[sequence]
            one.ids.append(llama_cpp.llama_sampler_sample(one.chain, self.context, place))
            one.text += self.piece(one.ids[-1])

    def piece(self, token: int) -> bytes:
        """The bytes of a token's text."""
        room = ctypes.create_string_buffer(256)
        n = llama_cpp.llama_token_to_piece(self.vocabulary, token, room, len(room), 0, False)
        return room.raw[: max(n, 0)]

    def is_over(self, one: Replying) -> bool:
        """Whether a reply ends here; the token that ends it is none of its own."""
        if one.ids and llama_cpp.llama_vocab_is_eog(self.vocabulary, one.ids[-1]):
            one.ids.pop()
            return True
        return len(one.ids) == self.asked["most_tokens"] or any(
            stop.encode() in one.text for stop in self.asked["stop"]
        )

    def run(self) -> None:
        """Reply to all."""
        waiting = list(reversed(self.asked["prompts"]))
        active: dict[int, Replying] = {}
        while waiting or active:
            for sequence in range(self.asked["at_once"]):
                if sequence not in active and waiting:
                    llama_cpp.llama_memory_seq_rm(self.memory, sequence, -1, -1)
                    active[sequence] = self.started(*waiting.pop())
            self.step(active)
            for sequence, one in list(active.items()):
                if self.is_over(one):
                    print(json.dumps({"n": one.n, "ids": one.ids}), flush=True)
                    llama_cpp.llama_sampler_free(one.chain)
                    del active[sequence]


def main(asked_path: str) -> None:
    """Reply to what is asked."""
    quiet = llama_cpp.llama_log_callback(lambda level, text, user: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    Peer(json.loads(Path(asked_path).read_text())).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
