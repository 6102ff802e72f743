"""Fixtures for every test: no network, no one's own settings, the shared data where it is there."""

import errno
import gc
import os
import shutil
import signal
import stat
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No property depends on how fast the machine is.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A background job, nohup and some containers begin with some of them ignored, and children inherit
# that.
_USUAL_SIGNALS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGPIPE: signal.SIG_IGN,
} | dict.fromkeys(
    (
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGCHLD,
        signal.SIGCONT,
        signal.SIGTSTP,
        signal.SIGUSR1,
    ),
    signal.SIG_DFL,
)


_KERNEL_CACHES_KEPT = 4
"""Number of versions of the kernels' source whose cache is kept, so that switching between two
recompiles neither."""


_numbers = count()
_YOUNG_OBJECTS = 50_000
"""New objects after which Python's collector runs: what tests and compilers leave is a quarter of
the time with 700."""


def pytest_configure(config: pytest.Config) -> None:
    """Begin with a terminal's signals, whatever started the tests, and with the kernels of earlier
    runs.

    All processes of a run compile into one cache that is not the user's; its folders are named by
    the source's hash.
    """
    set_usual_signals()
    collect_garbage_seldom()
    # NumPy's own threads wait in loops: twice the processor time
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # what is imported after this reads it
    if hasattr(config, "cache") and "JALOPY_CACHE_DIR" not in os.environ:
        cache = config.cache.mkdir("jalopy")
        os.environ["JALOPY_CACHE_DIR"] = str(cache)
        for old in sorted(cache.glob("kernels-*"), key=lambda path: path.stat().st_mtime)[
            :-_KERNEL_CACHES_KEPT
        ]:
            shutil.rmtree(old, ignore_errors=True)
    # Kernels are tested at this processor's level, even if machine code is ready for a lower one.
    os.environ["JALOPY_OWN_LEVEL"] = "1"


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exempt all imported modules and collected tests from garbage collection: they stay until the
    end."""
    gc.freeze()


def collect_garbage_seldom() -> None:
    gc.enable()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 100)


def set_usual_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number, disposition in _USUAL_SIGNALS.items():
        signal.signal(number, disposition)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of models, vocabularies, templates and vectors that are not part of the
    project."""
    here = Path(__file__).resolve().parents[1]
    for folder in (os.environ.get("JALOPY_TEST_DATA"), here.parent / "shared" / "data"):
        if folder and Path(folder).is_dir():
            return Path(folder)
    pytest.skip("needs the shared test data: set JALOPY_TEST_DATA to its folder")


@pytest.fixture(params=[errno.EINVAL, errno.ENOTSUP])
def no_directory_syncs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a file system that syncs files and refuses directories, with either of the usual
    errors."""
    sync = os.fsync

    def sync_file(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(request.param, os.strerror(request.param))
        sync(handle)

    monkeypatch.setattr(os, "fsync", sync_file)


@pytest.fixture(autouse=True)
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep every test away from the settings and conversations of the person who runs it, and from
    other tests.

    What one did to signals or to the collector is undone: the program takes them over. Most tests
    never make their directory; one of pytest's for each would be 5 s of processor time in all, and
    a second fixture for each 2 s.
    """
    home = tmp_path_factory.getbasetemp() / f"home-{next(_numbers)}"
    for name in ("CONFIG_HOME", "STATE_HOME", "DATA_HOME", "CACHE_HOME", "RUNTIME_DIR"):
        os.environ[f"XDG_{name}"] = str(home / f"xdg_{name.lower()}")
    yield
    set_usual_signals()
    collect_garbage_seldom()
    if home.exists():
        shutil.rmtree(home, ignore_errors=True)
