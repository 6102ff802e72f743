"""Whether llama.cpp gives the same greedy answers:
``python -m starter.cross_check FILE --with llama.cpp > theirs``.

Run it once with each of ``engine`` and ``llama.cpp`` and compare the two outputs with ``diff``:
each line is one conversation of the written test with the last answer. The conversations are
rendered by the template in the file, so this compares templates and tokens as well. ``llama.cpp``
needs llama-cpp-python, which is compiled on installation; ``xllamacpp`` is available as a wheel.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from starter.evaluate import LONGEST_ANSWER, Ask, cases, engine_asker, read_categories

Complete = Callable[[list[dict[str, str]]], Any]
"""Function that returns a chat completion of messages, in the format of OpenAI's API."""
N_CTX = 1024


def main() -> None:
    """Answer the test's questions with one of the engines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--with", dest="engine", choices=("engine", *_PEERS), required=True)
    parser.add_argument("--every", type=int, default=1, help="ask only every N-th question")
    options = parser.parse_args()
    if options.engine == "engine":
        ask = engine_asker(options.file, 0.0, 1)
    else:
        ask = peer_asker(options.file, options.engine)
    for category in read_categories().values():
        for case in islice(cases(category), None, None, options.every):
            print(json.dumps([*case.messages, *ask(case.messages)]), flush=True)


def peer_asker(file: Path, name: str) -> Ask:
    """Open a model with another engine, and return a function that asks it questions."""
    complete = _PEERS[name](file)

    def ask(questions: list[str]) -> tuple[str, bool]:
        messages: list[dict[str, str]] = []
        choice: dict[str, Any] = {}
        for message in questions:
            messages.append({"role": "user", "content": message})
            choice = complete(messages)["choices"][0]
            messages.append({"role": "assistant", "content": choice["message"]["content"]})
        return messages[-1]["content"], choice["finish_reason"] == "stop"

    return ask


def _llama_cpp_python(file: Path) -> Complete:
    from llama_cpp import Llama

    model = Llama(str(file), n_ctx=N_CTX, n_threads=1, verbose=False)
    return lambda messages: model.create_chat_completion(
        messages, temperature=0.0, max_tokens=LONGEST_ANSWER
    )


def _xllamacpp(file: Path) -> Complete:
    from xllamacpp import CommonParams, Server

    params = CommonParams()
    params.model.path = str(file)
    params.n_ctx = N_CTX
    params.n_parallel = 1
    params.verbosity = -1
    params.cpuparams.n_threads = 1
    server = Server(params)
    return lambda messages: server.handle_chat_completions(
        {"messages": messages, "temperature": 0.0, "max_tokens": LONGEST_ANSWER}
    )


_PEERS = {"llama.cpp": _llama_cpp_python, "xllamacpp": _xllamacpp}


if __name__ == "__main__":
    main()
