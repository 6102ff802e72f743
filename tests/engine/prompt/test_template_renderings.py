"""Chat templates of popular models print what jinja2 prints, except for listed refusals."""

import hashlib
import json
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import pytest
from jinja2 import TemplateError as JinjaError
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.prompt.chat_template import ChatTemplate, fold_system
from engine.prompt.template_process import TemplateProcess
from engine.prompt.thinking import ThinkingMode

NOW_S = 1_767_225_600.0

SYSTEM = {"role": "system", "content": "Be brief."}


def turns(*contents: str) -> list[dict[str, str]]:
    return [
        {"role": ("user", "assistant")[i % 2], "content": content}
        for i, content in enumerate(contents)
    ]


CONVERSATIONS = {
    "one turn": turns("Hello"),
    "one turn with a system message": [SYSTEM, *turns("Hello")],
    "three turns": turns("Hello", "Hi.", "Why?", "So. ", " Ok"),
    "three turns with a system message": [SYSTEM, *turns("Hello", "Hi.", "Why?", "So. ", " Ok")],
    "a thought in an earlier reply": turns("Hello", "<think>\nhm\n</think>\n\nHi.", "Why?"),
    "a thought with a system message": [SYSTEM, *turns("Hello", "<think>hm</think>Hi.", "Why?")],
    "words of other scripts": turns("Grüße\n\n- ☃ 'x' \"y\" <b>"),
}

REFUSED = {
    "ai-sage/GigaChat-20B-A3B-instruct": "'additional_special_tokens' is undefined",
    "fireworks-ai-llama-3-firefunction-v2": "'functions' is undefined",
}
"""Templates that need values which no model file contains."""


class _Generation(Extension):
    tags = {"generation"}  # noqa: RUF012 - the attribute's type in the base class

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: object = "") -> None:
    raise JinjaError(str(message))


def _to_json(value: Any, ensure_ascii: bool = False, **form: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **form)


def oracle(source: str) -> Callable[..., str]:
    """Return a renderer of a template that does not use the engine; ``tools`` stay undefined.

    Compiled templates are cached between runs, as kernels are.
    """
    name = hashlib.sha256(f"{jinja2.__version__} {source}".encode()).hexdigest()
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _Generation],
        loader=jinja2.DictLoader({name: source}),
        bytecode_cache=jinja2.FileSystemBytecodeCache(os.environ.get("JALOPY_CACHE_DIR")),
    )
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.fromtimestamp(NOW_S).strftime(form),
    }
    environment.filters["tojson"] = _to_json
    return environment.get_template(name).render


@pytest.mark.slow
def test_templates_print_as_jinja2_does_or_are_refused_by_name(
    shared_data: Path, process: TemplateProcess
) -> None:
    """They also print what llama.cpp printed, and some text in each thinking mode.

    Each template is opened only once, since compiling takes most of the time.
    """
    recorded = json.loads(
        (shared_data / "templates" / "llamacpp_chat_templates.json").read_text(encoding="utf-8")
    )
    cases = {case["name"]: case for case in recorded["cases"]}
    refused = {}
    compared = 0
    n_recorded = 0
    unsupported = 0
    for name, (source, bos, eos) in _sources(shared_data / "templates").items():
        template = ChatTemplate(source, bos, eos, name, process)
        case = cases.get(name)
        if template.notice is not None:
            refused[name] = template.notice
            assert template.render(turns("Hello")).startswith(
                "<|im_start|>user\nHello<|im_end|>"
            ), name
            assert case is None or not case.get("supported_with_jinja", True)
            continue
        render = oracle(source)
        unsupported += not template.supports_system
        for description, messages in CONVERSATIONS.items():
            expected = render(
                messages=messages if template.supports_system else fold_system(messages),
                add_generation_prompt=True,
                bos_token=bos,
                eos_token=eos,
            )
            assert template.render(messages, now=NOW_S) == expected, f"{name}: {description}"
            compared += 1
        if case is not None:
            conversation = recorded["conversation"] + case.get("extra_conversation", [])
            text = template.render(
                [{"role": role, "content": content} for role, content in conversation]
            )
            assert text == (case["expected_output_jinja"] or case["expected_output"]), name
            assert template.supports_system == case["python_jinja2_exact"], name
            n_recorded += 1
        for mode in ("on", "off", "low", "medium", "high", "500"):
            assert template.render(turns("Hello"), thinking=ThinkingMode.parse(mode)), name
    assert refused.keys() == REFUSED.keys(), refused
    assert all(
        REFUSED[name] in notice and notice.startswith(name) for name, notice in refused.items()
    )
    assert compared >= 85 * len(CONVERSATIONS)
    assert (n_recorded >= 35, unsupported >= 7) == (True, True)


def _sources(folder: Path) -> dict[str, tuple[str, str, str]]:
    """Return the source, begin token and end token of each template, by name."""
    recorded = json.loads((folder / "llamacpp_chat_templates.json").read_text(encoding="utf-8"))[
        "cases"
    ]
    sources = {
        c["name"]: (c["template_str"], c.get("bos_token", ""), c.get("eos_token", ""))
        for c in recorded
    }
    files = [
        *sorted((folder / "jinja").glob("*.jinja")),
        *sorted((folder / "more").glob("*.jinja")),
    ]
    return sources | {
        path.stem: (path.read_text(encoding="utf-8"), "<s>", "</s>") for path in files
    }
