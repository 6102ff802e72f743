"""The page that a browser shows at the server's address: what the server is, and how to use it.

It has no links: a browser says that a link was followed from a page, and pages may not use the
server.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_MOST_MODELS = 20
"""Limit on the models that the page names."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of the page, which runs no scripts and loads nothing."""
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Jalopy</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 42em; margin: 2em auto; padding: 0 1em }}
pre {{ background: #8882; padding: 0.7em; overflow: auto }}
:root {{ color-scheme: light dark }}
</style>
</head>
<body>
<h1>Jalopy is running</h1>
<p>This address is an API for programs, like OpenAI's. There is no chat page here: type
<code>jalopy</code> in a terminal to chat.</p>
<h2>Address for programs</h2>
<pre>{url}/v1</pre>
<p>Programs that know only Ollama use <code>{url}</code>.</p>
<h2>{title}</h2>
<pre>{models}</pre>
<h2>Example</h2>
<pre>curl {url}/v1/chat/completions -d '
  {{"messages": [{{"role": "user", "content": "Why is the sky blue?"}}]}}'</pre>
<h2>More</h2>
<ul>
<li><code>{url}/v1/models</code>: the models</li>
<li><code>{url}/metrics</code>: counters for Prometheus</li>
<li><code>{url}/health</code>: whether the server is ready</li>
<li><code>jalopy help serve</code> in a terminal: all routes and fields</li>
</ul>
</body>
</html>
"""


def start_page(url: str, models: Sequence[str]) -> str:
    """Return the page as HTML.

    Args:
        url: address of the server, without a path.
        models: names of the models that requests may name.
    """
    names = list(models[:_MOST_MODELS])
    n_others = len(models) - len(names)
    if n_others:
        names.append(f"and {n_others} more")
    return _PAGE.format(
        url=escape(url),
        title="Model" if len(models) == 1 else "Models",
        models=escape("\n".join(names) or "none yet: jalopy pull gets one"),
    )
