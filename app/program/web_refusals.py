"""Error lines for servers, the hub and the network.

The hub reports more than a status: ``X-Error-Code`` tells a gated repository from a missing one,
and ``RateLimit`` how long to wait. Old machines have problems of their own, such as a wrong clock
or outdated certificates. OpenSSL does not explain them; the lines here do, with a remedy.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import ssl
import time
from contextlib import suppress
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from app.program import exit_codes
from app.program.refusals import Refusal
from app.text.clean_text import clean_line
from app.text.figures import whole_seconds

MOST_RETRIES = 4
LONGEST_PAUSE_S = 300.0
"""Longest pause that a server may ask for. The hub counts requests in windows of this length."""
LONGEST_WAIT_S = 900.0
"""Limit on all pauses before data arrives."""
_RETRIED = (429, 500, 502, 503, 504)
_RESET_S = re.compile(r";\s*r=0\s*;\s*t=([0-9]{1,6})(?![0-9])")
_ANY_RESET_S = re.compile(r";\s*t=([0-9]{1,6})(?![0-9])")


class DownloadError(Refusal):
    """A problem of the network or the server; the message is one clean line.

    Attributes:
        is_hub_away: whether the hub was asked and cannot be reached.
    """

    is_hub_away = False

    def __init__(self, message: str, exit_code: int = exit_codes.IO_ERROR) -> None:
        super().__init__(clean_line(message, 280), exit_code)


class ConnectionCut(DownloadError):
    """The connection ended or stalled; another attempt may help."""


class CertificateError(DownloadError):
    """The server's certificate cannot be trusted; the message says what to do."""


class StatusError(DownloadError):
    """The server refused the request."""

    def __init__(self, message: str, status: int, pause_s: float | None = None) -> None:
        super().__init__(
            message,
            exit_codes.UNREADABLE if status < 500 and status != 429 else exit_codes.IO_ERROR,
        )
        self.status = status
        self.pause_s = pause_s


def pause_before_retry(error: DownloadError, attempt: int, waited_s: float = 0.0) -> float | None:
    """Return the pause before the next attempt; None if another attempt would not help.

    Args:
        attempt: number of failed attempts.
    """
    if attempt >= MOST_RETRIES or (isinstance(error, StatusError) and error.status not in _RETRIED):
        return None
    if isinstance(error, StatusError):
        requested_s = error.pause_s
    else:
        requested_s = None
    if requested_s is None:
        pause_s = float(2**attempt)
    else:
        pause_s = requested_s
    if pause_s <= LONGEST_PAUSE_S and waited_s + pause_s <= LONGEST_WAIT_S:
        return pause_s
    return None


def refused(status: int, headers: Message, url: str, has_token: bool, is_hub: bool) -> StatusError:
    """Return the error for a refused request.

    Args:
        is_hub: whether the hub itself refused, not a server it redirects to.
    """
    if status in _RETRIED:
        pause_s = pause_s_of(headers)
    else:
        pause_s = None
    if is_hub:
        words = _hub_words(status, headers, has_token)
    else:
        words = _other_words(status)
    if status == 429:
        if pause_s:
            when = f"in {whole_seconds(pause_s)}"
        else:
            when = "later"
        words = (
            f"too many requests: try again "
            f"{when}{'' if has_token else '; HF_TOKEN raises the limit'}"
        )
    return StatusError(f"{host_of(url)}: {words}", status, pause_s)


def _hub_words(status: int, headers: Message, has_token: bool) -> str:
    code = (headers.get("X-Error-Code") or "").strip()
    if code == "GatedRepo":
        terms = "gated: accept its terms on its page first"
        if has_token:
            return f"{terms}; this token has no access"
        return f"{terms}, then set HF_TOKEN"
    if "disabled" in (headers.get("X-Error-Message") or "").lower():
        return "access to it is disabled"
    by_code = {
        "RepoNotFound": "repository not found: check the name",
        "RevisionNotFound": "the repository does not have this revision",
        "EntryNotFound": "the repository does not have this file",
    }
    if code in by_code and status == 404:
        return by_code[code]
    if status == 401:
        if has_token:
            return "not found, or the token has no access to it"
        return "not found (or private: set HF_TOKEN)"
    if status == 403:
        return (
            f"access is "
            f"refused{': the token has no access' if has_token else ': it may need a token'}"
        )
    if status == 404:
        return "repository or file not found: check the name"
    return _other_words(status)


def _other_words(status: int) -> str:
    words = {
        401: "it needs a password",
        403: "access refused (perhaps the address has expired: try again)",
        404: "file not found",
        416: "the rest of the file is not available",
    }
    return words.get(
        status, f"error status {status}" + (": try again later" if status >= 500 else "")
    )


def pause_s_of(headers: Message) -> float | None:
    """Return the longest pause that a server asks for; None if it asks for none."""
    retry_after = (headers.get("Retry-After") or "").strip()
    limit = ", ".join(headers.get_all("RateLimit") or ())[:1000]
    pauses = [
        float(seconds_text)
        for seconds_text in _RESET_S.findall(limit) or _ANY_RESET_S.findall(limit)
    ]
    if re.fullmatch(r"[0-9]{1,9}", retry_after):
        pauses.append(float(retry_after))
    elif retry_after:
        with suppress(ValueError, TypeError, OverflowError):  # neither seconds nor a date
            pauses.append(max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time()))
    return max(pauses, default=None)


def host_of(url: str) -> str:
    """Return host and port of an address, never a password."""
    return urlsplit(url).netloc.rpartition("@")[2] or url


_NOT_YET_VALID = 9
_EXPIRED = 10
_SELF_SIGNED = 18
_UNKNOWN_AUTHORITY = (2, 19, 20, 21)
_OTHER_HOST = (62, 63, 64)
"""OpenSSL's error numbers for certificates (x509_vfy.h)."""
_NO_TLS = (
    "WRONG_VERSION_NUMBER",
    "PACKET_LENGTH_TOO_LONG",
    "RECORD_LAYER_FAILURE",
    "UNEXPECTED_MESSAGE",
)
_NO_COMMON_TLS = (
    "UNSUPPORTED_PROTOCOL",
    "TLSV1_ALERT_PROTOCOL_VERSION",
    "SSLV3_ALERT_HANDSHAKE_FAILURE",
)
_HASHED_NAME = re.compile(r"[0-9a-f]{8}\.[0-9]+")


def unreachable(url: str, reason: Any) -> DownloadError:
    """Return the error for a server that does not answer."""
    host = host_of(url)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return CertificateError(f"{host}: {_certificate_words(reason)}; nothing was sent")
    if isinstance(reason, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return ConnectionCut(f"{host}: the connection ended while it was being secured")
    if isinstance(reason, ssl.SSLError):
        return DownloadError(f"{host}: {_tls_words(reason)}")
    if isinstance(reason, socket.gaierror):
        return DownloadError(f"Can't reach {host}. Are you online?")
    if isinstance(reason, http.client.BadStatusLine) and not isinstance(reason, ConnectionError):
        return DownloadError(f"{host}: does not speak HTTP (should the address begin with https?)")
    if isinstance(reason, http.client.HTTPException) and str(reason).startswith("got more than"):
        return DownloadError(f"{host}: its headers are too long ({reason_of(reason)})")
    return ConnectionCut(f"{host}: cannot be reached ({reason_of(reason)})")


def reason_of(error: Any) -> str:
    """Return the reason of a system error."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, http.client.IncompleteRead):
        return "it ended too early"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _certificate_words(error: ssl.SSLCertVerificationError) -> str:
    today = time.strftime("%Y-%m-%d")
    if error.verify_code == _NOT_YET_VALID:
        return f"its certificate is not valid yet by this computer's clock ({today}): set the clock"
    if error.verify_code == _EXPIRED:
        remedy = (
            "correct the clock, or update this system's ca-certificates "
            "(or the server's owner must renew it)"
        )
        return f"its certificate has expired by this computer's clock ({today}): {remedy}"
    if error.verify_code in _OTHER_HOST:
        return (
            "its certificate is for another host: check the address (or is there a login page in "
            "between?)"
        )
    if error.verify_code in (_SELF_SIGNED, *_UNKNOWN_AUTHORITY) and not _knows_authorities():
        certificate_file = os.environ.get("SSL_CERT_FILE")
        if certificate_file:
            return (
                "its certificate cannot be checked: SSL_CERT_FILE names "
                f"{certificate_file[-100:]}, "
                f"which has no certificates"
            )
        return (
            "this system has no certificates: install the package "
            "ca-certificates, "
            "or name a file of them in SSL_CERT_FILE"
        )
    if error.verify_code == _SELF_SIGNED:
        return (
            "its certificate is self-signed (a login page or a filter in "
            "between?): "
            "if you trust it, name its file in SSL_CERT_FILE"
        )
    if error.verify_code in _UNKNOWN_AUTHORITY:
        return (
            "its certificate is from an authority unknown to this system: update "
            "its ca-certificates; "
            "for a company's authority, name its file in SSL_CERT_FILE"
        )
    return f"its certificate cannot be verified ({error.verify_message})"


def _tls_words(error: ssl.SSLError) -> str:
    if error.reason in _NO_TLS:
        return (
            "does not speak TLS although the address begins with https: check it "
            "(or is there a login "
            "page in between?)"
        )
    if error.reason in _NO_COMMON_TLS:
        return (
            f"has no TLS version in common with this system ({ssl.OPENSSL_VERSION}): one of "
            f"them is too old"
        )
    return f"no secure connection is possible ({error.reason or reason_of(error)})"


def _knows_authorities() -> bool:
    """Whether this system has certificates of authorities, in a file or a directory."""
    if ssl.create_default_context().cert_store_stats()["x509_ca"]:
        return True
    verify_paths = ssl.get_default_verify_paths()
    directories = os.environ.get(verify_paths.openssl_capath_env) or verify_paths.openssl_capath
    for directory in directories.split(os.pathsep):
        with suppress(OSError):
            if any(map(_HASHED_NAME.fullmatch, os.listdir(directory))):
                return True
    return False
