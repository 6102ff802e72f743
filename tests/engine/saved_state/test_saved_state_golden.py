"""State files that an earlier version wrote are read, to the byte, and their headers are written as they were."""

import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest

from engine.saved_state import restore_state
from engine.saved_state.layout import FILE_VERSION, Header
from tests.engine.scripted_session import ScriptedSession

GOLDEN = Path(__file__).parents[1] / "golden"
TOKENS = [5, 9, 33, 7, 8, 1, 200, 4, 4, 91, 17, 3]


@pytest.mark.parametrize(("kv", "n_bytes", "crc"), [("f16", 8192, 4014318868), ("q8_0", 4608, 596466339)])
def test_a_state_of_an_earlier_version_is_restored_to_the_byte(tmp_path: Path, kv: str, n_bytes: int, crc: int) -> None:
    path = tmp_path / "kv.state"
    shutil.copyfile(GOLDEN / f"{kv}.state", path)
    path.chmod(0o600)
    session = ScriptedSession(n_ctx=64, kv=kv)
    assert restore_state(session, path, TOKENS).tokens == len(TOKENS)  # type: ignore[arg-type]
    assert session.tokens == TOKENS
    out = np.empty(n_bytes, np.uint8)
    assert session.cache.copy_out(0, len(TOKENS), out) == n_bytes
    assert zlib.crc32(out.tobytes()) == crc


def test_the_header_is_written_as_an_earlier_version_wrote_it() -> None:
    raw = (GOLDEN / "f16.state").read_bytes()
    file_id = raw[: 256 - 32].rstrip(b"\0")[-16:]
    written = Header.of(ScriptedSession(n_ctx=64), file_id).to_bytes(FILE_VERSION)  # type: ignore[arg-type]
    assert written == raw[:256]
