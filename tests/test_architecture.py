"""Rules of the house that a machine can check."""

import ast
import re
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from engine import KV_TYPES
from engine.build_ahead import OPERATIONS
from engine.kernels import CACHE_KERNELS, KERNELS
from engine.kernels.entries import ENTRIES
from engine.models import ARCHITECTURES, ENCODERS
from engine.models.not_yet import NOT_YET
from engine.quants import QUANTS
from tests.engine.architectures.rows import ROWS
from tests.programs.plainness import COMPILED_FILES, Plainness, class_sizes, measure

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("app", "engine", "starter", "tests")


def imported_after(*statements: str) -> list[set[str]]:
    """Return the modules imported after each of the statements, which one process executes."""
    code = "import sys\n" + "\n".join(
        f"{statement}\nprint(*sys.modules)" for statement in statements
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [{name.split(".")[0] for name in line.split()} for line in done.stdout.splitlines()]


@pytest.mark.smoke
@pytest.mark.slow
def test_the_engine_imports_no_app_and_numba_only_to_compute() -> None:
    opening, computing = imported_after(
        "import engine, engine.loader, engine.tokenizer, engine.model, engine.saved_state",
        "import engine.session, engine.pipeline",
    )
    assert not {"app", "textual", "rich", "numba", "llvmlite"} & opening
    assert not {"app", "textual", "rich"} & computing


@pytest.mark.slow
def test_the_app_imports_heavy_libraries_only_where_used() -> None:
    """Run the compiler of forms in a process of its own: its native code may crash, or take minutes
    or gigabytes."""
    folders = (
        "text",
        "program",
        "machine",
        "documents",
        "reply",
        "conversations",
        "forms",
        "tools",
        "backend",
        "session",
        "models",
        "cli",
    )
    files = [file for folder in folders for file in sorted((ROOT / "app" / folder).rglob("*.py"))]
    modules = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for file in files
    ]
    assert len(modules) > 100
    forms = [
        file
        for file in (ROOT / "app").rglob("*.py")
        if re.search("(import|from) llguidance", read(file))
    ]
    assert [file.name for file in forms] == ["sandbox.py"]
    started, form, everything = imported_after(
        "import app, app.cli.dispatch",
        "import app.forms.constraint",
        f"import {', '.join(modules)}",
    )
    assert not {"numba", "llvmlite"} & started
    assert "llguidance" not in form
    assert "textual" not in everything


@cache
def read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


_IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) )?import (\((?:#.*|[^)#])*\)|[^\n(]+)", re.MULTILINE)


def imports_of(file: Path, modules: set[str]) -> set[str]:
    """Return every module that a file imports: at its top, in a function, or for types alone."""
    imported: set[str] = set()
    for module, clause in _IMPORT.findall(read(file)):
        names = re.findall(r"([\w.*]+)(?: as \w+)?", re.sub("#.*", "", clause))
        inner = {f"{module}.{name}" if module else name for name in names}
        imported |= inner | ({module} if inner - modules else set())
    return imported & modules


@pytest.mark.parametrize("top", ["app", "engine"])
def test_no_import_leads_back_to_where_it_began(top: str) -> None:
    """Late and typed imports count: a circle of files is one file in several places."""
    files = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
        for file in (ROOT / top).rglob("*.py")
    }
    circle = {name: imports_of(file, set(files)) - {name} for name, file in files.items()}
    while free := {name for name, imported in circle.items() if not imported & set(circle)}:
        circle = {name: imported for name, imported in circle.items() if name not in free}
    while ends := {
        name for name in circle if not any(name in imported for imported in circle.values())
    }:
        circle = {name: imported for name, imported in circle.items() if name not in ends}
    assert circle == {}, "these files lead to each other"


@pytest.mark.parametrize(
    ("places", "except_for", "limit"),
    [
        (["app"], [], Plainness(packed=3, conditional=12, wide=0.2, pronoun=1, riddle=0.5)),
        (
            ["engine"],
            COMPILED_FILES,
            Plainness(packed=4, conditional=12, wide=0.1, pronoun=1, riddle=0.5),
        ),
        (COMPILED_FILES, [], Plainness(packed=2, conditional=15, wide=0, pronoun=1, riddle=0.5)),
    ],
    ids=["app", "engine", "kernels"],
)
def test_the_code_becomes_no_harder_to_read(
    places: list[str], except_for: list[str], limit: Plainness
) -> None:
    """A change that makes code plainer lowers the limits (docs/decisions/plain-code.md)."""
    counts = measure([ROOT / path for path in places], [ROOT / path for path in except_for])
    too_high = [
        field.name
        for field in fields(limit)
        if getattr(counts, field.name) > getattr(limit, field.name)
    ]
    assert too_high == [], counts


def test_the_counts_see_what_is_hard_to_read(tmp_path: Path) -> None:
    plain = '"""Return nothing."""\n\ntotal = 1\ncount = 2\n'
    (tmp_path / "code.py").write_text(plain)
    assert measure([tmp_path]) == Plainness(0, 0, 0, 0, 0)
    hard = '"""What it was."""\n\none, total = 1, 2 if True else 3\ncount = 2\n# ' + "x" * 100
    (tmp_path / "code.py").write_text(hard)
    assert measure([tmp_path]) == Plainness(
        packed=500, conditional=500, wide=200, pronoun=100 / 3, riddle=100
    )


TABLES = {"Settings", "ModelConfig"}
"""Records with a field for each setting or hyperparameter of a file: their fields are rows."""


@pytest.mark.parametrize(
    ("top", "most_methods", "most_attributes"), [("app", 60, 31), ("engine", 45, 22)]
)
def test_no_class_grows_beyond_what_one_can_keep_in_mind(
    top: str, most_methods: int, most_attributes: int
) -> None:
    """Bases in the project count: an object has all of their methods and attributes."""
    too_large = [
        size
        for size in class_sizes([ROOT / top])
        if size.n_methods > most_methods
        or (size.n_attributes > most_attributes and size.name not in TABLES)
    ]
    assert too_large == []


def test_no_class_name_stands_for_two_things() -> None:
    files = [file for top in ("app", "engine") for file in (ROOT / top).rglob("*.py")]
    names = Counter(
        name for file in files for name in re.findall(r"^class (\w+)", read(file), re.MULTILINE)
    )
    assert len(names) > 500
    assert [name for name, n in names.items() if n > 1] == []


def test_no_base_class_calls_what_only_a_subclass_has() -> None:
    assert [
        file for file in (ROOT / "app").rglob("*.py") if "NotImplementedError" in read(file)
    ] == []


def test_only_the_policy_module_uses_numbas_decorators() -> None:
    decorators = {"njit", "jit", "cfunc", "vectorize", "guvectorize"}
    files = [file for file in (ROOT / "engine").rglob("*.py") if "numba" in read(file)]
    assert len(files) > 10
    for file in files:
        for node in ast.walk(ast.parse(read(file))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("numba"):
                names = {alias.name for alias in node.names}
                assert file.name == "jit.py" or not names & decorators, file
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("numba", "nb"):
                assert file.name == "jit.py" or node.attr not in decorators, file


@pytest.mark.parametrize(
    ("folder", "registry", "shared"),
    [
        ("quants", {name.rsplit(".", 1)[1] for name in QUANTS.values()}, {"__init__", "base"}),
        (
            "models",
            {name.rsplit(".", 1)[1] for name in (ARCHITECTURES | ENCODERS).values()},
            {
                "__init__",
                "base",
                "decoder",
                "experts",
                "gemma4_assistant",
                "latent",
                "predictor",
                "reading",
                "recurrent",
                "steps",
                "not_yet",
            },
        ),
    ],
)
def test_no_type_and_no_architecture_is_half_added(
    folder: str, registry: set[str], shared: set[str]
) -> None:
    files = {file.stem for file in (ROOT / "engine" / folder).glob("*.py")}
    assert files - shared == registry


def test_each_architecture_and_cache_type_has_its_tests() -> None:
    files = {
        file.stem.removeprefix("test_")
        for file in (ROOT / "tests/engine/architectures").glob("test_*.py")
    }
    names = {name.replace("-", "_") for name in ARCHITECTURES}
    assert files & {name.replace("-", "_") for name in ROWS} == set()
    assert files | {name.replace("-", "_") for name in ROWS} == names
    kernels = {file.stem.removeprefix("kv_") for file in (ROOT / "engine/kernels").glob("kv_*.py")}
    assert kernels == {name.replace("/", "_") for name in KV_TYPES}
    assert {name: kv_type.name for name, kv_type in KV_TYPES.items()} == {
        name: name for name in KV_TYPES
    }


def test_only_its_own_files_branch_on_an_architectures_name() -> None:
    name = rf"""["']({"|".join(map(re.escape, ARCHITECTURES))})["']"""
    branch = re.compile(
        rf"""architecture\W*(==|!=|\bin\b)\W*{name}|{name}\s*(==|!=|\bin\b)\s*[\w.]*architecture"""
    )
    # or it would find nothing whatever there is
    assert branch.search('if config.architecture == "llama":')
    allowed = {f"{name.rsplit('.', 1)[1]}.py" for name in ARCHITECTURES.values()}
    allowed |= {f"test_{name}" for name in allowed}
    branches = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.py")
        if file.name not in allowed and file != Path(__file__).resolve()
        for line in read(file).splitlines()
        if "architecture" in line
        and branch.search(line)
        and not line.lstrip().startswith("assert ")
    ]
    assert branches == []


def test_no_architecture_is_both_built_and_not() -> None:
    assert set(ARCHITECTURES | ENCODERS) & set(NOT_YET) == set()


def test_registered_names_lead_to_what_they_name() -> None:
    quants = [f"{module}:{operation}" for module in QUANTS.values() for operation in OPERATIONS]
    kinds = [kv_type.replace("/", "_") for kv_type in KV_TYPES]
    cache = [
        f"engine.kernels.kv_{kv_type}:{operation}"
        for kv_type in kinds
        for operation in CACHE_KERNELS.values()
    ]
    for kernel_name in [*KERNELS.values(), *ENTRIES.values(), *quants, *cache]:
        module, attribute = kernel_name.split(":")
        definition = (
            rf"^(@kernel\ndef {attribute}\(|(\w+, )*{attribute}(, \w+)* = \w+\(\s*__name__,)"
        )
        assert re.search(
            definition, read(ROOT / (module.replace(".", "/") + ".py")), re.MULTILINE
        ), kernel_name


def test_the_manual_names_all_types_and_architectures() -> None:
    page = "app/manual/formats.txt"
    assert page in (ROOT / "README.md").read_text(encoding="utf-8")
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [name for name in QUANTS if not re.search(rf"\b{name}\b", text)] == []
    assert [
        name for name in [*ARCHITECTURES, *ENCODERS, *NOT_YET] if text.count(f"`{name}`") != 1
    ] == []


def test_pages_name_existing_files_and_have_no_long_lines() -> None:
    files = [
        f"/{file.relative_to(ROOT)}"
        for top in ("jalopy", *FOLDERS)
        for file in (ROOT / top).rglob("*.*")
    ]
    for page in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(file for top in FOLDERS for file in (ROOT / top).glob("*.md")),
    ]:
        text = page.read_text(encoding="utf-8")
        names = re.findall(r"`([\w/.]+\.py)`", text)
        assert [
            name
            for name in names
            if "NAME" not in name and not any(f.endswith(f"/{name}") for f in files)
        ] == [], page
        assert [
            line for line in text.splitlines() if len(line) > 128 and not line.startswith("|")
        ] == [], page


def test_the_readme_shows_every_folder() -> None:
    folders = {
        folder.name
        for folder in ROOT.iterdir()
        if folder.is_dir() and (folder / "__init__.py").exists()
    }
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [folder for folder in sorted(folders) if f"`{folder}/`" not in text] == []


def test_names_of_tests_have_at_most_sixty_characters() -> None:
    names = [
        name
        for file in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", read(file), re.MULTILINE)
    ]
    assert len(names) > 1000
    assert [name for name in names if len(name) > 60] == []
