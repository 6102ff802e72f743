"""Answers with endless lines: the HTTP library alone would read "100 Continue" headers and
trailers forever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.program.web import Web
from app.program.web_refusals import DownloadError
from tests.programs.fuzz.servers import content, serving, sound_content

ENDLESS: dict[str, dict[str, Any]] = {
    "heads": {"head": "HTTP/1.1 100 Continue", "body": "100s"},
    "trailers": {"head": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", "body": "trailers"},
}


@pytest.fixture
def web(clean_network: None) -> Web:
    return Web(pause=lambda _: None)


@pytest.mark.parametrize("case", ENDLESS)
def test_endless_lines_are_reported_in_one_line(case: str, web: Web) -> None:
    with serving([ENDLESS[case]] * 9, sound_content) as server:
        with pytest.raises(DownloadError) as caught:
            web.get_body(server.address + "/x")
        assert "does not end" in str(caught.value)
        assert server.most_taken_bytes < 40 << 20


def test_a_body_in_many_small_chunks_is_read(web: Web, tmp_path: Path) -> None:
    body = "".join(f"1\r\n{char}\r\n" for char in "x" * 100_000) + "0\r\nX-After: y\r\n\r\n"
    head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked"
    with serving([{"head": head, "body": body}], sound_content) as server:
        assert web.get_body(server.address + "/x") == b"x" * 100_000


def test_a_sound_answer_is_read(web: Web) -> None:
    with serving(
        [{"head": "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK"}], sound_content
    ) as server:
        assert web.get_body(server.address + "/x") == content()
