"""Certificates for servers on this machine, made anew for every run, so that none expires and no
key is stored in the project."""

from __future__ import annotations

import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path

import trustme

A_DAY = timedelta(days=1)


class Authority:
    """Authority that signs certificates for servers."""

    def __init__(self) -> None:
        self._ca = trustme.CA()

    def write(self, path: Path) -> Path:
        """Write the certificate of this authority, which clients trust, into a file."""
        self._ca.cert_pem.write_to_path(path)
        return path

    def server(self, *names: str) -> ssl.SSLContext:
        """Return the TLS context of a server with these names."""
        return _server_context(self._ca.issue_cert(*names))

    def expired(self, name: str) -> ssl.SSLContext:
        """Return the TLS context of a server whose certificate expired yesterday."""
        return _server_context(
            self._ca.issue_cert(name, not_after=datetime.now(timezone.utc) - A_DAY)
        )

    def not_yet_valid(self, name: str) -> ssl.SSLContext:
        """Return the TLS context of a server whose certificate is valid from tomorrow.

        A valid certificate looks like this to a computer whose clock is set back.
        """
        now = datetime.now(timezone.utc)
        return _server_context(
            self._ca.issue_cert(name, not_before=now + A_DAY, not_after=now + 2 * A_DAY)
        )

    def self_signed(self, directory: Path) -> ssl.SSLContext:
        """Return the TLS context of a server with a self-signed certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        path = directory / "self-signed.pem"
        path.write_bytes(self._ca.private_key_pem.bytes() + self._ca.cert_pem.bytes())
        context.load_cert_chain(path)
        return context


def _server_context(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context
