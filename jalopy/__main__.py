"""``jalopy``, and ``python -m jalopy``: the program's own folders come before others of their
names, then it starts."""

import os
import sys


def main() -> int:
    """Run the program and return its exit code."""
    here = os.path.dirname(os.path.abspath(__file__))
    # of a wheel, or of a checkout
    root = here if os.path.isdir(os.path.join(here, "app")) else os.path.dirname(here)
    sys.path.insert(0, root)
    try:
        from app.__main__ import main as run
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
