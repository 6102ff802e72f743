"""Registry of architectures: one visible line each, named as GGUF's ``general.architecture`` names them.

Knows which architectures exist and where they live. Importing this package imports none of them.
"""

from importlib import import_module
from types import ModuleType

ARCHITECTURES: dict[str, str] = {
    "llama": "engine.models.llama",
    "qwen2": "engine.models.qwen2",
    "qwen3": "engine.models.qwen3",
}


def load_architecture(name: str) -> ModuleType:
    """Import the module of an architecture; it offers ``expected_tensors(config)``.

    Args:
        name: a key of ``ARCHITECTURES``.

    Raises:
        KeyError: the architecture is not registered; files are checked for that before (``engine.config``).
    """
    return import_module(ARCHITECTURES[name])
