"""A proxy on 127.0.0.1 that connects host names to ports of this machine, or refuses to."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LocalProxy:
    """Proxy that accepts CONNECT requests, as HTTPS needs them.

    Args:
        ports: Ports of this machine to connect to, by requested host.
        status: HTTP status of the answers; the proxy refuses unless it is 200.
    """

    def __init__(self, ports: dict[str, int], status: int = 200) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                proxy.requests.append(
                    (self.path, {key.lower(): value for key, value in self.headers.items()})
                )
                self.send_response(status)
                self.end_headers()
                if status == 200:
                    _join(self.connection, ports[self.path.rpartition(":")[0]])

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    def __enter__(self) -> LocalProxy:
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        """Address of the proxy, as a value for https_proxy."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"


def _join(client: socket.socket, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as server:
        back = threading.Thread(target=_copy, args=(server, client), daemon=True)
        back.start()
        _copy(client, server)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
