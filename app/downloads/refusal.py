"""Why something could not be had: each reason of a server or the hub as one clean line.

The hub says more than a status: ``X-Error-Code`` tells a repository whose terms nobody accepted from one that is not
there, and ``RateLimit`` how long it wants to be left alone.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from email.message import Message
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from app.program import exit_codes
from app.program.refusals import Refusal
from app.text.clean_text import clean_line
from app.text.figures import whole_seconds

MOST_RETRIES = 4
LONGEST_PAUSE_S = 300.0
"""Longest pause that a server may ask for; the hub counts requests in windows of this length."""
LONGEST_WAIT_S = 900.0
"""Of all pauses before something comes."""
_RETRIED = (429, 500, 502, 503, 504)
_RESET_S = re.compile(r";\s*r=0\s*;\s*t=([0-9]{1,6})(?![0-9])")
_ANY_RESET_S = re.compile(r";\s*t=([0-9]{1,6})(?![0-9])")


class DownloadError(Refusal):
    """Something about the network or the server; the message is one clean line."""

    def __init__(self, message: str, exit_code: int = exit_codes.IO_ERROR) -> None:
        super().__init__(clean_line(message, 280), exit_code)


class ConnectionCut(DownloadError):
    """The connection ended or stalled; trying again may help."""


class StatusError(DownloadError):
    """The server said no."""

    def __init__(self, message: str, status: int, pause_s: float | None = None) -> None:
        super().__init__(message, exit_codes.UNREADABLE if status < 500 and status != 429 else exit_codes.IO_ERROR)
        self.status, self.pause_s = status, pause_s


def pause_before_retry(error: DownloadError, attempt: int, waited_s: float = 0.0) -> float | None:
    """Return how long to wait before trying again; None where that would not help, or was done often enough.

    Args:
        attempt: how many were in vain before this one.
        waited_s: sum of the pauses between them.
    """
    if attempt >= MOST_RETRIES or (isinstance(error, StatusError) and error.status not in _RETRIED):
        return None
    wanted_s = error.pause_s if isinstance(error, StatusError) else None
    pause_s = float(2**attempt) if wanted_s is None else wanted_s
    return pause_s if pause_s <= LONGEST_PAUSE_S and waited_s + pause_s <= LONGEST_WAIT_S else None


def refused(status: int, headers: Message, url: str, has_token: bool, is_hub: bool) -> StatusError:
    """Make the exception for an answer that is none.

    Args:
        has_token: whether the user has one.
        is_hub: whether the hub itself says so, and not a server that it leads to.
    """
    pause_s = pause_s_of(headers) if status in _RETRIED else None
    words = _hub_words(status, headers, has_token) if is_hub else _other_words(status)
    if status == 429:
        when = f"in {whole_seconds(pause_s)}" if pause_s else "later"
        words = f"too many requests: try again {when}{'' if has_token else '; with HF_TOKEN set it allows more'}"
    return StatusError(f"{host_of(url)}: {words}", status, pause_s)


def _hub_words(status: int, headers: Message, has_token: bool) -> str:
    code = (headers.get("X-Error-Code") or "").strip()
    if code == "GatedRepo":
        terms = "gated: accept its terms on its page first"
        return f"{terms}; this token has no right to it" if has_token else f"{terms}, then set HF_TOKEN"
    if "disabled" in (headers.get("X-Error-Message") or "").lower():
        return "access to it is disabled"
    by_code = {
        "RepoNotFound": "there is no such repository: check the name",
        "RevisionNotFound": "the repository has no such revision",
        "EntryNotFound": "the repository has no such file",
    }
    if code in by_code and status == 404:
        return by_code[code]
    if status == 401:
        token = "the token is not accepted, or has no right to it" if has_token else "it asks for a token: set HF_TOKEN"
        return f"there is no such repository, or {token}"
    if status == 403:
        return f"access is refused{': the token has no right to it' if has_token else ': it may ask for a token'}"
    return "there is no such repository or file: check the name" if status == 404 else _other_words(status)


def _other_words(status: int) -> str:
    words = {
        401: "it asks for a password",
        403: "access is refused (an address that has expired? try again)",
        404: "there is no such file",
        416: "the rest of the file cannot be had",
    }
    return words.get(status, f"answers with status {status}" + (": try again later" if status >= 500 else ""))


def pause_s_of(headers: Message) -> float | None:
    """Return how long a server wants to be left alone: the longest it says, in either way of saying so."""
    after = (headers.get("Retry-After") or "").strip()
    limit = ", ".join(headers.get_all("RateLimit") or ())[:1000]
    found = [float(one) for one in _RESET_S.findall(limit) or _ANY_RESET_S.findall(limit)]
    if re.fullmatch(r"[0-9]{1,9}", after):
        found.append(float(after))
    elif after:
        with suppress(ValueError, TypeError, OverflowError):  # it is neither seconds nor a date
            found.append(max(0.0, parsedate_to_datetime(after).timestamp() - time.time()))
    return max(found, default=None)


def host_of(url: str) -> str:
    """Return an address's host and port, never a password."""
    return urlsplit(url).netloc.rpartition("@")[2] or url
