"""Certificates for servers on this machine, made for every run: none expires, and no key lies in
the project."""

from __future__ import annotations

import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path

import trustme

A_DAY = timedelta(days=1)


class Authority:
    """Signs certificates for servers."""

    def __init__(self) -> None:
        self._ca = trustme.CA()

    def write(self, path: Path) -> Path:
        """Write its own certificate, by which those that it signs are checked, into a file."""
        self._ca.cert_pem.write_to_path(path)
        return path

    def server(self, *names: str) -> ssl.SSLContext:
        """Return what a server of these names speaks TLS with."""
        return _speaking(self._ca.issue_cert(*names))

    def expired(self, name: str) -> ssl.SSLContext:
        """The same with a certificate that ended yesterday."""
        return _speaking(self._ca.issue_cert(name, not_after=datetime.now(timezone.utc) - A_DAY))

    def not_yet_valid(self, name: str) -> ssl.SSLContext:
        """The same with one that begins tomorrow, as today's do for a clock that was set back."""
        now = datetime.now(timezone.utc)
        return _speaking(
            self._ca.issue_cert(name, not_before=now + A_DAY, not_after=now + 2 * A_DAY)
        )

    def self_signed(self, directory: Path) -> ssl.SSLContext:
        """The same with a certificate that no one else signed."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        both = directory / "self-signed.pem"
        both.write_bytes(self._ca.private_key_pem.bytes() + self._ca.cert_pem.bytes())
        context.load_cert_chain(both)
        return context


def _speaking(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context
