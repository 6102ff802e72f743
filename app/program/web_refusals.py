"""Why something could not be had: each reason of a server, the hub or the network as one clean
line.

The hub says more than a status: ``X-Error-Code`` tells a repository whose terms no one accepted
from one that is not there, and ``RateLimit`` how long it wants to be left alone.

An old machine has reasons of its own: a clock that a dead battery set back, and certificates of
authorities that no one renewed. OpenSSL says neither; the lines here do, and what mends it.
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


class CertificateError(DownloadError):
    """The server cannot be trusted; the message says what mends that."""


class StatusError(DownloadError):
    """The server said no."""

    def __init__(self, message: str, status: int, pause_s: float | None = None) -> None:
        super().__init__(
            message,
            exit_codes.UNREADABLE if status < 500 and status != 429 else exit_codes.IO_ERROR,
        )
        self.status = status
        self.pause_s = pause_s


def pause_before_retry(error: DownloadError, attempt: int, waited_s: float = 0.0) -> float | None:
    """Return how long to wait before trying again, ``attempt`` of them in vain; None where that
    would not help."""
    if attempt >= MOST_RETRIES or (isinstance(error, StatusError) and error.status not in _RETRIED):
        return None
    if isinstance(error, StatusError):
        wanted_s = error.pause_s
    else:
        wanted_s = None
    if wanted_s is None:
        pause_s = float(2**attempt)
    else:
        pause_s = wanted_s
    if pause_s <= LONGEST_PAUSE_S and waited_s + pause_s <= LONGEST_WAIT_S:
        return pause_s
    return None


def refused(status: int, headers: Message, url: str, has_token: bool, is_hub: bool) -> StatusError:
    """Make the exception for an answer that is none; ``is_hub``: it is the hub's own, not of a
    server it leads to."""
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
            f"{when}{'' if has_token else '; with HF_TOKEN set it allows more'}"
        )
    return StatusError(f"{host_of(url)}: {words}", status, pause_s)


def _hub_words(status: int, headers: Message, has_token: bool) -> str:
    code = (headers.get("X-Error-Code") or "").strip()
    if code == "GatedRepo":
        terms = "gated: accept its terms on its page first"
        if has_token:
            return f"{terms}; this token has no right to it"
        return f"{terms}, then set HF_TOKEN"
    if "disabled" in (headers.get("X-Error-Message") or "").lower():
        return "access to it is disabled"
    by_code = {
        "RepoNotFound": "repository not found: check the name",
        "RevisionNotFound": "the repository has no such revision",
        "EntryNotFound": "the repository has no such file",
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
            f"refused{': the token has no right to it' if has_token else ': it may ask for a token'}"
        )
    if status == 404:
        return "repository or file not found: check the name"
    return _other_words(status)


def _other_words(status: int) -> str:
    words = {
        401: "it asks for a password",
        403: "access is refused (an address that has expired? try again)",
        404: "there is no such file",
        416: "the rest of the file cannot be had",
    }
    return words.get(
        status, f"answers with status {status}" + (": try again later" if status >= 500 else "")
    )


def pause_s_of(headers: Message) -> float | None:
    """Return how long a server wants to be left alone: the longest it says, in either way of saying
    so."""
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


_NOT_YET_VALID = 9
_EXPIRED = 10
_SELF_SIGNED = 18
_UNKNOWN_AUTHORITY = (2, 19, 20, 21)
_OTHER_HOST = (62, 63, 64)
"""OpenSSL's numbers for what is wrong with a certificate (x509_vfy.h)."""
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
    """Make the exception for a server that does not answer."""
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
        return DownloadError(
            f"{host}: what answers there does not speak HTTP: should the address begin with https?"
        )
    if isinstance(reason, http.client.HTTPException) and str(reason).startswith("got more than"):
        return DownloadError(f"{host}: the head of its answer is too long ({said(reason)})")
    return ConnectionCut(f"{host}: cannot be reached ({said(reason)})")


def said(error: Any) -> str:
    """Return what a system's error says."""
    if isinstance(error, TimeoutError):
        return "nothing came for too long"
    if isinstance(error, http.client.IncompleteRead):
        return "it ended too early"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _certificate_words(error: ssl.SSLCertVerificationError) -> str:
    today = time.strftime("%Y-%m-%d")
    if error.verify_code == _NOT_YET_VALID:
        return (
            f"its certificate is not valid yet by this computer's clock, which says {today}: set "
            f"the clock"
        )
    if error.verify_code == _EXPIRED:
        remedy = (
            "set the clock if that is wrong, else update this system's ca-certificates "
            "(or its owner has to renew it)"
        )
        return f"its certificate has expired by this computer's clock, which says {today}: {remedy}"
    if error.verify_code in _OTHER_HOST:
        return (
            "its certificate is for another host: check the address (or is a login page in "
            "between?)"
        )
    if error.verify_code in (_SELF_SIGNED, *_UNKNOWN_AUTHORITY) and not _knows_authorities():
        given = os.environ.get("SSL_CERT_FILE")
        if given:
            return (
                f"there is no certificate to check it by: SSL_CERT_FILE names {given[-100:]}, "
                f"which holds none"
            )
        return (
            "this system has no certificates to check any server by: install its package "
            "ca-certificates, "
            "or name a file of them in SSL_CERT_FILE"
        )
    if error.verify_code == _SELF_SIGNED:
        return (
            "its certificate is signed by no one but itself (a login page or a filter in "
            "between?): "
            "if you trust it, name its file in SSL_CERT_FILE"
        )
    if error.verify_code in _UNKNOWN_AUTHORITY:
        return (
            "its certificate is signed by an authority that this system does not know: update "
            "its ca-certificates; "
            "where a company or a filter signs, name that authority's file in SSL_CERT_FILE"
        )
    return f"its certificate cannot be verified ({error.verify_message})"


def _tls_words(error: ssl.SSLError) -> str:
    if error.reason in _NO_TLS:
        return (
            "does not speak TLS, as an https address promises: check the address (or is a login "
            "page in between?)"
        )
    if error.reason in _NO_COMMON_TLS:
        return (
            f"has no version of TLS in common with this system ({ssl.OPENSSL_VERSION}): one of "
            f"both is too old"
        )
    return f"no secure connection can be made ({error.reason or said(error)})"


def _knows_authorities() -> bool:
    """Whether this system has any certificate to check servers with: in a file, or in a directory
    by their hashes."""
    if ssl.create_default_context().cert_store_stats()["x509_ca"]:
        return True
    found = ssl.get_default_verify_paths()
    directories = os.environ.get(found.openssl_capath_env) or found.openssl_capath
    for directory in directories.split(os.pathsep):
        with suppress(OSError):
            if any(map(_HASHED_NAME.fullmatch, os.listdir(directory))):
                return True
    return False
