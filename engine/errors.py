"""Exceptions of the engine.

Each message is one line for the user: it names the file or setting, its value and the supported
values. ``exit_code`` is the process's exit status for the error (sysexits.h).
"""


def printable(text: str | bytes, limit: int = 60) -> str:
    r"""Make untrusted text safe to put into a one-line message.

    Args:
        text: a name from a file, a path or user input; bytes are decoded as UTF-8.
        limit: limit on the characters of the result; longer text ends with ``...``.

    Returns:
        Printable text: bytes that are not UTF-8 become ``\xNN``, control and other unprintable
        characters ``\xNN``, ``\uNNNN`` or ``\UNNNNNNNN``.
    """
    if isinstance(text, bytes):
        text = text[: 4 * limit + 4].decode("utf-8", "surrogateescape")
    pieces = [
        character if character.isprintable() else _escaped(ord(character))
        for character in text[: limit + 1]
    ]
    if sum(map(len, pieces)) <= limit:
        return "".join(pieces)
    while sum(map(len, pieces)) > limit - 3:
        pieces.pop()
    return "".join(pieces) + "..."


def _escaped(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # how Python carries a byte that is not UTF-8
        code -= 0xDC00
    if code <= 0xFF:
        return f"\\x{code:02x}"
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


class EngineError(Exception):
    """Base of every error that callers show to the user; any other exception is a bug."""

    exit_code = 65


class FileUnreadableError(EngineError):
    """The model file cannot be opened or read at all."""

    exit_code = 66


class FileUnwritableError(EngineError):
    """A file cannot be written: the disk is full, the folder is missing or closed to this user."""

    exit_code = 74


class GGUFError(EngineError):
    """The file is not a valid GGUF file; the message names file and field."""


class ConversionError(EngineError):
    """A directory cannot be made into a GGUF file; the message names file and field."""


class UnsupportedArchitectureError(EngineError):
    """The file is valid but its architecture is not one of ``ARCHITECTURES``."""


class UnsupportedQuantError(EngineError):
    """A tensor has a type that is not one of ``QUANTS``."""


class UnsupportedCPUError(EngineError):
    """The kernels cannot be compiled for this processor."""

    exit_code = 69


class TokenizerError(EngineError):
    """The vocabulary in the file is incomplete or contradicts itself."""


class TemplateError(EngineError):
    """The chat template in the file cannot be rendered within its limits."""


class MemoryPlanError(EngineError):
    """Weights, KV cache or buffers do not fit into memory, or the KV type does not suit the
    model."""

    exit_code = 71


class ThreadsRefusedError(EngineError):
    """The system refused to start a thread."""

    exit_code = 71


class ContextFullError(EngineError):
    """More tokens than the context has room for; nothing was computed."""


class BrokenModelError(EngineError):
    """The model computed NaN or infinity: its weights are damaged."""


class ModelChangedError(EngineError):
    """The model file was changed on disk since it was opened."""

    exit_code = 74


class Cancelled(EngineError):
    """The caller asked to stop; the session keeps its last valid length."""

    exit_code = 130
