"""The key for a server: from the environment or the system's keyring, never from a command line."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from app.program import exit_codes
from app.program.refusals import Refusal

VARIABLE = "JALOPY_SERVER_KEY"
SERVICE = "jalopy"
"""Under this name, and the server's host and port, a keyring has the key."""
_SOUND = re.compile(r"[!-~]{1,4096}")


def find_key(host: str, variable: str = VARIABLE) -> str:
    """Return the key for a server; "" for none. Raises Refusal: it cannot be a key. The line holds
    nothing of it.

    ``variable``: of the environment; "" for none.
    """
    if variable:
        given = os.environ.get(variable, "").strip()
    else:
        given = ""
    source = variable
    if not given:
        given = _from_keyring(host).strip()
        source = "the keyring"
    if given and not _SOUND.fullmatch(given):
        raise Refusal(f"the key in {source} holds characters that no key has", exit_codes.USAGE)
    return given


def _from_keyring(host: str) -> str:
    """Ask the system's keyring, where the package for it is installed and a keyring is open."""
    # no package, no keyring, a locked one: the server says whether it needs a key
    with suppress(Exception):
        import keyring

        return keyring.get_password(SERVICE, host) or ""
    return ""
