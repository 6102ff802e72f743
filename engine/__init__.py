"""Jalopy's engine: a GGUF file goes in, tokens come out.

Public names:

``Model``, ``Session``, ``Sampling``
    Open a file, keep tokens in a cache, choose the next token.
``Tokenizer``, ``common_prefix``
    Text to token ids and back; the shared beginning of two lists of ids.
``read_gguf``, ``read_single``, ``glance``, ``part_name``, ``GGUFFile``, ``Imatrix``,
``read_imatrix``
    Read and check GGUF files without opening a model.
``memory_needs``, ``MemoryNeeds``, ``KV_TYPES``, ``QUANTS``, ``LEVEL``, ``MOST_THREADS``
    Memory need of a KV cache; its types; supported weight types; the instruction set in use; the
    limit on threads.
``Crew``
    Threads that run the plans.
``PictureEncoder``, ``find_mmproj``
    Turn pictures into rows of embeddings; find the encoder of a model.
``EngineError``
    Base of all errors; its text is one line for the user.

Names are resolved on first use, so importing the package is cheap and never imports numba.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.cache.cached_tokens import common_prefix as common_prefix
    from engine.cache.kv_cache import memory_needs as memory_needs
    from engine.cache.kv_types import KV_TYPES as KV_TYPES
    from engine.cache.layer_memory import MemoryNeeds as MemoryNeeds
    from engine.errors import EngineError as EngineError
    from engine.gguf.contents import GGUFFile as GGUFFile
    from engine.gguf.imatrix import Imatrix as Imatrix
    from engine.gguf.imatrix import read_imatrix as read_imatrix
    from engine.gguf.magic import glance as glance
    from engine.gguf.parts import part_name as part_name
    from engine.gguf.read import read_gguf as read_gguf
    from engine.gguf.read import read_single as read_single
    from engine.machine.level import LEVEL as LEVEL
    from engine.model import Model as Model
    from engine.plan.crew import MOST_THREADS as MOST_THREADS
    from engine.plan.crew import Crew as Crew
    from engine.quants import QUANTS as QUANTS
    from engine.sampling.settings import Sampling as Sampling
    from engine.session import Session as Session
    from engine.tokenizer import Tokenizer as Tokenizer
    from engine.vision.encoder import PictureEncoder as PictureEncoder
    from engine.vision.finding import find_mmproj as find_mmproj

_HOMES = {
    "common_prefix": "engine.cache.cached_tokens",
    "memory_needs": "engine.cache.kv_cache",
    "KV_TYPES": "engine.cache.kv_types",
    "MemoryNeeds": "engine.cache.layer_memory",
    "EngineError": "engine.errors",
    "glance": "engine.gguf.magic",
    "part_name": "engine.gguf.parts",
    "GGUFFile": "engine.gguf.read",
    "read_gguf": "engine.gguf.read",
    "Imatrix": "engine.gguf.imatrix",
    "read_imatrix": "engine.gguf.imatrix",
    "read_single": "engine.gguf.read",
    "Model": "engine.model",
    "Crew": "engine.plan.crew",
    "MOST_THREADS": "engine.plan.crew",
    "QUANTS": "engine.quants",
    "Sampling": "engine.sampling.sampler",
    "Session": "engine.session",
    "LEVEL": "engine.machine.level",
    "Tokenizer": "engine.tokenizer",
    "PictureEncoder": "engine.vision.encoder",
    "find_mmproj": "engine.vision.finding",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    return getattr(import_module(home), name)
