"""Key for a server: from the environment or the system's keyring, never from a command line."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from app.program import exit_codes
from app.program.refusals import Refusal

VARIABLE = "JALOPY_SERVER_KEY"
SERVICE = "jalopy"
"""Name of the service in a keyring; the user name is the host and port of the server."""
_VALID_KEY = re.compile(r"[!-~]{1,4096}")


def find_key(host: str, variable: str = VARIABLE) -> str:
    """Return the key for a server; "" for none.

    Args:
        host: Host and port of the server.
        variable: Environment variable with the key; "" for none.

    Raises:
        Refusal: The text cannot be a key. The message does not contain it.
    """
    key = ""
    source = variable
    if variable:
        key = os.environ.get(variable, "").strip()
    if not key:
        key = _key_from_keyring(host).strip()
        source = "the keyring"
    if key and not _VALID_KEY.fullmatch(key):
        raise Refusal(f"the key in {source} has characters that keys never have", exit_codes.USAGE)
    return key


def _key_from_keyring(host: str) -> str:
    """Return the key from the system's keyring, if its package is installed and it is unlocked."""
    # Any problem means that there is no key; the server says whether it needs one.
    with suppress(Exception):
        import keyring

        return keyring.get_password(SERVICE, host) or ""
    return ""
