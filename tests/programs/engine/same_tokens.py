"""``python -m tests.programs.engine.same_tokens MODEL... --peer-python PATH``: do we cut text into the same
tokens as llama.cpp?

Random texts of every kind, as trusted text (control tokens are recognised) and as text of a user.
For files with a vocabulary; their tensors are not read. The exit code is 0 only if nothing differs,
texts with ``</s>`` left out: where that is an ordinary word (Qwen), llama.cpp makes it a control
token, and we do not.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from engine.tokenizer import Tokenizer

PEER = Path(__file__).with_name("same_tokens_peer.py")
LEFT_OUT = "</s>"
_WORDS = re.findall(
    r"\S+",
    "the quick brown fox can't won't I'll 123 1234567 3.14 e-mail user@example.com naïve café "
    "Straße über дом "
    "日本語 한국어 العربية हिन्दी ไทย 👍🏽 👨\u200d👩\u200d👧 → ≤ ½ ﬁ ' \" `` ... --- ___ ### "
    "http://x.y/z?a=b&c=%20 C:\\dir",
)
_CODE = (
    "def f(x):\n    return x ** 2  # square\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}\n", "\r\n\r\n  \t\n",
    '{"key": [1, 2.5e-3, null], "a": "\\u00e9"}', "SELECT * FROM t WHERE a <> 'b';",
    "<div class='x'>&nbsp;</div>",
    "    \n        \n", "#include <stdio.h>\n", "let x = `${a}`;", "\n\n\n\n\n", "                ",
    "\t\t\t",
)  # fmt: skip
_LOOKS_SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "<unk>", "<pad>", "<bos>", "<eos>",
    "<start_of_turn>",
    "<end_of_turn>", "<0x0A>", "<0x00>", "[UNK]", "<tool_call>", "</tool_call>", "<|fim_prefix|>",
    "<|", "|>",
    "<unused1>", "<repo_name>", "<file_sep>", "<|im_start|>system\n", "▁", "▁the", "Ġthe", "<mask>",
    "<table>",
)  # fmt: skip


def random_text(chance: random.Random) -> str:
    """Return a random text of a few dozen pieces: bytes, characters of all planes, words, code and
    text that looks like special tokens."""
    pieces = []
    for _ in range(chance.randint(1, 12)):
        choice = chance.randrange(7)
        if choice == 0:
            pieces.append("".join(chr(chance.randrange(256)) for _ in range(chance.randint(1, 12))))
        elif choice == 1:
            codes = (chance.randrange(0x110000) for _ in range(chance.randint(1, 6)))
            pieces.append("".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000))
        elif choice == 2:
            pieces.append(chance.choice(_CODE))
        elif choice == 3:
            pieces.append(chance.choice(_LOOKS_SPECIAL))
        elif choice == 4:
            pieces.append("".join(chr(chance.randrange(32)) for _ in range(chance.randint(1, 4))))
        elif choice == 5:
            pieces.append(
                "".join(chr(chance.randrange(0x20, 0x3000)) for _ in range(chance.randint(1, 8)))
            )
        else:
            spaces = chance.choice(["", " ", "  ", "\n"])
            pieces.append(spaces.join(chance.choice(_WORDS) for _ in range(chance.randint(1, 8))))
        pieces.append(chance.choice(["", "", " ", "  ", "\n", "\t"]))
    return "".join(pieces)


def peer_ids(python: str, model: Path, texts: Sequence[str]) -> list[list[list[int]]]:
    """Return llama.cpp's ids of each text, as of a user and as trusted."""
    with tempfile.TemporaryDirectory() as folder:
        texts_file = Path(folder, "texts.json")
        ids_file = Path(folder, "ids.json")
        texts_file.write_text(json.dumps(list(texts)))
        subprocess.run([python, str(PEER), str(model), str(texts_file), str(ids_file)], check=True)
        ids: list[list[list[int]]] = json.loads(ids_file.read_text())
        return ids


def differing(model: Path, python: str, texts: Sequence[str]) -> tuple[list[str], int]:
    """Return the texts that are cut otherwise, and how many more hold what is left out."""
    tokenizer = Tokenizer.open(model)
    different = []
    n_left_out = 0
    for text, expected_ids in zip(texts, peer_ids(python, model, texts), strict=True):
        our_ids = [tokenizer.encode(text, bos=False, special=special) for special in (False, True)]
        if our_ids != expected_ids and LEFT_OUT in text:
            n_left_out += 1
        elif our_ids != expected_ids:
            different.append(text)
    return different, n_left_out


def main() -> int:
    """Compare and print one line for each model, and the first texts that differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--peer-python", required=True, help="a Python that has llama-cpp-python")
    parser.add_argument("--texts", type=int, default=32_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    chance = random.Random(chosen.seed)
    texts = [random_text(chance) for _ in range(chosen.texts)]
    n_differing = 0
    for model in chosen.models:
        different, n_left_out = differing(model, chosen.peer_python, texts)
        print(
            (
                f"{model.name}: {len(different)} of {len(texts)} differ ({n_left_out} more hold "
                f"{LEFT_OUT})"
            ),
            flush=True,
        )
        for text in different[:5]:
            print(f"  {text!r}")
        n_differing += len(different)
    return int(n_differing > 0)


if __name__ == "__main__":
    sys.exit(main())
