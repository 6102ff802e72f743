"""Every target by its name on the command line; a new one gets its line here."""

from __future__ import annotations

from tests.fuzz import chat_templates, gguf_files, keys, logs, servers, states
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    "gguf": gguf_files.TARGET,
    "keys": keys.TARGET,
    "log": logs.TARGET,
    "template": chat_templates.TARGET,
    "server": servers.TARGET,
    "state": states.TARGET,
}
