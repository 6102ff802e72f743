"""``jalopy``, and ``python -m app``: next to nothing, so that Ctrl+C is heard while the program is still imported."""

import sys

from app import exit_codes


def main() -> int:
    """Run the program and return its exit code."""
    try:
        from app.command_line import main as run

        return run()
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
