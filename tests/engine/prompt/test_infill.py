"""Prompts for filling in the middle, with golden tokens of llama.cpp if its vocabularies are
available."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import EngineError
from engine.prompt.infill import InfillText, infill_prompt
from engine.tokenizer import Tokenizer
from engine.tokenizer.infill_marks import InfillMarks, has_infill_marks
from tests.engine.tiny_gguf import bpe_vocabulary
from tests.engine.tokenizer.test_tokenizer import as_read

P = "tokenizer.ggml."
PRE, SUF, MID, REP, SEP, PAD = range(300, 306)
TEXTS = {
    PRE: "<fim-prefix>", SUF: "<fim-suffix>", MID: "<fim-middle>", REP: "<fim-repo>",
    SEP: "<|file_sep|>", PAD: "<fim-pad>",
}  # fmt: skip


def vocabulary(marks: Any = TEXTS, **keys: Any) -> dict[str, Any]:
    """Return a byte vocabulary with further tokens from id 300 on."""
    metadata = as_read(bpe_vocabulary("gpt-2"))
    tokens = metadata[P + "tokens"]
    tokens += [b"unused-%d" % token_id for token_id in range(len(tokens), 310)]
    for token_id, text in marks.items():
        tokens[token_id] = text.encode()
    metadata[P + "token_type"] = np.ones(len(tokens), np.int32)
    return {**metadata, **{P + key: value for key, value in keys.items()}}


def tokenizer_of(*arguments: Any, **keys: Any) -> Tokenizer:
    return Tokenizer.from_metadata(vocabulary(*arguments, **keys), "tiny.gguf")


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, bos=False, special=False)


def test_marks_are_found_by_their_text() -> None:
    tokenizer = tokenizer_of()
    assert tokenizer.infill == InfillMarks(PRE, SUF, MID, PAD, REP, SEP)
    assert {PAD, REP, SEP} <= tokenizer.end_ids
    assert not {PRE, SUF, MID} & tokenizer.end_ids
    assert tokenizer.encode("a<fim-middle>b", bos=False)[-2] == MID


@pytest.mark.parametrize(
    "names", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")]
)
def test_marks_are_declared_by_new_and_old_keys(names: tuple[str, ...]) -> None:
    keys = {f"{name}_token_id": 306 + index for index, name in enumerate(names)}
    metadata = vocabulary({}, **keys)
    assert Tokenizer.from_metadata(metadata, "x").infill == InfillMarks(306, 307, 308)
    assert has_infill_marks(metadata)
    assert has_infill_marks(vocabulary())
    assert not has_infill_marks(vocabulary({PRE: "<PRE>"}))


def test_a_damaged_mark_counts_as_missing() -> None:
    marks = tokenizer_of({}, fim_pre_token_id=10**6).infill
    assert marks.missing == ["prefix", "suffix", "middle"]


def test_a_prompt_has_all_parts_in_order() -> None:
    tokenizer = tokenizer_of()
    text = InfillText("ab", "cd", "ef", [("x.py", "gh"), ("y", "ij")])
    parts = [
        REP, *ids_of(tokenizer, "myproject\n"), SEP, *ids_of(tokenizer, "x.py\ngh"),
        SEP, *ids_of(tokenizer, "y\nij"), SEP, *ids_of(tokenizer, "filename\n"),
        PRE, *ids_of(tokenizer, "abef"), SUF, *ids_of(tokenizer, "cd"), MID,
    ]  # fmt: skip
    prompt = infill_prompt(tokenizer, text, 4096, 16)
    assert (prompt.ids, prompt.is_cut) == (parts, False)
    turned = infill_prompt(tokenizer, InfillText("ab", "cd"), 4096, 16, suffix_first=True).ids
    assert turned[-6:] == [*ids_of(tokenizer, "cd")[-2:], PRE, *ids_of(tokenizer, "ab"), MID]


def test_texts_of_other_files_need_no_marks() -> None:
    tokenizer = tokenizer_of({PRE: TEXTS[PRE], SUF: TEXTS[SUF], MID: TEXTS[MID]})
    ids = infill_prompt(tokenizer, InfillText("a", "b", others=[("x", "c")]), 4096, 16).ids
    assert ids[: ids.index(PRE)] == ids_of(tokenizer, "\n\n--- snippet ---\n\nc")


def test_marks_in_texts_stay_texts() -> None:
    tokenizer = tokenizer_of()
    text = InfillText("<fim-suffix>", "<fim-middle>", "<fim-prefix>", [("<fim-pad>", "<fim-repo>")])
    ids = infill_prompt(tokenizer, text, 4096, 16).ids
    assert [token_id for token_id in ids if token_id >= PRE] == [REP, SEP, SEP, PRE, SUF, MID]


@pytest.mark.parametrize("n_ctx", [64, 1024, 4096])
def test_what_is_farthest_from_the_gap_is_cut(n_ctx: int) -> None:
    tokenizer = tokenizer_of()
    long = "".join(chr(33 + index % 90) for index in range(3 * n_ctx))
    text = InfillText(long, long, "line", [("old", long), ("new", long)])
    prompt = infill_prompt(tokenizer, text, n_ctx, n_ctx // 16)
    assert prompt.is_cut
    assert len(prompt.ids) <= n_ctx - n_ctx // 16
    n_around = min(2048, n_ctx // 2)
    line_ids = ids_of(tokenizer, "line")
    before = prompt.ids[prompt.ids.index(PRE) + 1 : prompt.ids.index(SUF)]
    assert before == ids_of(tokenizer, long)[-(n_around // 4 * 3) :] + line_ids
    after = prompt.ids[prompt.ids.index(SUF) + 1 : -1]
    assert after == ids_of(tokenizer, long)[: n_around // 4 - 2 - len(line_ids)]


def test_a_vocabulary_without_marks_is_refused() -> None:
    with pytest.raises(EngineError, match="no marks for: suffix, middle"):
        infill_prompt(tokenizer_of({PRE: TEXTS[PRE]}), InfillText("a", "b"), 4096, 16)


GOLDEN: dict[str, tuple[dict[str, int], list[int]]] = {
    "gpt-2": (
        {"fim_pre": 50000, "fim_suf": 50001, "fim_mid": 50002, "fim_rep": 50003,
         "fim_sep": 50004, "fim_pad": 50005},
        [50003, 1820, 16302, 198, 50004, 9948, 66, 13, 9078, 198, 4299, 35971, 7, 64, 11,
         275, 2599, 198, 220, 220, 220, 1441, 257, 1635, 275, 198, 50004, 34345, 198,
         50000, 11748, 25064, 628, 198, 4299, 751, 7, 64, 11, 275, 2599, 198, 220, 220,
         220, 1441, 220, 50001, 628, 198, 4798, 7, 2860, 7, 16, 11, 362, 4008, 220, 1303,
         38251, 1279, 91, 437, 1659, 5239, 91, 29, 198, 50002],
    ),
    "llama-spm": (
        {"prefix": 31000, "suffix": 31001, "middle": 31002},
        [29871, 13, 13, 5634, 11534, 11474, 13, 13, 822, 15065, 29898, 29874, 29892, 289,
         1125, 13, 1678, 736, 263, 334, 289, 13, 1, 31000, 1053, 10876, 13, 13, 13, 1753,
         788, 29898, 29874, 29892, 289, 1125, 13, 268, 736, 29871, 31001, 29871, 13, 13,
         13, 2158, 29898, 1202, 29898, 29896, 29892, 29871, 29906, 876, 29871, 396, 904,
         529, 29989, 355, 974, 726, 29989, 29958, 13, 31002],
    ),
    "deepseek-llm": (
        {"fim_pre": 30000, "fim_suf": 30001, "fim_mid": 30002, "fim_sep": 30003},
        [30003, 40334, 13, 4027, 185, 1558, 39551, 7, 64, 11, 270, 1780, 185, 300, 972,
         245, 575, 270, 185, 30003, 17396, 185, 100000, 30000, 1901, 12129, 185, 185, 185,
         1558, 962, 7, 64, 11, 270, 1780, 185, 300, 972, 207, 30001, 185, 185, 185, 4134,
         7, 1770, 7, 16, 11, 207, 17, 1509, 207, 1501, 1450, 459, 91, 409, 994, 822,
         66325, 185, 30002],
    ),
    "qwen2": (
        {"fim_pre": 151000, "fim_suf": 151001, "fim_mid": 151002, "fim_rep": 151003,
         "fim_sep": 151004},
        [151003, 2408, 4987, 198, 151004, 26586, 7197, 198, 750, 15602, 2877, 11, 293,
         982, 262, 470, 264, 353, 293, 198, 151004, 8404, 198, 151000, 474, 5708, 1406,
         750, 912, 2877, 11, 293, 982, 262, 470, 220, 151001, 1406, 1350, 25906, 7, 16,
         11, 220, 17, 593, 220, 671, 3958, 82639, 8691, 723, 427, 91, 397, 151002],
    ),
}  # fmt: skip
"""Declared marks and tokens of llama.cpp (llama-cpp-python 0.3.36, ``vocab_only``) for its
vocabularies: each part tokenized by itself and put together as its server does."""
GOLDEN_TEXT = InfillText(
    "import sys\n\n\ndef add(a, b):\n",
    "\n\n\nprint(add(1, 2))  # é <|endoftext|>\n",
    "    return ",
    [("calc.py", "def mul(a, b):\n    return a * b\n")],
)


@pytest.mark.parametrize("name", GOLDEN)
def test_prompts_equal_those_of_llama_cpp(shared_data: Path, name: str) -> None:
    from engine.gguf.read import read_gguf

    marks, golden_ids = GOLDEN[name]
    file = read_gguf(shared_data / "vocab" / f"ggml-vocab-{name}.gguf")
    try:
        keys = {f"{P}{key}_token_id": token_id for key, token_id in marks.items()}
        tokenizer = Tokenizer.from_metadata({**file.metadata, **keys}, name)
        assert infill_prompt(tokenizer, GOLDEN_TEXT, 8192, 128).ids == golden_ids
    finally:
        file.close()
