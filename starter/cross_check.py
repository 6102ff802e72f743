"""Whether llama.cpp gives the same greedy answers: ``python -m starter.cross_check FILE --with llama.cpp > theirs``.

Run it once with each of ``engine`` and ``llama.cpp`` (that needs llama-cpp-python) and compare the two outputs with
``diff``: each line is one conversation of the written test with the last answer. The conversations are rendered by the
template in the file, so this compares templates and tokens as well.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path
from typing import Any

from starter.evaluate import LONGEST_ANSWER, Ask, cases, engine_asker, read_categories


def main() -> None:
    """Answer the test's questions with one of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--with", dest="engine", choices=("engine", "llama.cpp"), required=True)
    parser.add_argument("--every", type=int, default=1, help="only every so-many-th question")
    options = parser.parse_args()
    ask = engine_asker(options.file, 0.0, 1) if options.engine == "engine" else llama_cpp_asker(options.file)
    for category in read_categories().values():
        for case in islice(cases(category), None, None, options.every):
            print(json.dumps([*case.messages, *ask(case.messages)]), flush=True)


def llama_cpp_asker(file: Path) -> Ask:
    """Open a model with llama-cpp-python; the function returned holds a conversation with it."""
    from llama_cpp import Llama

    model = Llama(str(file), n_ctx=1024, n_threads=1, verbose=False)

    def ask(messages: list[str]) -> tuple[str, bool]:
        said: list[dict[str, str]] = []
        choice: dict[str, Any] = {}
        for message in messages:
            said.append({"role": "user", "content": message})
            choice = model.create_chat_completion(said, temperature=0.0, max_tokens=LONGEST_ANSWER)["choices"][0]
            said.append({"role": "assistant", "content": choice["message"]["content"]})
        return said[-1]["content"], choice["finish_reason"] == "stop"

    return ask


if __name__ == "__main__":
    main()
