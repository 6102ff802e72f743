"""Machine code built ahead: which a processor may run, what is checked before it is linked, and
what goes without."""

import ast
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from engine import ahead, build_ahead
from engine.idle_build import IdleBuild
from engine.machine import packs, processor
from engine.machine.code import ENGINE

ROOT = ENGINE.parent


def with_features(
    monkeypatch: pytest.MonkeyPatch, features: frozenset[str], arm64: bool = False
) -> str | None:
    """Return the name of the pack for a Linux processor with these features."""
    monkeypatch.setattr(processor, "FEATURES", features)
    monkeypatch.setattr(processor, "HAS_ARM64", arm64)
    monkeypatch.setattr(
        packs.llvm, "get_process_triple", lambda: packs.ARM64 if arm64 else packs.X86_64
    )
    return packs.own_name()


@pytest.mark.parametrize("name", packs.TARGETS)
def test_no_pack_uses_what_the_processor_lacks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = packs.TARGETS[name]
    arm64 = target.triple == packs.ARM64
    assert with_features(monkeypatch, target.features, arm64) == name
    assert with_features(monkeypatch, target.features | {"sha", "aes"}, arm64) == name
    for feature in target.features:
        target_name = with_features(monkeypatch, target.features - {feature}, arm64)
        assert target_name is None or packs.TARGETS[target_name].features <= target.features - {
            feature
        }


def test_a_processor_of_another_form_gets_no_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    core_2 = packs.TARGETS["sse2"].features | {"ssse3"}
    piledriver = packs.TARGETS["f16c"].features | {"fma"}
    assert with_features(monkeypatch, core_2) is None
    assert with_features(monkeypatch, piledriver) is None
    skylake_x = packs.TARGETS["avx512"].features - {"avx512vnni"}
    assert with_features(monkeypatch, skylake_x) == "avx2"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert with_features(monkeypatch, packs.TARGETS["neon"].features, arm64=True) is None


def test_every_pack_is_a_form_of_its_own() -> None:
    forms = [
        processor.traits(target.features, target.triple == packs.ARM64)
        for target in packs.TARGETS.values()
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
            names += inner if all(map(packs._file_of, inner)) else [node.module, *inner]
    return {
        file
        for name in names
        if name.startswith("engine") and (file := packs._file_of(name)) is not None
    }


def test_a_hash_covers_every_source_that_a_kernel_imports() -> None:
    modules = {kernel_name.partition(":")[0] for kernel_name in build_ahead.kernel_places()}
    assert len(modules) > 50
    for module in modules:
        covered = packs.sources_of(module)
        reached = {
            source for file in covered for source in imported(file) if packs._is_compiled(source)
        }
        assert packs._file_of(module) in covered
        assert packs._file_of("engine.kernels") not in covered, (
            "a new operation would make it stale"
        )
        assert reached <= covered, module
    assert packs.source_hash("engine.quants.q4_k") != packs.source_hash("engine.quants.q5_k")


KERNELS = {
    "engine.quants.q8_0:embed": packs.CompiledKernel("a" * 32, ("memset",), b"machine code" * 50),
    "engine.kernels.add:add": packs.CompiledKernel("b" * 32, (), b"other code" * 40),
}


def test_a_pack_holds_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "packs" / "avx2.pack"
    packs.write_pack(path, KERNELS)
    first = path.read_bytes()
    assert packs.read_pack(path) == KERNELS
    packs.write_pack(path, dict(reversed(KERNELS.items())))
    assert path.read_bytes() == first
    assert packs.read_pack(tmp_path / "missing.pack") == {}


def test_a_damaged_pack_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "avx2.pack"
    packs.write_pack(path, KERNELS)
    sound = path.read_bytes()
    for index in range(len(sound)):
        path.write_bytes(
            bytes([*sound[:index], sound[index] ^ 1 << index % 8, *sound[index + 1 :]])
        )
        assert packs.read_pack(path) == {}
    for n in range(len(sound)):
        path.write_bytes(sound[:n])
        assert packs.read_pack(path) == {}


FEATURES_OF_AMX = packs.TARGETS["amx"].features | {"avxvnni", "aes"}
PLACE = "engine.kernels.add:add"


def write_small_pack(folder: Path, name: str, n_fresh: int = 1, n_stale: int = 0) -> None:
    """Write a pack with numbers of kernels of today's sources and of others."""
    today = packs.source_hash("engine.kernels.add")
    kernels = {
        f"{PLACE}{k}": packs.CompiledKernel(today if k < n_fresh else "0" * 32, (), b"code")
        for k in range(n_fresh + n_stale)
    }
    packs.write_pack(folder / f"{name}.pack", kernels)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return the two folders of packs, both empty, of a processor with AMX."""
    folders = tmp_path / "repository", tmp_path / "cache"
    monkeypatch.setattr(packs, "PACKS", folders[0])
    monkeypatch.setattr(packs, "CACHE_DIRECTORY", folders[1])
    monkeypatch.setattr(processor, "IS_CHOSEN", False)
    text = ",".join(f"+{name}" for name in sorted(FEATURES_OF_AMX))
    monkeypatch.setattr(processor, "FEATURE_TEXT", text)
    assert with_features(monkeypatch, FEATURES_OF_AMX) == "amx"
    return folders


def chosen() -> tuple[str, bool]:
    """Return the level that a new process uses, and whether nothing better could be built."""
    choice = packs.choice.__wrapped__()
    return choice.name, choice.is_best


def test_a_missing_pack_makes_way_for_a_lower_level(folders: tuple[Path, Path]) -> None:
    repository, cache = folders
    assert chosen() == ("amx", False), "without packs, the processor's own kernels are compiled"
    write_small_pack(repository, "sse4")
    assert chosen() == ("sse4", False)
    write_small_pack(repository, "avx2")
    assert chosen() == ("avx2", False)
    write_small_pack(cache, "amx")
    assert chosen() == ("amx", True)


def test_a_pack_without_fresh_kernels_is_no_pack(folders: tuple[Path, Path]) -> None:
    write_small_pack(folders[0], "avx2", 0, 6)
    assert chosen() == ("amx", False)


def test_a_stale_pack_makes_way_for_a_fresh_one(folders: tuple[Path, Path]) -> None:
    repository, cache = folders
    write_small_pack(repository, "amx", 5, 1)
    assert chosen() == ("amx", False)
    write_small_pack(repository, "avx2", 6)
    assert chosen() == ("avx2", False)
    write_small_pack(repository, "avx2", 4, 2)
    assert chosen() == ("amx", False), "of stale packs, the one with the most fresh kernels"
    write_small_pack(cache, "amx", 6)
    assert chosen() == ("amx", True)
    (cache / "amx.pack").write_bytes(b"damaged")
    assert chosen() == ("amx", False)


def test_a_lower_level_uses_only_its_own_features(folders: tuple[Path, Path]) -> None:
    write_small_pack(folders[0], "avx2")
    words = packs.choice.__wrapped__().compiled_features.split(",")
    assert {word[1:] for word in words if word[0] == "+"} == packs.TARGETS["avx2"].features
    assert {"-avx512f", "-avx512vnni", "-amx-int8", "-avxvnni"} <= {*words}


def test_a_chosen_processor_gets_no_lower_level(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_small_pack(folders[0], "avx2")
    monkeypatch.setattr(processor, "IS_CHOSEN", True)
    assert chosen() == ("amx", False)


def test_a_processor_of_a_form_without_packs_begins_lower(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    piledriver = packs.TARGETS["f16c"].features | {"fma"}
    assert with_features(monkeypatch, piledriver) is None
    own = packs.own_target()
    assert own[1].features == piledriver
    assert chosen() == (own[0], False)
    write_small_pack(folders[0], "f16c")
    assert chosen() == ("f16c", False)
    write_small_pack(folders[1], own[0])
    assert chosen() == (own[0], True)
    with_features(monkeypatch, piledriver | {"aes"})
    assert packs.own_target()[0] != own[0], "processors that share a directory share no pack"
    assert chosen() == ("f16c", False)


PLACES = [
    "engine.quants.q8_0:embed",
    "engine.kernels.share:reset_claims",
    "engine.kernels.prefetch_pages:stream",
]
"""Small kernels; the last calls a function of C."""
SESSION = """
import sys
from pathlib import Path
from engine.machine import packs
packs.PACKS = Path({packs!r})
from engine import ahead
{before}
print([ahead.linked(place) is not None for place in {places!r}], "numba" in sys.modules)
"""


def loading_report(packs_folder: Path, preamble: str = "") -> str:
    """Return a new process's report on the kernels of some packs: which were linked, and whether
    numba was imported."""
    code = SESSION.format(packs=str(packs_folder), places=PLACES, before=preamble)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a pack of a few kernels, built for this processor."""
    name = packs.own_name()
    if name is None:
        pytest.skip("no packs are made for processors of this form")
    pack = build_ahead.Pack(name, packs.TARGETS[name], tmp_path_factory.mktemp("packs"))
    pack.build([place for place in pack.missing if place in PLACES])
    pack.write()
    return pack.path.parent


@pytest.mark.slow
def test_what_was_built_is_linked_without_numba(built: Path) -> None:
    assert loading_report(built) == "[True, True, True] False"


@pytest.mark.smoke
@pytest.mark.slow
def test_what_is_stale_or_cannot_be_linked_is_compiled(built: Path) -> None:
    changed = "packs._digest = lambda file: b'another source'"
    assert loading_report(built, changed) == "[False, False, False] False"
    lacks = "ahead.llvm.address_of_symbol = lambda name: None"
    assert loading_report(built, lacks) == "[True, True, False] False"
    assert loading_report(built / "missing") == "[False, False, False] False"


@pytest.mark.slow
def test_linked_and_compiled_kernels_agree_to_the_bit(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.quants import q8_0
    from engine.quants.base import QUANT_TYPES
    from tests.engine.kernel_call import embed, random_weights

    rows = random_weights(QUANT_TYPES["Q8_0"], 4, 256)
    pack = packs.read_pack(next(built.glob("*.pack")))
    monkeypatch.setattr(ahead, "choice", lambda: packs.choice()._replace(kernels=pack))
    linked = ahead._link("engine.quants.q8_0:embed")
    assert linked not in (None, q8_0.embed.compiled.address)
    results = []
    for address in (linked, None):
        monkeypatch.setattr(ahead, "linked", lambda kernel_name, address=address: address)
        results.append(embed(QUANT_TYPES["Q8_0"], rows, [0, 3, 1], 256))
    assert np.array_equal(*results)


@pytest.mark.slow
def test_a_pack_built_in_idle_time_is_linked_at_the_next_start(built: Path, tmp_path: Path) -> None:
    process = IdleBuild(tmp_path, PLACES)
    own_name = packs.own_target()[0]
    finish(process)
    idle_pack = packs.read_pack(tmp_path / f"{own_name}.pack")
    assert idle_pack == packs.read_pack(built / f"{own_name}.pack"), "the same as make packs builds"
    after = f"packs.CACHE_DIRECTORY = Path({str(tmp_path)!r})"
    assert loading_report(tmp_path / "missing", after) == "[True, True, True] False"


@pytest.mark.slow
def test_an_interrupted_build_is_resumed(tmp_path: Path) -> None:
    own_name = packs.own_target()[0]
    first = IdleBuild(tmp_path, PLACES)
    first.step()
    first.close()
    first.wait()
    unfinished = tmp_path / build_ahead.UNFINISHED / f"{own_name}.pack"
    assert len(packs.read_pack(unfinished)) == 1
    assert not (tmp_path / f"{own_name}.pack").exists(), "a part would pass for a complete pack"
    finish(IdleBuild(tmp_path, PLACES))
    assert packs.read_pack(tmp_path / f"{own_name}.pack").keys() == {*PLACES}


@pytest.mark.slow
def test_a_build_in_idle_time_begins_anew_when_large(tmp_path: Path) -> None:
    """Here any process is too large; the one that takes its place has the usual limit."""
    own_name = packs.own_target()[0]
    code = "from engine import build_ahead as b; b.MOST_IDLE_BYTES = 0; b.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--idle", str(tmp_path), *PLACES], cwd=ROOT,
        env=build_ahead.environment_of(packs.own_target()[1]), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, bufsize=0,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    built = []
    for _ in PLACES:
        process.stdin.write("\n")
        built.append(process.stdout.readline().strip())
    assert process.wait() == 0
    assert sorted(built) == sorted(PLACES)
    assert packs.read_pack(tmp_path / f"{own_name}.pack").keys() == {*PLACES}


@pytest.mark.slow
def test_only_one_process_builds_in_idle_time(tmp_path: Path) -> None:
    first = IdleBuild(tmp_path, PLACES)
    first.step()
    while first.step() and not (tmp_path / build_ahead.UNFINISHED / "lock").exists():
        time.sleep(0.01)
    second = IdleBuild(tmp_path, PLACES)
    second.wait()
    assert not second.is_complete
    assert not second.step()
    finish(first)
    assert first.is_complete


FIRST_TOKENS = """
import sys
from pathlib import Path
from engine.machine import packs
packs.PACKS = Path({packs!r})
from engine import Model, Sampling
model = Model.open({model!r})
session = model.session(64)
session.prefill(model.tokenizer.encode("Paris is the capital of"))
text = "".join(token.text for token in session.generate(Sampling(temperature=0.0), 4))
print([packs.choice().name, text, "numba" in sys.modules])
model.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", packs.TARGETS)
def test_a_first_start_compiles_nothing(name: str, tmp_path: Path) -> None:
    """The only pack is one of this level, which may be lower than the processor's."""
    if name not in packs._runnable():
        pytest.skip(f"this processor cannot run code for {name}")
    if packs.TARGETS[name].triple == packs.ARM64:
        pytest.skip("packs are made for x86-64")
    pack = packs.read_pack(packs.PACKS / f"{name}.pack")
    assert pack, "missing or damaged: make packs"
    assert not build_ahead.stale(pack), "make packs"
    folder = tmp_path / "packs"
    folder.mkdir()
    (folder / f"{name}.pack").symlink_to(packs.PACKS / f"{name}.pack")
    code = FIRST_TOKENS.format(packs=str(folder), model=str(ROOT / "starter" / "starter.gguf"))
    variables = {key: value for key, value in os.environ.items() if key != "JALOPY_OWN_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300,
        env={**variables, "JALOPY_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([name, " France.", False])


def finish(process: IdleBuild) -> None:
    """Let a process build all its kernels."""
    while process.step():
        time.sleep(0.01)
    process.close()


def test_the_repository_has_a_pack() -> None:
    assert [*packs.PACKS.glob("*.pack")]


@pytest.mark.parametrize("path", sorted(packs.PACKS.glob("*.pack")), ids=lambda path: path.stem)
def test_a_pack_of_the_repository_is_sound_and_small(path: Path) -> None:
    kernels = packs.read_pack(path)
    assert path.stem in packs.TARGETS
    assert kernels
    assert kernels.keys() <= {*build_ahead.kernel_places()}
    for kernel_name, kernel in kernels.items():
        assert (
            {*kernel.needs} == {*build_ahead.undefined_symbols(kernel.code)} <= build_ahead.HELPERS
        ), kernel_name
    assert path.stat().st_size < 800_000
