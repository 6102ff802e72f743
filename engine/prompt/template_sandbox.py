"""Script that renders chat templates in a separate process, started by
``engine.prompt.template_process``.

The template comes from an untrusted file, and nothing inside an interpreter can stop one long
operation such as ``9**(9**9)``. So the operating system limits this process's memory and processor
time. Requests and answers are one line of JSON each. The script imports jinja2 and the standard
library only.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from datetime import datetime
from functools import lru_cache
from typing import Any

STACK_BYTES = 8 << 20
"""Limit on the stack of the process: the usual one, even if a shell has lifted it."""


class OutputTooLongError(Exception):
    """The template printed more than the request allows."""


@lru_cache(maxsize=1)
def environment() -> Any:
    """Return a Jinja environment for templates of Hugging Face's ``apply_chat_template``."""
    from jinja2 import nodes
    from jinja2.exceptions import TemplateRuntimeError
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationTag(Extension):
        """Prints the body of ``{% generation %}``, which marks text to train on."""

        tags = {"generation"}  # noqa: RUF012 - the attribute's type in the base class

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: object = "") -> None:
        raise TemplateRuntimeError(str(message))

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    jinja_environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
    )
    jinja_environment.globals["raise_exception"] = raise_exception
    jinja_environment.filters["tojson"] = to_json
    return jinja_environment


@lru_cache(maxsize=4)
def compiled(source: str) -> Any:
    """Return the compiled template. Compiling takes ten times as long as rendering."""
    return environment().from_string(source)


def render(source: str, variables: dict[str, Any], now: float, output_chars: int) -> str:
    """Render one template.

    Args:
        source: Jinja source of the template.
        variables: variables of the template.
        now: time for ``strftime_now``, in seconds since 1970.
        output_chars: limit on the characters of the text.

    Raises:
        OutputTooLongError: the text is longer than ``output_chars``.
        Exception: any error of the template.
    """

    def strftime_now(form: str) -> str:
        return datetime.fromtimestamp(now).strftime(form)

    pieces = []
    n_left = output_chars
    for piece in compiled(source).generate({**variables, "strftime_now": strftime_now}):
        n_left -= len(piece)
        if n_left < 0:
            raise OutputTooLongError(f"prints more than {output_chars} characters")
        pieces.append(piece)
    return "".join(pieces)


def limit_process(memory_bytes: int) -> None:
    """Limit this process's memory and stack, and forbid it to write files, to start processes and
    to dump core."""
    _limit(
        RLIMIT_AS=memory_bytes,
        RLIMIT_STACK=STACK_BYTES,
        RLIMIT_CORE=0,
        RLIMIT_FSIZE=0,
        RLIMIT_NPROC=0,
    )


def limit_memory(memory_bytes: int) -> None:
    """Limit this process's memory."""
    _limit(RLIMIT_AS=memory_bytes)


def _limit(**limits: int) -> None:
    try:
        import resource
    except ImportError:  # not a Unix; the parent's time limit still holds
        return
    for name, amount in limits.items():
        resource_id = getattr(resource, name, None)
        if resource_id is None:
            continue
        _, hard = resource.getrlimit(resource_id)
        if hard != resource.RLIM_INFINITY:
            amount = min(amount, hard)
        with contextlib.suppress(
            ValueError
        ):  # macOS knows the limit on memory and refuses it; those on time hold
            resource.setrlimit(resource_id, (amount, amount))


def answer(request: dict[str, Any]) -> dict[str, str]:
    """Return the answer to a request: ``text``, or ``error`` in a few words."""
    try:
        arguments = (
            request["source"],
            request["variables"],
            request["now"],
            request["output_chars"],
        )
        return {"text": render(*arguments)}
    except RecursionError:
        return {"error": "is nested too deeply"}
    except MemoryError:
        return {"error": "needs too much memory"}
    except OutputTooLongError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"fails: {str(error)[:500] or type(error).__name__}"}


def serve(memory_bytes: int) -> None:
    """Answer requests from stdin until it is closed."""
    environment()  # import everything before the limits apply and the first request comes
    limit_process(memory_bytes)
    _say({"ready": "yes"})
    for line in sys.stdin:
        request = json.loads(line)
        allow_cpu(request["cpu_s"])
        reply = answer(request)
        allow_cpu(0.0)
        _say(reply)


def allow_cpu(seconds: float) -> None:
    """Limit the processor time of this process, after which the system ends it; 0 lifts the
    limit."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _say(reply: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.path += sys.argv[2:]
    serve(int(sys.argv[1]))
