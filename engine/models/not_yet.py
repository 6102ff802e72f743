"""Architectures that are known by name and not built: what they are, and what runs in their place."""

from __future__ import annotations

NOT_YET: dict[str, tuple[str, str]] = {
    "gemma3n": ("Gemma 3n", "Gemma 4 E2B or E4B"),
    "llama4": ("Llama 4", "Llama 3"),
    "deci": ("Nemotron NAS", "Llama 3"),
    "minicpm3": ("MiniCPM 3", "Qwen 3"),
    "nanbeige": ("Nanbeige with loops", "Qwen 3"),
    "mamba": ("Mamba, recurrent", "Qwen 3 or Llama 3"),
    "mamba2": ("Mamba 2, recurrent", "Qwen 3 or Llama 3"),
    "jamba": ("Jamba, partly recurrent", "Qwen 3 or Llama 3"),
    "rwkv6": ("RWKV 6, recurrent", "Qwen 3 or Llama 3"),
    "rwkv7": ("RWKV 7, recurrent", "Qwen 3 or Llama 3"),
    "bert": ("an embedding model, which writes no text", "a chat model"),
    "nomic-bert": ("an embedding model, which writes no text", "a chat model"),
    "gemma-embedding": ("an embedding model, which writes no text", "a chat model"),
    "t5": ("T5, an encoder with a decoder", "a chat model"),
    "clip": ("the part of a model that sees images", "the model's main file"),
}
"""``general.architecture`` -> what people call it, and what to use instead."""
