"""The page that a browser shows at the server's address: a chat, and how programs use the server.

The page is one file that loads nothing. Its script talks to the same API as every client and puts
texts of models into the page as text, never as markup.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from pathlib import Path
from string import Template

from app.program.small_file import read_text
from app.server.program_setup import setup_lines

PATHS = ("/", "/v1")
"""Paths at which browsers get the page."""
_FOLDER = Path(__file__).parent / "page"
_MOST_MODELS = 200
"""Limit on the models that the page offers."""
_CURL = """\
curl {address}/v1/chat/completions -d '
  {"model": "{model}",
   "messages": [{"role": "user", "content": "Why is the sky blue?"}]}'"""
_PYTHON = """\
from openai import OpenAI
client = OpenAI(base_url="{address}/v1", api_key="none")
question = [{"role": "user", "content": "Why is the sky blue?"}]
reply = client.chat.completions.create(model="{model}", messages=question)
print(reply.choices[0].message.content)"""
_PROGRAMS = {
    "vim": "Vim and Neovim: plug-in llama.vim",
    "vscode": "VS Code: extension llama.vscode, settings.json",
    "claude": "Claude Code, in the shell",
    "codex": "Codex: ~/.codex/config.toml",
    "opencode": "opencode: opencode.json",
    "pi": "pi: ~/.pi/agent/models.json",
    "qwen": "Qwen Code, in the shell",
    "aider": "Aider, in the shell",
}
"""Titles of the examples for programs of the manual's page ``editors``."""
_KEY_NOTE = (
    "This server needs an API key. Programs send it as theirs, in place of none; curl with "
    '-H "Authorization: Bearer KEY".'
)
_NO_MODEL = "MODEL"
"""Name in the examples if the page knows no model."""


def accepts_page(accept: str) -> bool:
    """Whether a client is a browser, by its header Accept."""
    return "text/html" in accept


def page_headers() -> dict[str, str]:
    """Return the headers of the page, which may run its own script and use this server only."""
    style = _hash(_source("page.css"))
    script = _hash(_source("page.js"))
    policy = (
        f"default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Cache-Control": "no-store",
    }


def start_page(url: str, models: Sequence[str], needs_key: bool = False) -> str:
    """Return the page as HTML.

    Args:
        url: address of the server, without a path.
        models: names of the models that requests may name, the default model first. Empty if the
            page must ask for a key before it may list them.
        needs_key: whether requests need a key.
    """
    options = "".join(f"<option>{escape(name)}</option>" for name in models[:_MOST_MODELS])
    if not options and not needs_key:
        options = '<option value="">none yet: jalopy pull gets one</option>'
    model = models[0] if models else _NO_MODEL
    examples = "\n".join(
        f"<details><summary>{escape(title)}</summary>"
        f'<pre data-template="{escape(template)}">'
        f"{escape(_filled(template, url, model))}</pre></details>"
        for title, template in _examples().items()
    )
    return Template(_source("page.html")).substitute(
        style=_source("page.css"),
        script=_source("page.js"),
        needs_key="yes" if needs_key else "",
        options=options,
        address=escape(url),
        key_note=escape(_KEY_NOTE) if needs_key else "",
        examples=examples,
    )


@lru_cache
def _examples() -> dict[str, str]:
    """Return the examples by title, with the places {address} and {model}."""
    programs = {
        title: "\n".join(setup_lines(program, "{address}", "{model}"))
        for program, title in _PROGRAMS.items()
    }
    return {"curl": _CURL, "Python: package openai": _PYTHON, **programs}


def _filled(template: str, url: str, model: str) -> str:
    return template.replace("{address}", url).replace("{model}", model)


@lru_cache
def _source(name: str) -> str:
    return read_text(_FOLDER / name, "page of the server")


def _hash(source: str) -> str:
    """Return the expression by which a policy allows an inline style or script."""
    digest = hashlib.sha256(source.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
