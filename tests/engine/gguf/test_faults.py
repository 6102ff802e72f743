"""Faults of GGUF files: functions that break a sound file, and a word of each refusal."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from engine.errors import EngineError, FileUnreadableError
from engine.gguf.read import read_gguf
from tests.engine import tiny_gguf
from tests.engine.refusals import Break, broken, check, edit, extra, refusal
from tests.engine.tiny_gguf import ARRAY, BOOL, F32, STRING, U32, U64, TinyGGUF, array, string

TOP = 2**64 - 1

# --- the file as a whole

NOT_GGUF = {
    "empty": (b"", "is empty"),
    "one byte": (b"G", "magic"),
    "magic only": (b"GGUF", "version"),
    "web page": (b"<!DOCTYPE html><html><body>Log in</body></html>", "web page"),
    "git-lfs pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "Git LFS",
    ),
    "safetensors": (struct.pack("<Q", 2) + b"{}", "safetensors"),
    "ggjt": (b"tjgg" + bytes(60), "GGJT"),
    "zip": (b"PK\x03\x04" + bytes(60), "zip"),
    "zeros": (bytes(4096), "begins with zeros"),
    "escapes": (b"\x1b[2J\x1b]0;owned\x07" * 9, "magic"),
    "byte-swapped magic": (b"FUGG" + bytes(60), "byte-swapped"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + bytes(60), "big-endian"),
    "version 0": (b"GGUF" + struct.pack("<IQQ", 0, 0, 0), "version 0"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
    "version 4": (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "version 4"),
    "version 2^32-1": (b"GGUF" + struct.pack("<IQQ", 2**32 - 1, 0, 0), "version 4294967295"),
    "header without content": (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "general.architecture"),
}


@pytest.mark.parametrize("case", NOT_GGUF)
def test_a_file_that_is_not_gguf_is_named(case: str, tmp_path: Path) -> None:
    content, word = NOT_GGUF[case]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert word in refusal(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "model.gguf")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").mkdir()
    assert "directory" in refusal(tmp_path / "model.gguf")


def test_a_fifo_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    assert "not a regular file" in refusal(tmp_path / "model.gguf")


@pytest.mark.parametrize("target", ["nowhere", "model.gguf"], ids=["dangling", "looping"])
def test_a_link_to_nothing_is_refused(target: str, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to(tmp_path / target)
    refusal(tmp_path / "model.gguf")


def test_a_file_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf")

    def deny(*_: object) -> int:  # file permissions would not stop the superuser
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", deny)
    assert "permission" in refusal(path)


def test_a_path_with_a_nul_is_refused() -> None:
    with pytest.raises(FileUnreadableError):
        read_gguf("a\0b.gguf")


@pytest.mark.parametrize("name", [b"caf\xe9.gguf", b"\x1b[31m\n.gguf", b"x" * 250 + b".gguf"])
def test_any_file_name_loads_and_is_shown_clean(name: bytes, tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    tiny = tiny_gguf.model()
    assert check(tiny.write(path)).total_bytes > 0
    tiny.drop("llama.block_count")
    with pytest.raises(EngineError, match="block_count") as caught:
        check(tiny.write(path))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 290


# --- counts and truncation

COUNTS: dict[str, tuple[Break, str]] = {
    **{
        f"n_tensors {n}": (lambda t, n=n: setattr(t, "n_tensors", n), "n_tensors")
        for n in (TOP, 2**63, 2**40, 2**32)
    },
    **{
        f"n_kv {n}": (lambda t, n=n: setattr(t, "n_kv", n), "n_kv")
        for n in (TOP, 2**63, 2**40, 2**32)
    },
    "one tensor too many": (lambda t: setattr(t, "n_tensors", len(t.tensors) + 1), "tensor 21"),
    "one tensor too few": (lambda t: setattr(t, "n_tensors", len(t.tensors) - 1), ""),
    "one key too many": (lambda t: setattr(t, "n_kv", len(t.keys) + 1), "tensor 0 (name)"),
    "one key too few": (lambda t: setattr(t, "n_kv", len(t.keys) - 1), "add_eos_token has n_dims"),
}


@pytest.mark.parametrize("case", COUNTS)
def test_a_wrong_count_is_refused(case: str, tmp_path: Path) -> None:
    break_it, word = COUNTS[case]
    assert word in refusal(broken(tmp_path, break_it))


def test_an_uncounted_optional_tensor_is_detected(tmp_path: Path) -> None:
    def hide_last(tiny: TinyGGUF) -> None:
        tiny.tensors.append(tiny.tensors.pop(tiny.tensors.index(tiny.tensor("output.weight"))))
        tiny.n_tensors = len(tiny.tensors) - 1

    assert "n_tensors" in refusal(broken(tmp_path, hide_last))


def test_a_file_cut_after_any_header_field_is_refused(tmp_path: Path) -> None:
    tiny = tiny_gguf.model(n_layers=1)
    content = tiny.to_bytes()
    path = tmp_path / "model.gguf"
    for _, end in tiny.marks:
        for cut in (end - 1, end):
            path.write_bytes(content[:cut])
            refusal(path)


def test_a_file_cut_inside_its_data_is_refused(tmp_path: Path) -> None:
    tiny = tiny_gguf.model(hidden_dim=100, n_layers=1)
    tiny.tensors.append(tiny.tensors.pop(tiny.tensors.index(tiny.tensor("output_norm.weight"))))
    sound = tiny.to_bytes()
    path = tmp_path / "model.gguf"
    for content in (sound[: len(sound) // 2], sound[:-32], sound[:-1], sound[:9000] + sound[9100:]):
        path.write_bytes(content)
        assert "past the end of the file" in refusal(path)


# --- keys and values

LONG = 1 << 30
KEYS: dict[str, tuple[Break, str]] = {
    **{
        f"length {n}": (lambda t, n=n: setattr(t.keys[1], "name_length", n), "key 1")
        for n in (TOP, 2**63, LONG, 10**6)
    },
    "empty": (lambda t: t.set(b"", 1), "empty name"),
    "twice, same": (lambda t: t.keys.append(t.keys[0]), "twice"),
    "twice, conflicting": (lambda t: t.keys.append(tiny_gguf.Key("general.architecture", U32,
                                                                 bytes(4))), "twice"),
    "not utf-8": (lambda t: t.set(b"\xff\xfe", 1), "UTF-8"),
    "escapes": (lambda t: t.set("\x1b[31mred\n", 1), "control characters"),
    "70 kB": (lambda t: t.set("k" * 70000, 1), "70000 bytes"),
    **{
        f"value type {n}": (lambda t, n=n: t.set_raw("x", n, bytes(8)), f"unknown value type {n}")
        for n in (13, 255, 2**32 - 1)
    },
    **{
        f"string length {n}": (lambda t, n=n: t.set_raw("x", STRING, string("", n)), "x needs")
        for n in (TOP, 2**63, 2**40, LONG)
    },
    **{
        f"array of {n} u64": (lambda t, n=n: t.set_raw("x", ARRAY, array(U64, n, b"")), "x needs")
        for n in (TOP, 2**63, 2**61, 2**61 + 1, LONG)
    },
    "array of 2^62+1 f32": (lambda t: t.set_raw("x", ARRAY, array(F32, 2**62 + 1, bytes(4))),
                            "x needs"),
    **{
        f"array of {n} strings": (lambda t, n=n: t.set_raw("x", ARRAY, array(STRING, n, b"")), "x")
        for n in (TOP, 2**32, LONG, 10**6)
    },
    "string in an array too long": (
        lambda t: t.set_raw("x", ARRAY, array(STRING, 2, string("a") + string("", TOP))),
        "x[1]",
    ),
    "element type 13": (lambda t: t.set_raw("x", ARRAY, array(13, 1, bytes(8))),
                        "unknown element type 13"),
    "nested array": (lambda t: t.set_raw("x", ARRAY, array(ARRAY, 1, array(U32, 1, bytes(4)))),
                     "array of arrays"),
    "20,000 levels": (lambda t: t.set_raw("x", ARRAY, array(ARRAY, 1, b"") * 20000),
                      "array of arrays"),
    "bool 2": (lambda t: t.set_raw("x", BOOL, b"\2"), "bool of value 2"),
    "bool 2 in an array": (lambda t: t.set_raw("x", ARRAY, array(BOOL, 2, b"\1\2")),
                           "bool of value 2"),
    **{
        f"alignment {n}": (lambda t, n=n: t.set("general.alignment", n), "general.alignment is")
        for n in (0, 4, 13, 2**31)
    },
    "alignment a string": (lambda t: t.set("general.alignment", "32"), "general.alignment"),
    "alignment a bool": (lambda t: t.set("general.alignment", True), "general.alignment"),
    "alignment 8, laid out at 32": (lambda t: t.set("general.alignment", 8), "general.alignment"),
    "alignment 64, laid out at 32": (lambda t: t.set("general.alignment", 64), "alignment"),
    "alignment 4096, laid out at 32": (lambda t: t.set("general.alignment", 4096), "alignment"),
}  # fmt: skip


@pytest.mark.parametrize("case", KEYS)
def test_a_broken_key_or_value_is_refused(case: str, tmp_path: Path) -> None:
    break_it, word = KEYS[case]
    # The 32 bytes of this tensor reveal a wrong alignment.
    assert word in refusal(broken(tmp_path, break_it, rope_factors=True))


def test_more_strings_than_are_supported_are_refused_early(tmp_path: Path) -> None:
    def flood(tiny: TinyGGUF) -> None:
        tiny.set_raw("x", ARRAY, array(STRING, 3 << 20, bytes(8 * (3 << 20))))

    assert "strings" in refusal(broken(tmp_path, flood))


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_a_file_laid_out_with_its_own_alignment_loads(alignment: int, tmp_path: Path) -> None:
    tiny = tiny_gguf.model(hidden_dim=102)
    tiny.set("general.alignment", alignment)
    tiny.layout_alignment = alignment
    assert check(tiny.write(tmp_path / "model.gguf")).total_bytes > 0


# --- tensors

Q = "blk.1.attn_q.weight"
NORM = "blk.0.attn_norm.weight"


TENSORS: dict[str, tuple[Break, str]] = {
    **{f"name length {n}": (edit(Q, name_length=n), "tensor 13 (name)") for n in (TOP, 2**63,
                                                                                  LONG)},
    "name empty": (edit(Q, name=""), "empty name"),
    "name of 64 bytes": (edit(Q, name="n" * 64), "64 bytes"),
    "name twice": (edit(Q, name="blk.1.attn_k.weight"), "twice"),
    "name not utf-8": (edit(Q, name=b"\xff"), "UTF-8"),
    "name with escapes": (edit(Q, name="\x1b[31m"), "control characters"),
    "an extra one": (extra("blk.0.attn_gate.weight"), "blk.0.attn_gate.weight is unknown"),
    "an extra layer": (extra("blk.2.attn_norm.weight"), "beyond llama.block_count 2"),
    **{f"n_dims {n}": (edit(Q, n_dims=n), "n_dims") for n in (0, 5, 2**20, 2**32 - 1)},
    **{f"dimension {n}": (edit(Q, dims=[n, 64]), "dimension 0") for n in (0, TOP, 2**63, 2**32)},
    "element count wraps to 0": (edit(Q, dims=[2**32, 2**32]), "dimension 0"),
    "element count wraps to the right value": (edit(Q, dims=[64, 64 + 2**58]), "dimension 1"),
    "byte count wraps to the right value": (edit(Q, dims=[64, 64, 2**50 + 1, 1]), "dimension 2"),
    "in reach by dimension, not by product": (edit(Q, dims=[10**6, 10**6, 10**6]), "past the end"),
    "119 GiB": (edit(Q, dims=[178956, 178956]), "past the end"),
    "transposed": (edit("blk.0.ffn_up.weight", dims=[96, 64]),
                   "64 x 96, the hyperparameters say 96 x 64"),
    "flattened": (edit(Q, dims=[4096]), "blk.1.attn_q.weight has shape 4096"),
    "one dimension more": (edit(Q, dims=[64, 32, 2]), "shape 2 x 32 x 64"),
    "rows for the wrong head count": (edit("blk.0.attn_k.weight", dims=[64, 16]),
                                      "attn_k.weight has shape 16 x 64"),
    "norm too short": (edit(NORM, dims=[32]), "blk.0.attn_norm.weight has shape 32"),
    **{f"type {n}": (edit(Q, ggml_type=n), f"ggml type {n}") for n in (4, 5, 31, 36, 99,
                                                                       2**32 - 1)},
    **{f"type {n}": (edit(Q, ggml_type=n), f"ggml type {n}") for n in (24, 25, 26)},
    "a type without kernels": (edit("output.weight", dims=[256, 32], ggml_type=17),
                               "output.weight"),
    "a wider type": (edit(Q, ggml_type=27), "overlaps"),
    "a wider type at the end": (edit("blk.1.ffn_down.weight", ggml_type=28), "past the end"),
    "norm in half precision": (edit(NORM, ggml_type=1), "must be F32"),
    "rows no multiple of Q4_K's block": (edit(Q, ggml_type=12), "Q4_K's block of 256"),
    "rows no multiple of Q8_0's block": (edit(Q, dims=[48, 64], ggml_type=8), "Q8_0's block of 32"),
    **{f"offset {n}": (edit(Q, offset=n), "past the end") for n in (2**40, 2**63, 2**64 - 32,
                                                                    2**64 - 12288)},
    "offset misaligned by 1": (edit(Q, offset=1), "alignment"),
    "offset misaligned by 4": (edit(Q, offset=4), "alignment"),
    "same place as another": (edit("blk.1.attn_q.weight", offset=0), "overlaps"),
    "partial overlap": (lambda t: edit("output_norm.weight", offset=len(t.tensors[0].data) - 32)(t),
                        "overlaps"),
    "all at zero": (lambda t: [setattr(tensor, "offset", 0) for tensor in t.tensors], "overlaps"),
    "at the end of the file": (
        lambda t: edit("output_norm.weight", offset=sum(len(x.data) for x in t.tensors))(t),
        "past the end",
    ),
    "no tensors": (lambda t: t.tensors.clear(), "token_embd.weight is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", TENSORS)
def test_a_broken_tensor_table_is_refused(case: str, tmp_path: Path) -> None:
    break_it, word = TENSORS[case]
    assert word in refusal(broken(tmp_path, break_it))


def test_tensors_in_another_order_with_gaps_between_them_load(tmp_path: Path) -> None:
    tiny = tiny_gguf.model()
    first, second = tiny.tensors[:2]
    filler = tiny_gguf.TensorEntry("", [0], 0, bytes(640))
    plain = tiny.to_bytes()
    at_second = len(first.data)
    first.offset = len(second.data) + len(filler.data)
    second.offset = 0
    for tensor, offset in zip(tiny.tensors[2:], _offsets(tiny)[2:], strict=True):
        tensor.offset = offset + len(filler.data)
    header_bytes = len(plain) - sum(len(tensor.data) for tensor in tiny.tensors)
    swapped = tiny.to_bytes()
    data = swapped[header_bytes:]
    content = second.data + filler.data + first.data + data[at_second + len(second.data) :]
    path = tmp_path / "model.gguf"
    path.write_bytes(swapped[:header_bytes] + content)
    weights = check(path)
    assert weights.rows(str(first.name)).tobytes() == first.data
    assert weights.rows(str(second.name)).tobytes() == second.data


def _offsets(tiny: TinyGGUF) -> list[int]:
    return [
        sum(len(tensor.data) for tensor in tiny.tensors[:index])
        for index in range(len(tiny.tensors))
    ]


@pytest.mark.parametrize("seed", range(4))
def test_random_damage_is_refused_in_one_line_or_loads(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    tiny = tiny_gguf.model(n_layers=1, vocabulary="bpe")
    content = tiny.to_bytes()
    header_bytes = tiny.marks[-1][1]
    path = tmp_path / "model.gguf"
    messages = []
    for _ in range(100):
        damaged = bytearray(content)
        for offset in rng.integers(0, header_bytes, rng.integers(1, 4)):
            damaged[offset] = rng.choice([0, 1, 8, 9, 127, 128, 255, rng.integers(256)])
        path.write_bytes(damaged)
        try:
            check(path)
        except EngineError as error:
            messages.append(str(error))
    assert messages
    assert all(message.isprintable() and len(message) < 290 for message in messages)
