"""Wrong vocabularies in files are harmless, or refused in one line that names file and field."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine.errors import TokenizerError
from engine.tokenizer import Tokenizer
from engine.tokenizer.bpe import merges_into
from tests.engine.tiny_gguf import bpe_vocabulary, spm_vocabulary
from tests.engine.tokenizer.test_tokenizer import as_read

P = "tokenizer.ggml."
Metadata = dict[str, Any]


def put(key: str, value: Any) -> Callable[[Metadata], None]:
    return lambda metadata: metadata.update({P + key: value})


def drop(key: str) -> Callable[[Metadata], None]:
    return lambda metadata: metadata.pop(P + key)


def token(token_id: int, raw: bytes) -> Callable[[Metadata], None]:
    return lambda metadata: metadata[P + "tokens"].__setitem__(token_id, raw)


def merge(index: int, raw: bytes) -> Callable[[Metadata], None]:
    return lambda metadata: metadata[P + "merges"].__setitem__(index, raw)


def change(key: str, function: Callable[[Any], Any]) -> Callable[[Metadata], None]:
    return lambda metadata: metadata.update({P + key: function(metadata[P + key])})


def with_value(index: int, value: float) -> Callable[[np.ndarray], np.ndarray]:
    def changed(values: np.ndarray) -> np.ndarray:
        values = values.copy()
        values[index] = value
        return values

    return changed


BOTH = {
    "no model": (drop("model"), "model is missing"),
    "unknown model": (
        put("model", "wordpiece\x1b[2J"),
        r"model is 'wordpiece\\x1b\[2J' \(supported: llama, gpt2, gemma4, t5, bert, whitespace\)",
    ),
    "a vocabulary of another kind": (
        put("model", "rwkv"),
        r"model is 'rwkv' \(RWKV vocabularies are not supported\)",
    ),
    "model of wrong type": (put("model", 7), "model is a int, not a string"),
    "no tokens": (drop("tokens"), "tokens is missing"),
    "empty tokens": (put("tokens", []), "tokens is empty"),
    "tokens of wrong type": (
        put("tokens", np.arange(9)),
        "tokens is a ndarray, not an array of strings",
    ),
    "tokens of wrong items": (put("tokens", [b"a", 3]), "not an array of strings"),
    "tokens as one text": (put("tokens", "abc"), "not an array of strings"),
    "a token of 1 MB": (token(260, b"x" * (1 << 20)), "entry 260 has 1048576 characters"),
    "types too short": (
        change("token_type", lambda types: types[:-1]),
        r"token_type has \d+ entries for \d+ tokens",
    ),
    "types as floats": (
        change("token_type", lambda types: types.astype(float)),
        "token_type has the wrong type",
    ),
    "types as texts": (put("token_type", [b"1"]), "token_type has the wrong type"),
    "unknown as text": (
        put("unknown_token_id", "0"),
        "unknown_token_id is a str, not a whole number",
    ),
    "eot as fraction": (put("eot_token_id", 1.0), "eot_token_id is a float"),
    "bos as boolean": (put("bos_token_id", True), "bos_token_id is a bool"),
}

SPM = {
    "scores too short": (change("scores", lambda scores: scores[:5]), "scores has 5 entries"),
    "scores as bytes": (put("scores", b"\0" * 12), "scores has the wrong type"),
    "add_space_prefix as text": (put("add_space_prefix", "no"), "add_space_prefix is a str"),
}

BPE = {
    "no merges": (drop("merges"), "merges is missing"),
    "merges of wrong type": (put("merges", np.arange(4)), "merges is a ndarray"),
    "unknown pre-tokenizer": (
        put("pre", "klingon"),
        r"pre is 'klingon', a way to cut words that is not known",
    ),
    "pre-tokenizer of wrong type": (put("pre", 3), "pre is a int"),
}

ODD_BOTH = {
    "an empty token": token(262, b""),
    "a token of the same text": token(261, b"a"),
    "a token of NUL": token(260, b"\0"),
    "a token not UTF-8": token(260, b"\xff\xfe"),
    "types too long": change("token_type", lambda types: np.append(types, [1])),
    "type out of range": change("token_type", with_value(262, 7)),
    "type negative": change("token_type", with_value(262, -1)),
    "bos out of range": put("bos_token_id", 4294967295),
    "eos negative": put("eos_token_id", -1),
    "add_bos as number": put("add_bos_token", 1),
}
ODD_SPM = {
    "no scores": drop("scores"),
    "scores as integers": change("scores", lambda scores: scores.astype(int)),
    "NaN score": change("scores", with_value(7, np.nan)),
    "infinite score": change("scores", with_value(7, np.inf)),
    "byte token <0x-1>": token(3, b"<0x-1>"),
    "byte token <0x>": token(3, b"<0x>"),
    "byte token missing": change("token_type", with_value(3, 1)),
}
ODD_BPE = {
    "empty merges": put("merges", []),
    "merge without space": merge(1, b"the"),
    "merge with two spaces": merge(1, b"t h e"),
    "merge with nothing after": merge(7, b"s "),
    "merge with nothing before": merge(0, b" s"),
    "empty merge": merge(2, b""),
    "merge with a newline": merge(2, b"a b\nc d"),
    "merge not UTF-8": merge(2, b"\xff \xfe"),
    "merge of what is no token": merge(2, b"a i"),
}


@pytest.mark.parametrize(
    ("base", "change_it"),
    [
        pytest.param(base, change_it, id=f"{base.__name__[:3]}: {name}")
        for base, table in (
            (spm_vocabulary, ODD_BOTH | ODD_SPM),
            (bpe_vocabulary, ODD_BOTH | ODD_BPE),
        )
        for name, change_it in table.items()
    ],
)
def test_an_unusual_vocabulary_encodes_all_text(
    base: Callable[[], Metadata], change_it: Callable[[Metadata], None]
) -> None:
    metadata = as_read(base())
    change_it(metadata)
    tokenizer = Tokenizer.from_metadata(metadata, "odd.gguf")
    text = "the rain in Spain\n\xe9 \ufffd\ufffd"
    for special in (False, True):
        ids = tokenizer.encode(text, bos=False, special=special)
        assert tokenizer.decode(ids) == text
        assert not tokenizer.end_ids & set(ids)


def test_of_two_tokens_with_one_text_the_last_is_encoded() -> None:
    metadata = as_read(bpe_vocabulary())
    first, last = (metadata[P + "tokens"].index(text) for text in (b"the", b"in"))
    assert first < last
    metadata[P + "tokens"][last] = b"the"
    tokenizer = Tokenizer.from_metadata(metadata, "odd.gguf")
    assert tokenizer.encode("the") == [last]  # llama.cpp also uses the last token
    assert tokenizer.decode([first, last]) == "thethe"


def test_empty_and_not_utf8_tokens_are_only_decoded() -> None:
    metadata = as_read(spm_vocabulary())
    metadata[P + "tokens"][259:261] = [b"", b"\xff\xfe"]
    metadata[P + "token_type"][259:261] = [3, 4]
    tokenizer = Tokenizer.from_metadata(metadata, "odd.gguf")
    assert [tokenizer.token_bytes(token_id) for token_id in (259, 260)] == [b"", b"\xff\xfe"]
    assert not {259, 260} & set(tokenizer.encode("a\ufffd\ufffd b", special=True))


@pytest.mark.parametrize("value", [4294967295, 1 << 20, -1])
def test_a_special_id_beyond_the_tokens_gives_one_notice(value: int) -> None:
    metadata = as_read(bpe_vocabulary()) | {P + "eos_token_id": value, P + "bos_token_id": value}
    tokenizer = Tokenizer.from_metadata(metadata, "odd.gguf")
    assert (tokenizer.bos_id, tokenizer.eos_id) == (None, None)
    n = len(metadata[P + "tokens"])
    reasons = [
        f"{P}{name}_token_id is {value}, but there are {n} tokens" for name in ("bos", "eos")
    ]
    assert tokenizer.notices == [f"odd.gguf: {'; '.join(reasons)} (counts as missing)"]


def cases(base: Callable[[], Metadata], *tables: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(base, breaking, message, id=f"{base.__name__[:3]}: {name}")
        for table in tables
        for name, (breaking, message) in table.items()
    ]


@pytest.mark.parametrize(
    ("base", "breaking", "message"),
    [*cases(spm_vocabulary, BOTH, SPM), *cases(bpe_vocabulary, BOTH, BPE)],
)
def test_a_broken_vocabulary_is_refused_by_file_and_field(
    base: Callable[[], Metadata], breaking: Callable[[Metadata], None], message: str
) -> None:
    metadata = as_read(base())
    breaking(metadata)
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.from_metadata(metadata, "broken.gguf")
    line = str(caught.value)
    assert line.startswith("broken.gguf: tokenizer.ggml.")
    assert line.isprintable()
    assert len(line) < 300
    assert caught.value.exit_code == 65


def test_a_vocabulary_of_characters_needs_no_byte_tokens() -> None:
    metadata = as_read(spm_vocabulary())
    for key in ("tokens", "scores", "token_type"):
        values = metadata[P + key]
        metadata[P + key] = (
            values[:3] + values[259:]
            if isinstance(values, list)
            else np.delete(values, range(3, 259))
        )
    tokenizer = Tokenizer.from_metadata(metadata, "characters.gguf")
    assert tokenizer.decode(tokenizer.encode("the rain")) == "the rain"


def test_without_types_ids_and_text_mark_special_tokens() -> None:
    metadata = as_read(spm_vocabulary())
    del metadata[P + "token_type"]
    tokenizer = Tokenizer.from_metadata(metadata, "old.gguf")
    assert tokenizer.token_bytes(1) == b""
    assert tokenizer.token_bytes(3 + 0xC3) == b"\xc3"
    assert tokenizer.decode(tokenizer.encode("né")) == "né"


def test_a_merge_without_a_token_leaves_the_bytes() -> None:
    metadata = as_read(bpe_vocabulary())
    metadata[P + "merges"][2] = b"q q"
    tokenizer = Tokenizer.from_metadata(metadata, "odd.gguf")
    with pytest.raises(
        TokenizerError, match=r"odd.gguf: tokenizer.ggml.merges make 'qq', which is no token \("
    ):
        tokenizer.check()
    assert tokenizer.decode(tokenizer.encode("a qq")) == "a qq"


def test_a_sound_vocabulary_passes_the_check() -> None:
    for metadata in (bpe_vocabulary(), spm_vocabulary()):
        Tokenizer.from_metadata(as_read(metadata), "sound.gguf").check()


def test_the_stronger_of_two_equal_merges_counts() -> None:
    metadata = as_read(bpe_vocabulary())
    once = Tokenizer.from_metadata(metadata, "once.gguf").encode("the rain in there")
    metadata[P + "merges"] += metadata[P + "merges"][:3]
    assert Tokenizer.from_metadata(metadata, "twice.gguf").encode("the rain in there") == once


def test_merges_never_make_a_control_token() -> None:
    metadata = as_read(bpe_vocabulary())
    token_id = metadata[P + "tokens"].index(b"the")
    metadata[P + "token_type"][token_id] = 3
    tokenizer = Tokenizer.from_metadata(metadata, "odd.gguf")
    ids = tokenizer.encode("the", special=False)
    assert token_id not in ids
    assert tokenizer.decode(ids) == "the"


@pytest.mark.parametrize("n_others", [0, 10_000])
def test_merges_into_a_control_token_are_found_among_any_number(n_others: int) -> None:
    metadata = as_read(bpe_vocabulary())
    token_id = metadata[P + "tokens"].index(b"the")
    metadata[P + "token_type"][token_id] = 3
    letters = "abcdefghijklmnopqrstuvwxyz"
    other_merges = itertools.islice(itertools.product(letters, repeat=4), n_others)
    metadata[P + "merges"] += [f"{a}{b} {c}{d}".encode() for a, b, c, d in other_merges]
    tokenizer = Tokenizer.from_metadata(metadata, "odd.gguf")
    assert token_id not in tokenizer.encode("the", special=False)


def test_long_control_tokens_are_checked_in_linear_time() -> None:
    assert merges_into({"t" * 65_536}, {"t t": 0, "a b": 1}) == []
    assert merges_into({"the"}, dict.fromkeys(map(str, range(1000)), 0)) == ["t he", "th e"]


def test_default_ids_beyond_a_small_vocabulary_are_ignored() -> None:
    metadata = {
        P + "model": "llama",
        P + "tokens": [b"a", b"b"],
        P + "scores": np.zeros(2, np.float32),
    }
    tokenizer = Tokenizer.from_metadata(metadata, "small.gguf")
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, None)
