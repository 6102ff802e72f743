"""Everything the engine refuses, as one family of exceptions.

Each message is one line that names the file or setting, what was found and what is supported, so that an interface
can show it as it stands.
"""


class EngineError(Exception):
    """Base of every error a caller of the engine is meant to show; anything else is a bug."""

    exit_code = 65


class FileUnreadableError(EngineError):
    """The model file cannot be opened or read at all."""

    exit_code = 66


class GGUFError(EngineError):
    """The file is not a sound GGUF file; the message names file and field."""


class UnsupportedArchitectureError(EngineError):
    """The file is sound but its architecture is not one of ``ARCHITECTURES``."""


class UnsupportedQuantError(EngineError):
    """A tensor has a type that is not one of ``QUANTS``."""


class UnsupportedCPUError(EngineError):
    """This processor lacks what the engine needs."""

    exit_code = 69


class TokenizerError(EngineError):
    """The vocabulary in the file is incomplete or contradicts itself."""


class TemplateError(EngineError):
    """The chat template in the file cannot be rendered within its limits."""


class MemoryPlanError(EngineError):
    """Weights, KV cache and buffers do not fit; the message says what does."""

    exit_code = 71


class ContextFullError(EngineError):
    """More tokens than the context has room for; nothing was computed."""


class BrokenModelError(EngineError):
    """The model computed NaN or infinity: its weights are damaged."""


class ModelChangedError(EngineError):
    """The model file was changed on disk since it was opened."""

    exit_code = 74


class Cancelled(EngineError):  # noqa: N818 - an outcome, not a fault
    """The caller asked to stop; the session stands at its last good length."""

    exit_code = 130
