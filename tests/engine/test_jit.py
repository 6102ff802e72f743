"""The kernel cache: where machine code is kept, and what a start with a warm cache does without."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from engine import jit
from engine.kernels import share
from engine.machine import code

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
_LOAD = """
{before}
import sys
import numpy as np
from tests.engine import compiles_all
from engine.kernels.entries import run_entry
from engine.kernels.records import LOGITS
from engine.machine.code import reporting_compiling
from engine.quants import q8_0

told = []
with reporting_compiling(lambda: told.append(1)):
    q8_0.embed.address
print("compiled" if told else "loaded")
assert run_entry("largest logit", LOGITS, logits=np.array([1, 3, 2], np.float32), n=3)[LOGITS.result // 8] == 1
print("numba.np.arrayobj" in sys.modules, "numba.np.linalg" in sys.modules)
"""


def run(program: str, cache: Path) -> str:
    env = {**os.environ, "JALOPY_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_machine_code_is_kept_and_loaded_without_the_compiler(tmp_path: Path) -> None:
    """Use our own cache even if numba was imported before."""
    kept_before = {*ROOT.glob("engine/**/*.nbi")}
    cache = tmp_path / "cache"
    first, second = (run(_LOAD.format(before=preamble), cache) for preamble in ("import numba", ""))
    assert (first.split()[0], first.split()[-1]) == ("compiled", "True")
    assert (second.split()[0], second.split()[-1]) == ("loaded", "False")
    names = {path.name.partition("-")[0] for path in cache.rglob("*.nbi")}
    assert {"embed.engine.quants.q8_0.embed", "sampling_kernels.largest_logit"} <= names
    assert {*ROOT.glob("engine/**/*.nbi")} == kept_before


def test_a_kernel_that_a_function_made_needs_a_name() -> None:
    """Look machine code up by name alone, so functions that one factory makes need names."""

    def nameless(op: int, thread: int, n_threads: int) -> None:
        pass

    with pytest.raises(
        ValueError, match=r"nameless has no name of its own: declare it with kernels_of"
    ):
        jit.kernel(nameless)
    assert (
        jit.kernels_of("engine.quants.q4_k", matvec=nameless)[0].place
        == "engine.quants.q4_k:matvec"
    )


@pytest.mark.smoke
def test_without_a_cache_directory_everything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a file, not a directory"
    path.touch()
    monkeypatch.setenv("JALOPY_CACHE_DIR", str(path))
    monkeypatch.setattr(jit, "CACHE_DIRECTORY", code._cache_directory())
    assert jit.CACHE_DIRECTORY is None
    reports: list[int] = []
    for n in (1, 2):
        with code.reporting_compiling(lambda n=n: reports.append(n)):
            assert jit.kernel(share.reset_claims.function).compiled.address
    assert reports == [1, 2]


_HARMED = """
from pathlib import Path

from numba.core import caching

from engine import jit
from engine.machine.code import reporting_compiling
from engine.kernels import share
from tests.engine import compiles_all


def compiles() -> bool:
    told = []
    with reporting_compiling(lambda: told.append(1)):
        assert jit.kernel(share.reset_claims.function).address  # the smallest kernel
    return bool(told)


def full(*_):
    raise OSError(28, "No space left on device")
"""
_DAMAGED = r"""
def zeroed(raw):
    return raw[: len(raw) // 2] + b"\0" * 512 + raw[len(raw) // 2 + 512 :]


def of_another_version(raw):  # without a checksum
    return raw[jit.CHECKSUM_BYTES :]


assert compiles()
harms = zeroed, of_another_version, lambda raw: b""
for kind in "nbi", "nbc":
    for harm in harms:
        files = [*jit.CACHE_DIRECTORY.rglob(f"*.{kind}")]
        assert files
        for file, content in [(file, harm(file.read_bytes())) for file in files]:
            file.write_bytes(content)
        assert compiles(), (kind, harm)
        assert not compiles(), (kind, harm)
assert "was damaged" in (jit.CACHE_DIRECTORY / jit.DAMAGED_LOG).read_text()
"""
_FULL = """
for at, name in (
    (caching.IndexDataCacheFile, "_save_data"),
    (caching.IndexDataCacheFile, "_save_index"),
    (caching._CacheLocator, "ensure_cache_path"),
):
    sound = getattr(at, name)
    setattr(at, name, full)
    for file in [*jit.CACHE_DIRECTORY.rglob("*.nb[ci]")]:
        file.unlink()
    compiles()
    compiles()
    assert not [*jit.CACHE_DIRECTORY.rglob("*.nbc")], name  # so both were compiled
    setattr(at, name, sound)
assert compiles()
assert not compiles()
"""


def test_every_flipped_bit_and_every_cut_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "CACHE_DIRECTORY", tmp_path)
    file = tmp_path / "kernel.1.nbc"
    content = b"machine code" * 5
    sound = jit._checksum_of(file.name, content) + content
    file.write_bytes(sound)
    assert jit.read_checked(file) == content
    flipped = [
        bytes([*sound[:index], sound[index] ^ 1 << bit, *sound[index + 1 :]])
        for index in range(len(sound))
        for bit in range(8)
    ]
    for harmed in [*flipped, *(sound[:n] for n in range(len(sound)))]:
        file.write_bytes(harmed)
        with pytest.raises(jit.DamagedCodeError):
            jit.read_checked(file)
    foreign = tmp_path / "other.1.nbc"
    foreign.write_bytes(sound)  # whole, but of another function
    with pytest.raises(jit.DamagedCodeError):
        jit.read_checked(foreign)


def test_a_damaged_or_full_cache_costs_a_compilation(tmp_path: Path) -> None:
    run(_HARMED + _DAMAGED + _FULL, tmp_path / "cache")


def test_every_file_with_compiled_code_names_the_cache() -> None:
    engine = ROOT / "engine"
    places = [engine / name for name in code.COMPILED_SOURCES]
    counted = {
        file for path in places for file in (path.rglob("*.py") if path.is_dir() else [path])
    }
    compiled = {
        file
        for file in engine.rglob("*.py")
        if re.search(r"^from engine\.jit import|^@jit\.", file.read_text(), re.M)
    }
    assert len(compiled) > 20
    assert compiled - counted == set()


def test_an_inner_function_is_machine_code_only_where_inlined() -> None:
    doubled = jit.inner(lambda n: 2 * n)
    assert numba.njit(lambda n: doubled(n) + 1)(4) == 9
    (compiled,) = doubled.overloads.values()
    engine = compiled.library._codegen._engine
    assert not engine.is_symbol_defined(compiled.fndesc.llvm_func_name)
