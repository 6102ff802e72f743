import sys
from pathlib import Path

import pytest

from app.program import manual
from app.program.installing import install_command


@pytest.mark.parametrize(
    ("files", "command"),
    [
        (["bin/pip"], "'{}/bin/python' -m pip install keyring"),
        (["pipx_metadata.json"], "pipx inject 'a b' keyring"),
        (["uv-receipt.toml"], "uv pip install --python '{}/bin/python' keyring"),
    ],
)
def test_the_command_installs_for_the_running_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], command: str
) -> None:
    prefix = tmp_path / "a b"
    (prefix / "bin").mkdir(parents=True)
    for name in files:
        (prefix / name).touch()
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin/python"))
    assert install_command("keyring") == command.format(prefix)


def test_the_manual_names_the_command_of_this_installation() -> None:
    assert f"({install_command('keyring')}; keyring set jalopy" in " ".join(
        manual.page("server").split("\n")
    )
