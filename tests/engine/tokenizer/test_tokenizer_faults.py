"""Every lie a file can tell about its vocabulary: refused in one line that names file and field, or harmless."""

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


def token(at: int, raw: bytes) -> Callable[[Metadata], None]:
    return lambda metadata: metadata[P + "tokens"].__setitem__(at, raw)


def merge(at: int, raw: bytes) -> Callable[[Metadata], None]:
    return lambda metadata: metadata[P + "merges"].__setitem__(at, raw)


def change(key: str, function: Callable[[Any], Any]) -> Callable[[Metadata], None]:
    return lambda metadata: metadata.update({P + key: function(metadata[P + key])})


def with_value(at: int, value: float) -> Callable[[np.ndarray], np.ndarray]:
    def changed(values: np.ndarray) -> np.ndarray:
        values = values.copy()
        values[at] = value
        return values

    return changed


BOTH = {
    "no model": (drop("model"), "model is missing"),
    "unknown model": (
        put("model", "wordpiece\x1b[2J"),
        r"model is 'wordpiece\\x1b\[2J' \(supported: llama, gpt2, gemma4, t5, bert\)",
    ),
    "a vocabulary of another kind": (
        put("model", "rwkv"),
        r"model is 'rwkv' \(RWKV vocabularies are not supported\)",
    ),
    "model of wrong type": (put("model", 7), "model is a int, not a string"),
    "no tokens": (drop("tokens"), "tokens is missing"),
    "empty tokens": (put("tokens", []), "tokens is empty"),
    "tokens of wrong type": (put("tokens", np.arange(9)), "tokens is a ndarray, not an array of strings"),
    "tokens of wrong items": (put("tokens", [b"a", 3]), "not an array of strings"),
    "tokens as one text": (put("tokens", "abc"), "not an array of strings"),
    "all tokens empty": (change("tokens", lambda tokens: [b""] * len(tokens)), "entry 0 is empty"),
    "an empty token": (token(259, b""), "tokens entry 259 is empty"),
    "equal tokens": (token(261, b"a"), "are the same"),
    "a token with NUL": (token(260, b"a\0"), "entry 260 holds a NUL"),
    "a token not UTF-8": (token(260, b"\xff\xfe"), "tokens entry 260 is not UTF-8"),
    "a token of 1 MB": (token(260, b"x" * (1 << 20)), "entry 260 has 1048576 characters"),
    "types too short": (change("token_type", lambda types: types[:-1]), r"token_type has \d+ entries for \d+ tokens"),
    "types too long": (change("token_type", lambda types: np.append(types, [1])), "token_type has"),
    "types as floats": (change("token_type", lambda types: types.astype(float)), "token_type has the wrong type"),
    "types as texts": (put("token_type", [b"1"]), "token_type has the wrong type"),
    "type out of range": (change("token_type", with_value(4, 7)), "token_type entry 4 is 7"),
    "type negative": (change("token_type", with_value(4, -1)), "token_type entry 4 is -1"),
    "bos out of range": (put("bos_token_id", 1 << 20), "bos_token_id is 1048576, but there are"),
    "eos negative": (put("eos_token_id", -1), "eos_token_id is -1"),
    "unknown as text": (put("unknown_token_id", "0"), "unknown_token_id is a str, not a whole number"),
    "eot as fraction": (put("eot_token_id", 1.0), "eot_token_id is a float"),
    "bos as boolean": (put("bos_token_id", True), "bos_token_id is a bool"),
    "add_bos as number": (put("add_bos_token", 1), "add_bos_token is a int, not a boolean"),
}

SPM = {
    "no scores": (drop("scores"), "scores is missing"),
    "scores too short": (change("scores", lambda scores: scores[:5]), "scores has 5 entries"),
    "scores as integers": (change("scores", lambda scores: scores.astype(int)), "scores has the wrong type"),
    "scores as bytes": (put("scores", b"\0" * 12), "scores has the wrong type"),
    "NaN score": (change("scores", with_value(7, np.nan)), "scores entry 7 is nan"),
    "infinite score": (change("scores", with_value(7, np.inf)), "scores entry 7 is inf"),
    "byte token <0x-1>": (token(3, b"<0x-1>"), "entry 3 is a byte token but not written as"),
    "byte token <0xZZ>": (token(3, b"<0xZZ>"), "entry 3 is a byte token but not written as"),
    "byte token <0x>": (token(3, b"<0x>"), "entry 3 is a byte token but not written as"),
    "byte token missing": (change("token_type", with_value(3, 1)), "lacks the byte token <0x00>"),
    "add_space_prefix as text": (put("add_space_prefix", "no"), "add_space_prefix is a str"),
}

BPE = {
    "no merges": (drop("merges"), "merges is missing"),
    "empty merges": (put("merges", []), "merges is empty"),
    "merges of wrong type": (put("merges", np.arange(4)), "merges is a ndarray"),
    "merge without space": (merge(1, b"the"), "merges entry 1 is not two texts"),
    "merge with two spaces": (merge(1, b"t h e"), "merges entry 1 is not two texts"),
    "merge with nothing behind": (merge(7, b"s "), "merges entry 7 is not two texts"),
    "merge with nothing before": (merge(0, b" s"), "merges entry 0 is not two texts"),
    "empty merge": (merge(2, b""), "merges entry 2 is not two texts"),
    "merge with a newline": (merge(2, b"a b\nc d"), "merges entry"),
    "merge not UTF-8": (merge(2, b"\xff \xfe"), "merges entry 2 is not UTF-8"),
    "unknown pre-tokenizer": (put("pre", "klingon"), r"pre is 'klingon', a way to cut words that is not known"),
    "pre-tokenizer of wrong type": (put("pre", 3), "pre is a int"),
}


def cases(base: Callable[[], Metadata], *tables: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(base, breaking, message, id=f"{base.__name__[:3]}: {name}")
        for table in tables
        for name, (breaking, message) in table.items()
    ]


@pytest.mark.parametrize(
    ("base", "breaking", "message"), [*cases(spm_vocabulary, BOTH, SPM), *cases(bpe_vocabulary, BOTH, BPE)]
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
        metadata[P + key] = values[:3] + values[259:] if isinstance(values, list) else np.delete(values, range(3, 259))
    tokenizer = Tokenizer.from_metadata(metadata, "characters.gguf")
    assert tokenizer.decode(tokenizer.encode("the rain")) == "the rain"


def test_without_types_ids_and_spelling_tell_what_is_special() -> None:
    metadata = as_read(spm_vocabulary())
    del metadata[P + "token_type"]
    tokenizer = Tokenizer.from_metadata(metadata, "old.gguf")
    assert tokenizer.token_bytes(1) == b""
    assert tokenizer.token_bytes(3 + 0xC3) == b"\xc3"
    assert tokenizer.decode(tokenizer.encode("né")) == "né"


def test_a_merge_that_makes_no_token_is_refused_by_the_check_and_by_text_that_meets_it() -> None:
    metadata = as_read(bpe_vocabulary())
    metadata[P + "merges"][2] = b"q q"
    tokenizer = Tokenizer.from_metadata(metadata, "odd.gguf")
    for look in (tokenizer.check, lambda: tokenizer.encode("a qq")):
        with pytest.raises(TokenizerError, match=r"odd.gguf: tokenizer.ggml.merges make 'qq', which is no token \("):
            look()
    assert tokenizer.decode(tokenizer.encode("q a")) == "q a"


def test_a_sound_vocabulary_passes_the_check() -> None:
    for metadata in (bpe_vocabulary(), spm_vocabulary()):
        Tokenizer.from_metadata(as_read(metadata), "sound.gguf").check()


def test_of_a_merge_listed_twice_the_stronger_counts() -> None:
    metadata = as_read(bpe_vocabulary())
    once = Tokenizer.from_metadata(metadata, "once.gguf").encode("the rain in there")
    metadata[P + "merges"] += metadata[P + "merges"][:3]
    assert Tokenizer.from_metadata(metadata, "twice.gguf").encode("the rain in there") == once


def test_merges_never_make_a_control_token() -> None:
    metadata = as_read(bpe_vocabulary())
    at = metadata[P + "tokens"].index(b"the")
    metadata[P + "token_type"][at] = 3
    tokenizer = Tokenizer.from_metadata(metadata, "odd.gguf")
    ids = tokenizer.encode("the", special=False)
    assert at not in ids
    assert tokenizer.decode(ids) == "the"


@pytest.mark.parametrize("n_others", [0, 10_000])
def test_merges_into_a_control_token_are_found_among_few_and_many(n_others: int) -> None:
    metadata = as_read(bpe_vocabulary())
    at = metadata[P + "tokens"].index(b"the")
    metadata[P + "token_type"][at] = 3
    letters = "abcdefghijklmnopqrstuvwxyz"
    others = itertools.islice(itertools.product(letters, repeat=4), n_others)
    metadata[P + "merges"] += [f"{a}{b} {c}{d}".encode() for a, b, c, d in others]
    tokenizer = Tokenizer.from_metadata(metadata, "odd.gguf")
    assert at not in tokenizer.encode("the", special=False)


def test_long_control_tokens_are_not_cut_in_every_way() -> None:
    assert merges_into({"t" * 65_536}, {"t t": 0, "a b": 1}) == []
    assert merges_into({"the"}, dict.fromkeys(map(str, range(1000)), 0)) == ["t he", "th e"]


def test_default_ids_beyond_a_small_vocabulary_are_no_ids() -> None:
    metadata = {
        P + "model": "llama",
        P + "tokens": [b"a", b"b"],
        P + "scores": np.zeros(2, np.float32),
    }
    tokenizer = Tokenizer.from_metadata(metadata, "small.gguf")
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, None)
