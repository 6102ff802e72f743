import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from engine.errors import FileUnwritableError
from engine.gguf import write
from engine.gguf.read import read_gguf, typed_metadata
from engine.gguf.write import TensorToWrite, writing

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "caf\udce9",
    "general.alignment": np.uint32(64),
    "a.u8": np.uint8(200), "a.i8": np.int8(-3), "a.u16": np.uint16(60_000), "a.i16": np.int16(-3),
    "a.u32": np.uint32(1 << 31), "a.i32": np.int32(-3), "a.f32": np.float32(0.1),
    "a.bool": np.bool_(True),
    "a.u64": np.uint64(1 << 63), "a.i64": np.int64(-3), "a.f64": np.float64(0.1),
    "a.strings": [b"one", b"\xff", b"drei"], "a.scores": np.array([0.5, -1], np.float32),
    "a.kinds": np.array([1, -1], np.int32), "a.flags": np.array([True, False]),
    "a.int": 7, "a.float": 0.5, "a.yes": False,
}  # fmt: skip
TENSORS = [
    TensorToWrite("token_embd.weight", (3, 64), "Q8_0"),
    TensorToWrite("output_norm.weight", (5,), "F32"),
    TensorToWrite("blk.0.ffn_up_exps.weight", (2, 3, 32), "Q4_0"),
]


def data_of(tensor: TensorToWrite) -> bytes:
    return np.random.default_rng(len(tensor.name)).bytes(tensor.size_bytes)


def write_all(path: Path) -> None:
    with writing(path, METADATA, TENSORS) as out:
        for tensor in TENSORS:
            data = data_of(tensor)
            out.write(data[:7])
            out.write(np.frombuffer(data[7:], np.uint8))


def test_a_written_file_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    write_all(tmp_path / "m.gguf")
    assert os.listdir(tmp_path) == ["m.gguf"]
    gguf = read_gguf(tmp_path / "m.gguf")
    table = [(info.name, info.shape, info.type_name) for info in gguf.tensors.values()]
    assert table == TENSORS
    for tensor in TENSORS:
        info = gguf.tensors[tensor.name]
        assert info.offset_bytes % 64 == 0
        assert gguf.map[info.offset_bytes : info.offset_bytes + info.size_bytes] == data_of(tensor)
    read = typed_metadata(gguf)
    assert list(read) == list(METADATA)
    for key, value in METADATA.items():
        if isinstance(value, (np.generic, np.ndarray)):
            assert read[key].dtype == value.dtype, key
        assert (list(read[key]) if np.ndim(value) else read[key]) == (
            list(value) if np.ndim(value) else value
        ), key
    assert [read[key].dtype for key in ("a.int", "a.float", "a.yes")] == [
        np.uint32,
        np.float32,
        np.bool_,
    ]
    gguf.close()


def test_metadata_survives_a_second_writing(tmp_path: Path) -> None:
    write_all(tmp_path / "first.gguf")
    gguf = read_gguf(tmp_path / "first.gguf")
    with writing(
        tmp_path / "second.gguf", typed_metadata(gguf) | {"a.none": np.zeros(0, np.int32)}, TENSORS
    ) as out:
        for tensor in TENSORS:
            out.write(data_of(tensor))
    gguf.close()
    assert (tmp_path / "first.gguf").read_bytes() == (tmp_path / "second.gguf").read_bytes()


def test_the_reader_of_the_gguf_package_reads_the_file(tmp_path: Path) -> None:
    write_all(tmp_path / "m.gguf")
    reader = GGUFReader(tmp_path / "m.gguf")
    for tensor, expected in zip(reader.tensors, TENSORS, strict=True):
        assert (tensor.name, tuple(reversed(tensor.shape))) == (expected.name, expected.shape)
        assert tensor.data.tobytes() == data_of(expected)


@pytest.mark.parametrize("n_bytes", [0, 20, 1_000])
def test_a_tensor_too_short_or_too_long_leaves_no_file(tmp_path: Path, n_bytes: int) -> None:
    with (
        pytest.raises(ValueError, match="bytes"),
        writing(tmp_path / "m.gguf", {}, [TensorToWrite("x", (8,), "F32")]) as out,
    ):
        out.write(bytes(n_bytes))
    assert os.listdir(tmp_path) == []


def test_rows_of_incomplete_blocks_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="no whole blocks of Q4_K"),
        writing(tmp_path / "m.gguf", {}, [TensorToWrite("x", (2, 96), "Q4_K")]),
    ):
        pass


def test_a_source_that_cannot_be_read_keeps_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"before")
    with pytest.raises(FileNotFoundError), writing(tmp_path / "m.gguf", METADATA, TENSORS) as out:
        out.write((tmp_path / "source").read_bytes())
    assert os.listdir(tmp_path) == ["m.gguf"]
    assert (tmp_path / "m.gguf").read_bytes() == b"before"


def test_a_disk_without_room_is_refused_before_any_work(tmp_path: Path) -> None:
    huge = TensorToWrite("x", (1 << 30, 1 << 20), "F32")
    with (
        pytest.raises(
            FileUnwritableError,
            match=r"m.gguf: needs .* GB and its disk has .* left \(make room, or",
        ),
        writing(tmp_path / "m.gguf", {}, [huge]),
    ):
        pytest.fail("work began")


def test_a_full_disk_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(write.os, "fsync", full)
    with pytest.raises(
        FileUnwritableError, match=r"m.gguf: cannot be written: No space left on device"
    ):
        write_all(tmp_path / "m.gguf")
    assert os.listdir(tmp_path) == []


def test_a_missing_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        FileUnwritableError, match=r"cannot be written: No such file .* \(choose another folder\)"
    ):
        write_all(tmp_path / "none" / "m.gguf")


def test_a_killed_process_leaves_no_model(tmp_path: Path) -> None:
    code = (
        "import sys, time; from tests.engine.gguf.test_write import *\n"
        "with writing(sys.argv[1], METADATA, TENSORS) as out:\n"
        "    out.write(bytes(9)); print('in', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "m.gguf")], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"in\n"
        child.send_signal(signal.SIGKILL)
    (partial_file,) = os.listdir(tmp_path)
    assert partial_file.startswith(".jalopy-")
    assert partial_file.endswith(".part")
