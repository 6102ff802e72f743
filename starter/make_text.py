"""Print training text to read: ``python -m starter.make_text --seed 1 --conversations 20``.

Training makes its text by itself, from seeds; this shows what it learns from.
"""

from __future__ import annotations

import argparse

from starter.format import render
from starter.text.conversation import conversation
from starter.text.tables import Writer


def main() -> None:
    """Print some conversations."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--conversations", type=int, default=20)
    parser.add_argument("--more", type=float, default=0.75, help="share of the many wordings")
    options = parser.parse_args()
    rng = Writer(options.seed)
    rng.share_more = options.more
    for _ in range(options.conversations):
        print(render(*conversation(rng)))


if __name__ == "__main__":
    main()
