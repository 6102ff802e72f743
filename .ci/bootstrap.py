"""Makes the environment of a checkout. What is missing for it is one line that says what mends it.

Runs on any Python 3 with nothing installed: ``python3 .ci/bootstrap.py .venv .`` or ``.[test]``.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
import time

LEAST_PYTHON = (3, 10)
NEWER_PYTHONS = ("python3.14", "python3.13", "python3.12", "python3.11", "python3.10")
DOWNLOAD_MB = 90
"""Measured on Linux x86-64: llvmlite and NumPy are most of it."""
NEEDED_MB = 600
"""Installed it is 390 MB; pip unpacks next to that."""
_NO_NETWORK = (
    "name resolution",
    "Name or service not known",
    "nodename nor servname",
    "Network is unreachable",
)
_NO_ANSWER = (
    "NewConnectionError",
    "ConnectTimeout",
    "ReadTimeout",
    "ProxyError",
    "Max retries exceeded",
)
_DISK_FULL = ("No space left on device", "Disk quota exceeded")
_STEP = re.compile(
    r"\s*(Collecting|Downloading|Building|Prepared|Installing|Installed)\b[ :]*(?:\S*/)?([\w.-]*)"
)
"""What pip and uv say they do, and with what."""
_SIZE = re.compile(r"Downloading .*\(([\d.]+) ?([kMG])i?B\)")
_MB = {"k": 1e-3, "M": 1.0, "G": 1e3}
_VENV_HINT = "Debian, Ubuntu: sudo apt install python3-venv; or install uv, which brings a Python"


class Refusal(Exception):
    """The line that the user reads."""


def main(arguments):
    """Make the environment and install into it; returns the exit code."""
    folder, target = arguments
    try:
        check_system()
        uv = shutil.which("uv")
        python = None if uv else suitable_python()
        check_disk(os.path.dirname(os.path.abspath(folder)))
        if not sys.stdout.isatty():
            print(
                f"Installing what Jalopy needs into {folder}: about {DOWNLOAD_MB} MB to download, once.",
                flush=True,
            )
        if uv:
            install_by_uv(uv, folder, target)
        else:
            install_by_pip(python, folder, target)
    except Refusal as refusal:
        print(f"jalopy: {refusal}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    program = os.path.join(folder, "bin", "jalopy")
    print(f"Installed: {program} (`make install` puts jalopy on your PATH)", flush=True)
    return 0


def check_system():
    """Refuse Termux, where numba has no build. A Linux inside of it has /etc/os-release."""
    if "com.termux" in sys.prefix and not os.path.exists("/etc/os-release"):
        raise Refusal(
            "Android has no build of the compiler that Jalopy needs (pkg install proot-distro; "
            "proot-distro install debian; proot-distro login debian; then again there)"
        )


def suitable_python():
    """Return a Python that is new enough and can make environments."""
    found = sys.executable
    if sys.version_info < LEAST_PYTHON:
        found = next(filter(None, map(shutil.which, NEWER_PYTHONS)), None)
        if found is None:
            version = ".".join(map(str, sys.version_info[:2]))
            raise Refusal(
                f"Python 3.10 or later is needed, and {sys.executable} is {version} (install a newer one, "
                "or uv, which brings one)"
            )
    if subprocess.call([found, "-c", "import ensurepip, venv"], stderr=subprocess.DEVNULL) != 0:
        raise Refusal(
            f"{found} cannot make environments: the module venv is missing ({_VENV_HINT})"
        )
    return found


def check_disk(folder):
    """Refuse to begin where the disk will be full before the end."""
    free_mb = shutil.disk_usage(folder).free // 1_000_000
    if free_mb < NEEDED_MB:
        raise Refusal(
            f"the disk is too full: {folder} has {free_mb} MB free, {NEEDED_MB} MB are needed (free some)"
        )


def install_by_uv(uv, folder, target):
    """Let uv do all of it: it finds or brings a Python."""
    python = os.path.join(folder, "bin", "python")
    steps = [[uv, "pip", "install", "--python", python, "-e", target]]
    if not runs(python):
        steps.insert(0, [uv, "venv", "--python", ">=3.10", "--clear", folder])
    for step in steps:
        spoken(step)


def install_by_pip(python, folder, target):
    """Make the environment, see whether packages can be had, and install them."""
    own = os.path.join(folder, "bin", "python")
    if not runs(own):
        spoken([python, "-m", "venv", "--clear", folder])
    pip = [own, "-m", "pip", "--disable-pip-version-check"]
    probe = [
        "install",
        "--quiet",
        "--dry-run",
        "--no-deps",
        "--retries",
        "1",
        "--timeout",
        "15",
        "setuptools>=77",
    ]
    spoken(pip + probe)
    spoken([*pip, "install", "--progress-bar", "off", "-e", target])


def runs(python):
    """Whether a Python is there and runs: that of an environment may be gone with an update."""
    try:
        return subprocess.call([python, "-c", ""], stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def spoken(command):
    """Run a command and show one line with its progress; say in one line why it failed."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    said = []
    reader = threading.Thread(target=lambda: said.extend(process.stdout), daemon=True)
    reader.start()
    began_s = time.monotonic()
    try:
        while reader.is_alive():
            reader.join(0.2)
            show(said, time.monotonic() - began_s)
        if process.wait() != 0:
            raise Refusal(cause("".join(said)))
    finally:
        process.terminate()
        show()


def show(said=(), passed_s=0.0):
    """Replace the terminal's line by how far it is; without anything said, clear it."""
    if not sys.stdout.isatty():
        return
    text = f"Installing, once: {progress(list(said))} · {passed_s:.0f} s" if passed_s else ""
    columns = shutil.get_terminal_size().columns - 1
    sys.stdout.write("\r" + text[:columns].ljust(columns) + ("" if text else "\r"))
    sys.stdout.flush()


def progress(said):
    """Return what was downloaded so far and what it is busy with, from what pip or uv said."""
    steps = [match for match in map(_STEP.match, said) if match]
    if steps and steps[-1][1] in ("Installing", "Installed", "Prepared"):
        return "unpacking"
    sizes = [match for match in map(_SIZE.match, map(str.strip, said)) if match]
    done_mb = sum(float(match[1]) * _MB[match[2]] for match in sizes[:-1])
    package = f", {steps[-1][2].partition('-')[0]}" if steps and steps[-1][2] else ""
    total_mb = max(DOWNLOAD_MB, round(done_mb))
    return f"{done_mb:.0f} of about {total_mb} MB{package}"


def cause(said):
    """Return what went wrong and what mends it, from what pip said."""
    if any(words in said for words in _DISK_FULL):
        return "the disk is full (free some of it, then try again)"
    if any(words in said for words in _NO_NETWORK):
        return "no network: packages cannot be downloaded (connect, then try again; this is needed once)"
    if any(words in said for words in _NO_ANSWER):
        return "the package index does not answer (check network and proxy, then try again)"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = (
        [line for line in lines if line.lower().startswith("error")]
        or lines[-1:]
        or ["no reason was given"]
    )
    return f"installing failed: {re.sub('^error: ', '', errors[0], flags=re.IGNORECASE)[:200]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
