"""Machine code built ahead: which a processor may run, what is checked before it is linked, and
what goes without."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from engine import ahead, build_ahead
from engine.machine import level
from engine.machine.code import ENGINE

ROOT = ENGINE.parent


def with_features(
    monkeypatch: pytest.MonkeyPatch, features: frozenset[str], arm64: bool = False
) -> str | None:
    """Return the name of the pack for a Linux processor with these features."""
    monkeypatch.setattr(level, "FEATURES", features)
    monkeypatch.setattr(level, "HAS_ARM64", arm64)
    monkeypatch.setattr(
        ahead.llvm, "get_process_triple", lambda: ahead.ARM64 if arm64 else ahead.X86_64
    )
    return ahead.target_name()


@pytest.mark.parametrize("name", ahead.TARGETS)
def test_no_pack_uses_what_the_processor_lacks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = ahead.TARGETS[name]
    arm64 = target.triple == ahead.ARM64
    assert with_features(monkeypatch, target.features, arm64) == name
    assert with_features(monkeypatch, target.features | {"sha", "aes"}, arm64) == name
    for feature in target.features:
        target_name = with_features(monkeypatch, target.features - {feature}, arm64)
        assert target_name is None or ahead.TARGETS[target_name].features <= target.features - {
            feature
        }


def test_a_processor_of_another_form_gets_no_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    core_2 = ahead.TARGETS["sse2"].features | {"ssse3"}
    piledriver = ahead.TARGETS["f16c"].features | {"fma"}
    assert with_features(monkeypatch, core_2) is None
    assert with_features(monkeypatch, piledriver) is None
    skylake_x = ahead.TARGETS["avx512"].features - {"avx512vnni"}
    assert with_features(monkeypatch, skylake_x) == "avx2"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert with_features(monkeypatch, ahead.TARGETS["neon"].features, arm64=True) is None


def test_every_pack_is_a_form_of_its_own() -> None:
    forms = [
        level.traits(target.features, target.triple == ahead.ARM64)
        for target in ahead.TARGETS.values()
    ]
    assert len({*forms}) == len(forms)


@cache
def imported(file: Path) -> set[Path]:
    """Return the engine's files that a file imports anywhere, as Python itself reads it."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names += inner if all(map(ahead._file_of, inner)) else [node.module, *inner]
    return {
        file
        for name in names
        if name.startswith("engine") and (file := ahead._file_of(name)) is not None
    }


def test_a_hash_covers_every_source_that_a_kernel_imports() -> None:
    modules = {kernel_name.partition(":")[0] for kernel_name in build_ahead.kernel_places()}
    assert len(modules) > 50
    for module in modules:
        covered = ahead.sources_of(module)
        reached = {
            source for file in covered for source in imported(file) if ahead._is_compiled(source)
        }
        assert ahead._file_of(module) in covered
        assert ahead._file_of("engine.kernels") not in covered, (
            "a new operation would make it stale"
        )
        assert reached <= covered, module
    assert ahead.source_hash("engine.quants.q4_k") != ahead.source_hash("engine.quants.q5_k")


KERNELS = {
    "engine.quants.q8_0:embed": ahead.CompiledKernel("a" * 32, ("memset",), b"machine code" * 50),
    "engine.kernels.add:add": ahead.CompiledKernel("b" * 32, (), b"other code" * 40),
}


def test_a_pack_holds_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "packs" / "avx2.pack"
    ahead.write_pack(path, KERNELS)
    first = path.read_bytes()
    assert ahead.read_pack(path) == KERNELS
    ahead.write_pack(path, dict(reversed(KERNELS.items())))
    assert path.read_bytes() == first
    assert ahead.read_pack(tmp_path / "missing.pack") == {}


def test_a_damaged_pack_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "avx2.pack"
    ahead.write_pack(path, KERNELS)
    sound = path.read_bytes()
    for index in range(len(sound)):
        path.write_bytes(
            bytes([*sound[:index], sound[index] ^ 1 << index % 8, *sound[index + 1 :]])
        )
        assert ahead.read_pack(path) == {}
    for n in range(len(sound)):
        path.write_bytes(sound[:n])
        assert ahead.read_pack(path) == {}


PLACES = [
    "engine.quants.q8_0:embed",
    "engine.kernels.share:reset_claims",
    "engine.kernels.prefetch_pages:stream",
]
"""Small kernels; the last calls a function of C."""
SESSION = """
import sys
from pathlib import Path
from engine import ahead
ahead.PACKS = Path({packs!r})
{before}
print([ahead.linked(place) is not None for place in {places!r}], "numba" in sys.modules)
"""


def loading_report(packs: Path, preamble: str = "") -> str:
    """Return a new process's report on the kernels of some packs: which were linked, and whether
    numba was imported."""
    code = SESSION.format(packs=str(packs), places=PLACES, before=preamble)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a pack of a few kernels, built for this processor."""
    name = ahead.target_name()
    if name is None:
        pytest.skip("no packs are made for processors of this form")
    pack = build_ahead.Pack(name, tmp_path_factory.mktemp("packs"))
    pack.build(PLACES)
    pack.write()
    return pack.path.parent


@pytest.mark.slow
def test_what_was_built_is_linked_without_numba(packs: Path) -> None:
    assert loading_report(packs) == "[True, True, True] False"


@pytest.mark.slow
def test_what_is_stale_or_cannot_be_linked_is_compiled(packs: Path) -> None:
    changed = "ahead._digest = lambda file: b'another source'"
    assert loading_report(packs, changed) == "[False, False, False] False"
    lacks = "ahead.llvm.address_of_symbol = lambda name: None"
    assert loading_report(packs, lacks) == "[True, True, False] False"
    assert loading_report(packs / "missing") == "[False, False, False] False"


@pytest.mark.slow
def test_linked_and_compiled_kernels_agree_to_the_bit(
    packs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.quants import q8_0
    from engine.quants.base import QUANT_TYPES
    from tests.engine.kernel_call import embed, random_weights

    rows = random_weights(QUANT_TYPES["Q8_0"], 4, 256)
    pack = ahead.read_pack(next(packs.glob("*.pack")))
    monkeypatch.setattr(ahead, "own_pack", lambda: pack)
    linked = ahead._link("engine.quants.q8_0:embed")
    assert linked not in (None, q8_0.embed.compiled.address)
    results = []
    for address in (linked, None):
        monkeypatch.setattr(ahead, "linked", lambda kernel_name, address=address: address)
        results.append(embed(QUANT_TYPES["Q8_0"], rows, [0, 3, 1], 256))
    assert np.array_equal(*results)


def test_the_repository_has_a_pack() -> None:
    assert [*ahead.PACKS.glob("*.pack")]


@pytest.mark.parametrize("path", sorted(ahead.PACKS.glob("*.pack")), ids=lambda path: path.stem)
def test_a_pack_of_the_repository_is_sound_and_small(path: Path) -> None:
    kernels = ahead.read_pack(path)
    assert path.stem in ahead.TARGETS
    assert kernels
    assert kernels.keys() <= {*build_ahead.kernel_places()}
    for kernel_name, kernel in kernels.items():
        assert (
            {*kernel.needs} == {*build_ahead.undefined_symbols(kernel.code)} <= build_ahead.HELPERS
        ), kernel_name
    assert path.stat().st_size < 800_000
