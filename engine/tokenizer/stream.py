"""Incremental decoding of tokens, never cut inside a character."""

import codecs
from collections.abc import Callable


class TextStream:
    """Decodes token by token. The joined pieces equal the decoding of all bytes at once.

    Invalid UTF-8 becomes U+FFFD as soon as that is certain. Leading spaces stay, since a stream
    continues earlier text.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Return the text that a token completes; it may be empty.

        Raises:
            TokenizerError: the id is outside the vocabulary.
        """
        return self._decoder.decode(self._token_bytes(token_id))

    @property
    def is_within_character(self) -> bool:
        """Whether the last token ended inside a character."""
        return bool(self._decoder.getstate()[0])

    def flush(self) -> str:
        """Reset the decoder; returns U+FFFD for an incomplete character at the end, else an empty
        text."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
