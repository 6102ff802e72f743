"""From a checkout to a program: what stands in the way is one line, and the wheel holds all that is
needed."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def bootstrap() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(ROOT / ".ci" / "bootstrap.py")))


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def patched(monkeypatch: pytest.MonkeyPatch, bootstrap: SimpleNamespace, **changes: object) -> None:
    for name, value in changes.items():
        monkeypatch.setitem(bootstrap.main.__globals__, name, value)


def test_a_python_that_is_too_old_is_named_with_what_mends_it(
    bootstrap, monkeypatch, tmp_path, capsys
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "version_info", (3, 8, 10))
    assert bootstrap.main([str(tmp_path / "venv"), "."]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("jalopy: Python 3.10 or later is needed, and ")
    assert err.endswith("is 3.8 (install a newer one, or uv, which brings one)\n")


def test_termux_is_told_to_use_a_linux_inside(bootstrap, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "prefix", "/data/data/com.termux/files/usr")
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    assert bootstrap.main([str(tmp_path / "venv"), "."]) == 1
    line = capsys.readouterr().err
    assert "proot-distro install debian" in line
    assert line.count("\n") == 1


def test_a_newer_python_on_the_path_is_taken_instead(bootstrap, monkeypatch, tmp_path):
    program(tmp_path, "python3.12", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "version_info", (3, 8, 10))
    assert bootstrap.suitable_python() == str(tmp_path / "python3.12")


def test_a_python_without_venv_names_the_package(bootstrap, monkeypatch, tmp_path, capsys):
    program(tmp_path, "python3", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    assert bootstrap.main([str(tmp_path / "venv"), "."]) == 1
    assert "sudo apt install python3-venv" in capsys.readouterr().err


def test_a_full_disk_is_refused_before_anything_is_downloaded(
    bootstrap, monkeypatch, tmp_path, capsys
):
    patched(monkeypatch, bootstrap, suitable_python=lambda: sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=123_000_000))
    assert bootstrap.main([str(tmp_path / "venv"), "."]) == 1
    assert f"{tmp_path} has 123 MB free, 600 MB are needed" in capsys.readouterr().err
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("WARNING: Retrying ... [Errno -3] Temporary failure in name resolution", "no network: "),
        (
            (
                "ERROR: Could not install packages due to an OSError: "
                "[Errno 28] No space left on device"
            ),
            "the disk is full",
        ),
        (
            "WARNING: ... ConnectTimeoutError ... Max retries exceeded",
            "the package index does not answer",
        ),
        (
            "a\nERROR: No matching distribution found for numba\nb",
            "installing failed: No matching distribution found",
        ),
        ("", "installing failed: no reason was given"),
    ],
)
def test_what_pip_fails_of_is_one_line(bootstrap, monkeypatch, tmp_path, capsys, output, line):
    (tmp_path / "said").write_text(output)
    program(
        tmp_path, "python3", f'case "$*" in *dry-run*) cat "{tmp_path}/said" >&2; exit 1;; esac'
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    patched(
        monkeypatch,
        bootstrap,
        suitable_python=lambda: str(tmp_path / "python3"),
        runs=lambda python: True,
    )
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(tmp_path / "python3")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert bootstrap.main([str(tmp_path / "venv"), "."]) == 1
    out, err = capsys.readouterr()
    assert "about 90 MB to download, once" in out
    assert err.startswith(f"jalopy: {line}")
    assert err.count("\n") == 1


PIP_SAYS = """Obtaining file:///home/me/jalopy
Collecting textual==8.2.8 (from jalopy==0.1.0)
  Downloading textual-8.2.8-py3-none-any.whl.metadata (9.0 kB)
Collecting numpy>=1.26
  Downloading numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl (16.9 MB)
"""
UV_SAYS = """Resolved 21 packages in 8ms
Downloading numpy (16.1MiB)
Downloading llvmlite (53.7MiB)
"""


@pytest.mark.parametrize(
    ("output", "progress"),
    [
        ("", "0 of about 90 MB"),
        (PIP_SAYS, "0 of about 90 MB, numpy"),
        (
            PIP_SAYS + "Collecting a\n  Downloading llvmlite-0.45.whl (53.7 MB)\n",
            "17 of about 90 MB, llvmlite",
        ),
        (
            PIP_SAYS + "  Downloading a.whl (77.5 MB)\n" + "  Downloading rich-14.whl (0.3 MB)\n",
            "94 of about 94 MB, rich",
        ),
        (PIP_SAYS + "Installing collected packages: numpy, textual\n", "unpacking"),
        (UV_SAYS, "16 of about 90 MB, llvmlite"),
        (UV_SAYS + "Prepared 20 packages in 9s\n", "unpacking"),
    ],
)
def test_progress_is_drawn_from_what_the_installer_says(bootstrap, output, progress):
    assert bootstrap.progress(output.splitlines(keepends=True)) == progress


@pytest.mark.smoke
def test_at_a_terminal_one_line_stands_for_all_of_it(bootstrap, monkeypatch, tmp_path, capsys):
    program(
        tmp_path,
        "uv",
        'for n in 1 2 3; do echo "Downloading numpy (16.1MiB)"; echo noise; done; sleep 0.5',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert bootstrap.main([str(tmp_path / "venv"), "."]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "\rInstalling, once: 32 of about 90 MB, numpy · 0 s" in out
    assert "noise" not in out


def test_what_uv_fails_of_is_one_line(bootstrap, monkeypatch, tmp_path, capsys):
    program(
        tmp_path,
        "uv",
        "echo Resolved; echo 'error: Failed to build `jalopy`' >&2; echo ' By: x' >&2; exit 2",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert bootstrap.main([str(tmp_path / "venv"), "."]) == 1
    assert capsys.readouterr().err == "jalopy: installing failed: Failed to build `jalopy`\n"


def test_uv_does_all_of_it_where_it_is_installed(bootstrap, monkeypatch, tmp_path, capsys):
    program(tmp_path, "uv", f'echo "$*" >> "{tmp_path}/calls"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "version_info", (3, 8, 10))
    venv = tmp_path / "venv"
    assert bootstrap.main([str(venv), ".[test]"]) == 0
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"venv --python >=3.10 --clear {venv}",
        f"pip install --python {venv}/bin/python -e .[test]",
    ]
    assert f"Installed: {venv}/bin/jalopy" in capsys.readouterr().out


def test_the_wheel_claims_one_name_and_runs_without_the_tree(tmp_path, monkeypatch):
    tree = tmp_path / "tree"
    dist = tmp_path / "dist"
    env = tmp_path / "env"
    no_bytecode = shutil.ignore_patterns("__pycache__")
    for name in ("app", "engine", "jalopy", "themes", "config", "starter"):
        shutil.copytree(ROOT / name, tree / name, ignore=no_bytecode, copy_function=os.symlink)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)

    def run(*command: object) -> str:
        done = subprocess.run(
            list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, timeout=250
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    # What pip does, without pip's own seconds: the backend builds, and a wheel is installed by
    # unpacking it.
    build = (
        "from setuptools.build_meta import build_wheel as b; b('../dist', {'--build-option': "
        "'--compression=stored'})"
    )
    run(sys.executable, "-c", f"import os; os.chdir('tree'); {build}")
    shutil.rmtree(tree)
    run(sys.executable, "-m", "venv", "--without-pip", env)
    site_packages = run(
        env / "bin/python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
    ).strip()
    # What it depends on, and not the editable installation: files .pth in that folder are not read.
    (Path(site_packages) / "dependencies.pth").write_text(
        sysconfig.get_path("purelib") + os.linesep
    )
    wheel = next(dist.glob("*.whl"))
    zipfile.ZipFile(wheel).extractall(site_packages)
    package = Path(site_packages) / "jalopy"
    assert {path.name for path in Path(site_packages).iterdir()} == {
        "jalopy",
        "dependencies.pth",
        f"{wheel.stem[:12]}.dist-info",
    }
    for folder, kinds in {
        "app": ("py", "tcss", "txt", "html", "css", "js"),
        "engine": ("py", "pack"),
        "themes": ("toml",),
        "config": ("toml",),
        "starter": ("gguf", "json"),
    }.items():
        for suffix in kinds:
            files = {path.relative_to(ROOT) for path in (ROOT / folder).rglob(f"*.{suffix}")}
            assert {
                path.relative_to(package) for path in (package / folder).rglob(f"*.{suffix}")
            } == files
    # Folders of others with these names change nothing: named by a variable, the current one, or in
    # this installation.
    for name in ("app", "engine", "config", "themes", "starter"):
        for folder in (tmp_path, Path(site_packages)):
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text("raise SystemExit('foreign')")
    (tmp_path / "page.html").write_text("<p>words")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    script = (
        "from importlib.metadata import distribution; (own,) = "
        "distribution('jalopy').entry_points; own.load()()"
    )
    assert "llama" in run(env / "bin/python", "-c", script, "inspect", "starter")
    assert "memory" in run(env / "bin/python", "-m", "jalopy", "help", "threads")
    code = f"""import sys; sys.path.insert(0, {str(package)!r})
from app.documents.read import read_documents; print(read_documents(["page.html"]).documents[0].text)"""
    for safe_path in ("", "1"):
        monkeypatch.setenv("PYTHONSAFEPATH", safe_path)
        assert run(env / "bin/python", "-c", code) == "words\n"
