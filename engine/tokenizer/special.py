"""Search for special tokens that are spelled out in text, longest first, as in llama.cpp.

Source: ggml-org/llama.cpp, src/llama-vocab.cpp, ``tokenizer_st_partition``.
"""

from typing import NamedTuple

from engine.tokenizer.vocabulary import TokenType, Vocabulary

_C_SPACES = " \t\n\v\f\r"


class Fragment(NamedTuple):
    """Part of a text: one special token, or ordinary text.

    Attributes:
        start: index of the first character in the split text.
        end: index after the last character.
        text: characters of the fragment.
        token_id: id of the special token; None for ordinary text.
    """

    start: int
    end: int
    text: str
    token_id: int | None


class SpecialTokens:
    """Special tokens of one vocabulary.

    User-defined tokens are always recognised, control and unknown tokens only in trusted text.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._rstrip_ids = vocabulary.rstrip_ids
        self.control = _longest_first(_spelled(vocabulary, TokenType.CONTROL, TokenType.UNKNOWN))
        self._user_defined = _spelled(vocabulary, TokenType.USER_DEFINED)
        self._with_control = _longest_first(self.control | self._user_defined)
        self._user_defined = _longest_first(self._user_defined)

    def split(self, text: str, control: bool) -> list[Fragment]:
        """Cut text at its special tokens.

        Args:
            text: any text.
            control: recognise control tokens, too; False for untrusted text.

        Returns:
            Fragments in order. White space that a token swallows is left out.
        """
        if not text:
            return []
        tokens = spelled_in(text, self._with_control if control else self._user_defined)
        if not tokens:
            return [Fragment(0, len(text), text, None)]
        fragments = []
        position = 0
        for start, end, token_id in self._find(text, tokens):
            if start > position:
                fragments.append(Fragment(position, start, text[position:start], None))
            fragments.append(Fragment(start, end, text[start:end], token_id))
            position = self._end_with_spaces(text, end, token_id)
        if position < len(text):
            fragments.append(Fragment(position, len(text), text[position:], None))
        return fragments

    def _find(self, text: str, tokens: dict[str, int]) -> list[tuple[int, int, int]]:
        """Return (start, end, id) of tokens that do not overlap. Longer tokens come first, then the
        leftmost."""
        is_used = bytearray(len(text))
        matches = []
        for token, token_id in tokens.items():
            start = text.find(token)
            while start >= 0:
                end = start + len(token)
                last_used = is_used.rfind(1, start, end)
                if last_used < 0:
                    matches.append((start, end, token_id))
                    end = self._end_with_spaces(text, end, token_id)
                    is_used[start:end] = b"\1" * (end - start)
                    start = text.find(token, end)
                else:
                    start = text.find(token, last_used + 1)
        return sorted(matches)

    def _end_with_spaces(self, text: str, end: int, token_id: int) -> int:
        if token_id in self._rstrip_ids:
            while end < len(text) and text[end] in _C_SPACES:
                end += 1
        return end


def _spelled(vocabulary: Vocabulary, *types: TokenType) -> dict[str, int]:
    return {
        vocabulary.texts[i]: i
        for i in vocabulary.ids_of(*types)
        if i not in vocabulary.without_text
    }


def spelled_in(text: str, tokens: dict[str, int]) -> dict[str, int]:
    """Return the tokens that occur in a text, in their order.

    The set of characters avoids most searches, since vocabularies may have thousands of special
    tokens.
    """
    chars = set(text)
    return {
        token: i
        for token, i in tokens.items()
        if token[0] in chars and token[-1] in chars and token in text
    }


def _longest_first(tokens: dict[str, int]) -> dict[str, int]:
    return dict(sorted(tokens.items(), key=lambda item: -len(item[0].encode())))
