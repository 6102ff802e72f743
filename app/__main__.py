"""``jalopy``, and ``python -m app``: next to nothing, so that Ctrl+C is heard while the program is
still imported."""

import sys
import warnings

from app.program import exit_codes


def main() -> int:
    """Run the program and return its exit code."""
    _keep_quiet()
    try:
        from app.cli.dispatch import main as run

        return run()
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except MemoryError:
        return _refused("not enough memory to start", exit_codes.NO_MEMORY)
    except OSError as error:
        return _refused(f"cannot be loaded: {error}", exit_codes.IO_ERROR)


def _keep_quiet() -> None:
    """Silence Python's warnings and uncaught errors, which would spoil a screen or a refusal."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
        sys.unraisablehook = lambda _: None


def _refused(line: str, exit_code: int) -> int:
    """Say it without a module of ours: those may be what cannot be loaded."""
    if sys.stderr is not None:
        sys.stderr.write(f"jalopy: {line}\n")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
