"""Servers that make no progress, and downloads that are stopped meanwhile."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.message import Message
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.models.downloads import hub
from app.models.downloads.job import DownloadStage, PullJob
from app.program import exit_codes, web
from app.program.settings import built_in_settings
from app.program.web import Web
from app.program.web_refusals import ConnectionCut, DownloadError, StatusError, pause_before_retry
from tests.app.models.downloads import local_hub
from tests.app.models.downloads.local_hub import LocalHub, cut, stalls, status
from tests.app.models.downloads.pulling import (
    NAME,
    REPOSITORY,
    client,
    content,
    get,
    refusal,
    remaining_files,
)

N_KEPT = 100_000
PATIENCE_S = 60.0


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition was not met in time"
        time.sleep(0.01)


# ---- attempts without progress


def cut_or(change: Callable[[Any], None]) -> Callable[[Any], None]:
    """Cut the whole file off at the same byte each time, and change answers to requests for the
    rest."""
    return lambda answer: (change if answer.status in (206, 416) else cut(N_KEPT))(answer)


@pytest.mark.parametrize(
    "change",
    [
        status(416),
        local_hub.with_headers(Content_Range="bytes 0-9/10"),
        local_hub.with_headers(Content_Range=""),
    ],
    ids=["416", "another range", "no range"],
)
def test_a_server_that_never_sends_the_rest_keeps_the_part(
    change: Callable[[Any], None], server: LocalHub, target: Path
) -> None:
    server.faults += [cut_or(change)] * 100
    assert isinstance(refusal(target), DownloadError)
    assert len(server.requests_to("content")) < 15
    assert (target / f"{NAME}.part").stat().st_size == N_KEPT


def test_a_server_without_ranges_is_read_past_the_kept_part(server: LocalHub, target: Path) -> None:
    server.faults += [cut(N_KEPT), status(416)]
    assert get(target) == exit_codes.OK
    assert (target / NAME).read_bytes() == content()
    assert "range" not in server.requests_to("content")[2].headers


def test_a_server_with_changing_content_is_given_up(server: LocalHub, target: Path) -> None:
    n_asked = iter(range(1000))

    def changing_content(answer: Any) -> None:
        number = next(n_asked)
        local_hub.ignore_range(answer)
        answer.body = b"GGUF" + bytes([number]) * (len(answer.body) - 4)
        cut(N_KEPT)(answer)

    server.faults += [changing_content] * 100
    assert "different bytes each time" in str(refusal(target))
    assert len(server.requests_to("content")) < 15


# ---- a part on disk


def without_length(answer: Any) -> None:
    local_hub.ignore_range(answer)
    del answer.headers["Content-Length"]


def page_without_length(answer: Any) -> None:
    without_length(answer)
    answer.body = b"<html>Please log in</html>"


def test_a_web_page_without_length_leaves_the_part(server: LocalHub, target: Path) -> None:
    server.faults += [cut(N_KEPT), page_without_length]
    assert "web page" in str(refusal(target))
    assert (target / f"{NAME}.part").read_bytes() == content()[:N_KEPT]
    assert get(target) == exit_codes.OK


def test_a_whole_file_without_length_continues_the_part(server: LocalHub, target: Path) -> None:
    server.faults += [cut(N_KEPT), without_length]
    assert get(target) == exit_codes.OK
    assert (target / NAME).read_bytes() == content()


def test_a_whole_file_that_is_cut_again_keeps_the_part(server: LocalHub, target: Path) -> None:
    def cut_early(answer: Any) -> None:
        without_length(answer)
        cut(10)(answer)

    server.faults += [cut(N_KEPT)] + [cut_early] * 100
    assert isinstance(refusal(target), ConnectionCut)
    assert (target / f"{NAME}.part").read_bytes() == content()[:N_KEPT]


def test_content_that_differs_after_the_start_replaces_the_part(
    server: LocalHub, target: Path
) -> None:
    def wrong_end(answer: Any) -> None:
        answer.body = content()[: N_KEPT - 50_000] + bytes(50_000)
        answer.cut_after = len(answer.body)

    server.faults += [wrong_end, local_hub.ignore_range]
    assert get(target) == exit_codes.OK
    assert (target / NAME).read_bytes() == content()


# ---- headers


@contextmanager
def endless_headers(beginning: bytes, again: bytes) -> Iterator[str]:
    """Serve answers whose headers never end."""
    listening = socket.create_server(("127.0.0.1", 0))
    is_over = threading.Event()

    def serve() -> None:
        with suppress(OSError):
            connection = listening.accept()[0]
            with connection:
                connection.sendall(beginning)
                while not is_over.wait(0.005):
                    connection.sendall(again)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        is_over.set()
        listening.close()
        thread.join(PATIENCE_S)


@pytest.mark.parametrize(
    ("beginning", "again"),
    [(b"", b"H"), (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a"), (b"", b"HTTP/1.1 100 Continue\r\n\r\n")],
    ids=["status line", "header", "100 for ever"],
)
def test_endless_headers_are_given_up(beginning: bytes, again: bytes) -> None:
    with (
        endless_headers(beginning, again) as url,
        pytest.raises(ConnectionCut, match="timed out"),
    ):
        Web(headers_s=0.2).get(url)


def test_the_time_limit_of_headers_is_not_for_the_body(
    server: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    monkeypatch.setattr("app.program.web.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr("app.program.web.FLOOR_BYTES", 0)
    response = client().get(f"{server.content_address}/{REPOSITORY}/{NAME}")
    now_s[0] = 1e9
    pieces = list(iter(partial(response.read, 1 << 16), b""))
    response.close()
    assert b"".join(pieces) == content()


# ---- the first request


def test_the_first_request_of_an_address_is_tried_again(server: LocalHub, target: Path) -> None:
    server.faults += [status(503), status(429, Retry_After="7"), status(502)]
    pauses: list[float] = []
    address = f"{server.content_address}/{REPOSITORY}/{NAME}"
    assert (
        get(target, address, client(pauses), sha256=local_hub.hashlib.sha256(content()).hexdigest())
        == exit_codes.OK
    )
    assert pauses == [1.0, 7.0, 4.0]


def test_the_first_request_is_tried_a_limited_number_of_times(
    server: LocalHub, target: Path
) -> None:
    server.faults += [status(503)] * 100
    address = f"{server.content_address}/{REPOSITORY}/{NAME}"
    assert isinstance(refusal(target, address, sha256="0" * 64), StatusError)
    assert len(server.faults) == 95


def test_all_pauses_together_have_a_limit_of_minutes() -> None:
    error = StatusError("busy", 503, 290.0)
    assert pause_before_retry(error, 0, 600.0) == 290.0
    assert pause_before_retry(error, 0, 700.0) is None
    assert pause_before_retry(StatusError("busy", 503, 301.0), 0) is None


# ---- stopping


def start(target: Path, pauses_s: float | None = None) -> PullJob:
    settings = dataclasses.replace(built_in_settings(), model_directories=(str(target),))
    job = PullJob(REPOSITORY, settings)
    job._connect = partial(hub.connect, pause=job._pause, timeout_s=300.0)
    return job.start()


def test_a_stopped_job_releases_its_part_on_a_silent_server(server: LocalHub, target: Path) -> None:
    server.faults.append(stalls)
    job = start(target)
    job.proceed()
    until(lambda: job.state.progress is not None and job.state.progress.done_bytes > 0)
    job.stop()
    until(lambda: job.state.is_over)
    assert job.state.stage is DownloadStage.STOPPED
    assert get(target) == exit_codes.OK


def test_a_stop_between_attempts_ends_the_pause_and_the_requests(
    server: LocalHub, target: Path
) -> None:
    server.hub_faults += [status(503, Retry_After="299")] * 100
    job = start(target)
    until(lambda: len(server.hub_faults) == 99)
    job.stop()
    until(lambda: job.state.is_over)
    assert job.state.stage is DownloadStage.STOPPED
    assert len(server.hub_faults) == 99
    assert remaining_files(target) == []


@pytest.mark.parametrize(("piece_bytes", "is_kept"), [(1, False), (20_000, False), (40_000, True)])
def test_a_very_slow_body_is_given_up_after_some_minutes(
    piece_bytes: int, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0

    class Body:
        status = 200
        headers = Message()

        def read1(self, _: int) -> bytes:
            nonlocal now_s
            now_s += 29.0  # one more second, and the connection would count as dead
            return b"x" * piece_bytes

    monkeypatch.setattr(web, "time", SimpleNamespace(monotonic=lambda: now_s))
    body: Any = Body()
    response = web.Response(body, "http://127.0.0.1/model")
    read = [response.read(1 << 16) for _ in range(4)]
    if is_kept:
        read += [response.read(1 << 16) for _ in range(100)]
    else:
        with pytest.raises(ConnectionCut, match=r"^127.0.0.1: is too slow \(less than 1 kB/s"):
            response.read(1 << 16)
    assert all(len(piece) == piece_bytes for piece in read)
