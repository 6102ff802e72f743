"""Why no answer came: no network, nobody there, or no connection that could be trusted; one clean line each.

An old machine has two reasons of its own: a clock that a dead battery set back, and certificates of authorities that
nobody renewed. OpenSSL says neither; the lines here do, and what mends it.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import ssl
import time
from typing import Any

from app.downloads.refusal import ConnectionCut, DownloadError, host_of

_NOT_YET_VALID, _EXPIRED = 9, 10
_SELF_SIGNED = 18
_UNKNOWN_AUTHORITY = (2, 19, 20, 21)
_OTHER_HOST = (62, 63, 64)
"""OpenSSL's numbers for what is wrong with a certificate (x509_vfy.h)."""
_NO_TLS = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE")
_NO_COMMON_TLS = ("UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "SSLV3_ALERT_HANDSHAKE_FAILURE")
_HASHED_NAME = re.compile(r"[0-9a-f]{8}\.[0-9]+")


def unreachable(url: str, reason: Any) -> DownloadError:
    """Make the exception for a server that does not answer."""
    host = host_of(url)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return DownloadError(f"{host}: {_certificate_words(reason)}; nothing was sent")
    if isinstance(reason, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return ConnectionCut(f"{host}: the connection ended while it was being secured")
    if isinstance(reason, ssl.SSLError):
        return DownloadError(f"{host}: {_tls_words(reason)}")
    if isinstance(reason, socket.gaierror):
        return DownloadError(f"{host}: the name is not known: no network?")
    if isinstance(reason, http.client.BadStatusLine) and not isinstance(reason, ConnectionError):
        return DownloadError(f"{host}: what answers there does not speak HTTP: should the address begin with https?")
    return ConnectionCut(f"{host}: cannot be reached ({said(reason)})")


def said(error: Any) -> str:
    """Return what a system's error says."""
    if isinstance(error, TimeoutError):
        return "nothing came for too long"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _certificate_words(error: ssl.SSLCertVerificationError) -> str:
    today = time.strftime("%Y-%m-%d")
    if error.verify_code == _NOT_YET_VALID:
        return f"its certificate is not valid yet by this computer's clock, which says {today}: set the clock"
    if error.verify_code == _EXPIRED:
        remedy = (
            "set the clock if that is wrong, else update this system's ca-certificates (or its owner has to renew it)"
        )
        return f"its certificate has expired by this computer's clock, which says {today}: {remedy}"
    if error.verify_code in _OTHER_HOST:
        return "its certificate is for another host: check the address (or is a login page in between?)"
    if error.verify_code in (_SELF_SIGNED, *_UNKNOWN_AUTHORITY) and not _knows_authorities():
        return _no_authorities_words()
    if error.verify_code == _SELF_SIGNED:
        return (
            "its certificate is signed by nobody but itself (a login page or a filter in between?): "
            "if you trust it, name its file in SSL_CERT_FILE"
        )
    if error.verify_code in _UNKNOWN_AUTHORITY:
        return (
            "its certificate is signed by an authority that this system does not know: update its ca-certificates; "
            "where a company or a filter signs, name that authority's file in SSL_CERT_FILE"
        )
    return f"its certificate cannot be verified ({error.verify_message})"


def _tls_words(error: ssl.SSLError) -> str:
    if error.reason in _NO_TLS:
        return "does not speak TLS, as an https address promises: check the address (or is a login page in between?)"
    if error.reason in _NO_COMMON_TLS:
        return f"has no version of TLS in common with this system ({ssl.OPENSSL_VERSION}): one of both is too old"
    return f"no secure connection can be made ({error.reason or said(error)})"


def _knows_authorities() -> bool:
    """Whether this system has any certificate to check servers with: in a file, or in a directory by their hashes."""
    if ssl.create_default_context().cert_store_stats()["x509_ca"]:
        return True
    found = ssl.get_default_verify_paths()
    directories = os.environ.get(found.openssl_capath_env) or found.openssl_capath
    return any(map(_has_certificates, directories.split(os.pathsep)))


def _has_certificates(directory: str) -> bool:
    try:
        return any(_HASHED_NAME.fullmatch(name) for name in os.listdir(directory))
    except OSError:
        return False


def _no_authorities_words() -> str:
    given = os.environ.get("SSL_CERT_FILE")
    if given:
        return f"there is no certificate to check it by: SSL_CERT_FILE names {given[-100:]}, which holds none"
    return (
        "this system has no certificates to check any server by: install its package ca-certificates, "
        "or name a file of them in SSL_CERT_FILE"
    )
