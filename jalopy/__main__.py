"""``jalopy`` and ``python -m jalopy``: put the program's folder on ``sys.path``, then start it."""

import os
import sys


def main() -> int:
    """Run the program and return its exit code."""
    folder = os.path.dirname(os.path.abspath(__file__))
    # A wheel has app/ in this folder, a checkout next to it.
    if not os.path.isdir(os.path.join(folder, "app")):
        folder = os.path.dirname(folder)
    sys.path.insert(0, folder)
    try:
        from app.__main__ import main as run
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
