"""Pictures over the API: each dialect's form, and refusals that name the field."""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from app.conversations.conversation import PromptMessage
from app.conversations.pictures import MARK
from app.server import request_pictures
from app.server.api_error import ApiError
from app.server.dialects.anthropic_request import read_message_request
from app.server.dialects.ollama import read_chat_request as read_ollama_request
from app.server.dialects.ollama import read_generate_request
from app.server.dialects.openai_request import read_chat_request
from app.server.dialects.responses_request import read_response_request
from app.server.fields import Fields
from app.server.message_order import fit_template
from app.server.request_pictures import RequestPictures
from tests.app.fake_engine import Script
from tests.app.server.serving import serving
from tests.app.server.tiny_server import N_CTX, tiny_server
from tests.engine import families, tiny_gguf
from tests.engine.vision import tiny_mmproj


def png(seed: int = 0, width: int = 90, height: int = 60) -> bytes:
    file = io.BytesIO()
    Image.fromarray(tiny_mmproj.picture(width, height, seed)).save(file, "PNG")
    return file.getvalue()


def base64_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


def url_of(content: bytes) -> str:
    return f"data:image/png;base64,{base64_of(content)}"


CAT = png(1)
DOG = png(2)


def user(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts), **fields}


def text(words: str, part_type: str = "text") -> dict[str, Any]:
    return {"type": part_type, "text": words}


def shown(url: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def only_message(messages: tuple[PromptMessage, ...] | None) -> PromptMessage:
    assert messages is not None
    assert len(messages) == 1
    return messages[0]


def test_parts_of_chat_completions_keep_their_order() -> None:
    parts = [text("a "), shown(url_of(CAT), detail="low"), text(" b"), shown(url_of(DOG))]
    message = only_message(read_chat_request(Fields({"messages": [user(*parts)]}), "m").messages)
    assert message.text == f"a {MARK} b{MARK}"
    assert [picture.data for picture in message.pictures] == [CAT, DOG]
    assert [picture.detail for picture in message.pictures] == ["low", ""]


def test_responses_and_messages_take_pictures() -> None:
    parts = [
        {"type": "input_image", "image_url": url_of(CAT), "detail": "high"},
        text("a", "input_text"),
    ]
    message = only_message(read_response_request(Fields({"input": [user(*parts)]}), "m").messages)
    assert (message.text, message.pictures[0].data) == (f"{MARK}a", CAT)
    assert message.pictures[0].detail == "high"

    source = {"type": "base64", "media_type": "image/png", "data": base64_of(CAT)}
    fields = {
        "max_tokens": 5,
        "messages": [user({"type": "image", "source": source}, text("a"))],
    }
    message = only_message(read_message_request(Fields(fields), "m").messages)
    assert (message.text, message.pictures[0].data) == (f"{MARK}\n\na", CAT)


def test_ollama_takes_pictures_in_a_field_of_their_own() -> None:
    images = [base64_of(CAT), base64_of(DOG)]
    fields = {"messages": [{"role": "user", "content": "a", "images": images}]}
    message = only_message(read_ollama_request(Fields(fields), "m").messages)
    assert message.text == f"{MARK}{MARK}a"
    assert [picture.data for picture in message.pictures] == [CAT, DOG]
    fields = {"prompt": "a", "images": images[:1]}
    message = only_message(read_generate_request(Fields(fields), "m").messages)
    assert (message.text, message.pictures[0].data) == (f"{MARK}a", CAT)


def test_joined_messages_keep_their_pictures() -> None:
    fields = {"messages": [user(shown(url_of(CAT))), user(text("a"), shown(url_of(DOG)))]}
    messages = read_chat_request(Fields(fields), "m").messages
    assert messages is not None
    joined = only_message(fit_template(messages, lambda roles: False))
    assert joined.text == f"{MARK}\n\na{MARK}"
    assert [picture.data for picture in joined.pictures] == [CAT, DOG]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (user(shown("https://example.com/a.png")), "messages[0].content[0].image_url.url"),
        (user(shown("file:///etc/passwd")), "messages[0].content[0].image_url.url"),
        (user(shown("data:image/png;base64,")), "messages[0].content[0].image_url.url"),
        (user(shown("data:text/html;base64,aGk=")), "messages[0].content[0].image_url.url"),
        (user(shown("data:image/png;base64,a$")), "messages[0].content[0].image_url.url"),
        (user(shown(5)), "messages[0].content[0].image_url.url"),
        (user({"type": "image_url"}), "messages[0].content[0].image_url"),
        (user(shown("a.png")), "messages[0].content[0].image_url.url"),
        (user(shown("")), "messages[0].content[0].image_url.url"),
        (user(shown(url_of(b"no picture"))), "messages[0].content[0]"),
        (user({"type": "input_image", "file_id": "x"}), "messages[0].content[0].image_url"),
        (user(*[shown(url_of(CAT))] * 33), "messages[0].content[32]"),
        (
            {"role": "assistant", "content": [shown(url_of(CAT))]},
            "messages[0].content[0].type",
        ),
        ({"role": "user", "content": "a", "images": [5]}, "messages[0].images[0]"),
        ({"role": "system", "content": "a", "images": ["aGk="]}, "messages[0].images"),
    ],
)
def test_pictures_that_cannot_be_taken_are_named(message: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_chat_request(Fields({"messages": [message]}), "m")
    assert refused.value.param == param
    assert refused.value.status == 400


def test_a_request_has_limits_for_all_its_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    message = user(*[shown(url_of(CAT))] * 3)
    for name, limit, status in (
        ("MAX_PICTURES", 5, 400),
        ("MAX_BYTES", 5 * len(CAT), 413),
        ("MAX_PIXELS", 5 * 90 * 60, 413),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(request_pictures, name, limit)
            read_chat_request(Fields({"messages": [message]}), "m")
            with pytest.raises(ApiError, match=r"of this request|into one request") as refused:
                read_chat_request(Fields({"messages": [message, message]}), "m")
        assert refused.value.status == status
        assert refused.value.param == "messages[1].content[2]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of pictures with one in a folder inside, and links out of it."""
    folder = tmp_path / "pictures"
    (folder / "cats").mkdir(parents=True)
    (folder / "cats" / "a cat.png").write_bytes(CAT)
    (tmp_path / "secret.png").write_bytes(DOG)
    (folder / "out.png").symlink_to(tmp_path / "secret.png")
    (folder / "outside").symlink_to(tmp_path)
    (folder / "in.png").symlink_to(folder / "cats" / "a cat.png")
    (folder / "notes.txt").write_text("no picture")
    os.mkfifo(folder / "pipe.png")
    return folder


def read_file(folder: Path, url: str) -> bytes:
    fields = Fields({"messages": [user(shown(url))]}, pictures=RequestPictures(folder))
    return only_message(read_chat_request(fields, "m").messages).pictures[0].data


def test_files_of_an_allowed_folder_are_read(folder: Path) -> None:
    path = folder / "cats" / "a cat.png"
    for url in (path.as_uri(), str(path), "cats/a cat.png", "in.png", "cats/../cats/a cat.png"):
        assert read_file(folder, url) == CAT
    assert read_file(folder, f"file://localhost{path}") == CAT
    source = {"type": "url", "url": path.as_uri()}
    fields = {"max_tokens": 5, "messages": [user({"type": "image", "source": source}, text("a"))]}
    request = read_message_request(Fields(fields, pictures=RequestPictures(folder)), "m")
    assert only_message(request.messages).pictures[0].data == CAT


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("out.png", "is no file in the folder"),
        ("outside/secret.png", "is no file in the folder"),
        ("../secret.png", "is no file in the folder"),
        ("../missing.png", "is no file in the folder"),
        ("/etc/passwd", "is no file in the folder"),
        ("file:///etc/passwd", "is no file in the folder"),
        ("file://elsewhere/a.png", "is no file in the folder"),
        ("file://[elsewhere/a.png", "is no file in the folder"),
        ("file:///%2e%2e/secret.png", "is no file in the folder"),
        ("a\0b.png", "is no file in the folder"),
        (".", "is no file in the folder"),
        ("x" * 5000, "is no file in the folder"),
        ("missing.png", "missing.png: no such file"),
        ("cats", "cats: "),
        ("notes.txt", "is no picture of a known format"),
        ("pipe.png", "is not a regular file"),
        ("https://example.com/a.png", "fetches nothing from the network"),
        ("HTTP://example.com/a.png", "fetches nothing from the network"),
    ],
)
def test_nothing_outside_of_the_folder_is_read(folder: Path, url: str, problem: str) -> None:
    with pytest.raises(ApiError, match=re.escape(problem)) as refused:
        read_file(folder, url)
    assert refused.value.status == 400
    assert "secret" not in refused.value.message


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [user(shown(url_of(CAT)), text("a"))]}),
        (
            "/v1/responses",
            {"input": [user({"type": "input_image", "image_url": url_of(CAT)})]},
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 5,
                "messages": [
                    user({"type": "image", "source": {"type": "base64", "data": base64_of(CAT)}})
                ],
            },
        ),
        ("/api/chat", {"messages": [{"role": "user", "images": [base64_of(CAT)]}]}),
    ],
)
def test_a_model_without_eyes_says_so(
    path: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(monkeypatch, Script()) as server:
        for is_streamed in (False, True):
            answer = server.post(path, {"model": "m", **fields, "stream": is_streamed})
            assert answer.status_code == 400
            assert "error" in answer.json()
            assert "cannot read pictures" in answer.text
            assert "--mmproj" in answer.text


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("tiny")
    described = families.keyed(
        tiny_gguf.model("qwen3vl", dim=tiny_mmproj.TEXT_WIDTH, head_dim=16, context_length=N_CTX),
        **{"rope.dimension_sections": np.array([3, 3, 2, 0], "<i4")},
    )
    tiny_mmproj.qwen3vl().write(folder / "mmproj-m.gguf")
    with tiny_server(folder, described=described) as client:
        yield client


def ask(client: httpx.Client, *contents: bytes, words: str = "What is it?") -> dict[str, Any]:
    parts = [*(shown(url_of(content)) for content in contents), text(words)]
    body = {"messages": [user(*parts)], "max_tokens": 1, "temperature": 0, "logprobs": True}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def cached_tokens(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.slow
def test_a_reply_depends_on_the_picture(client: httpx.Client) -> None:
    cat, dog, both = (ask(client, *contents) for contents in ([CAT], [DOG], [CAT, DOG]))
    n_tokens = [answer["usage"]["prompt_tokens"] for answer in (cat, dog, both)]
    assert n_tokens[0] == n_tokens[1] < n_tokens[2]
    logprobs = [answer["choices"][0]["logprobs"]["content"][0] for answer in (cat, dog, both)]
    assert logprobs[0]["logprob"] != logprobs[1]["logprob"]


@pytest.mark.slow
def test_a_picture_is_read_once(client: httpx.Client) -> None:
    first = ask(client, CAT)
    again = ask(client, CAT, words="What colour has it?")
    other = ask(client, png(7))
    n_rows = 8
    assert first["usage"]["prompt_tokens"] - cached_tokens(again) < 40
    assert cached_tokens(again) >= cached_tokens(other) + n_rows


@pytest.mark.slow
def test_counted_tokens_include_pictures(client: httpx.Client) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64_of(CAT)}
    image = {"type": "image", "source": source}
    counts = []
    for parts in ([text("a")], [image, text("a")], [image, image, text("a")]):
        body = {"messages": [user(*parts)], "model": "m"}
        answer = client.post("/v1/messages/count_tokens", json=body)
        assert answer.status_code == 200, answer.text
        counts.append(answer.json()["input_tokens"])
    answer = client.post("/v1/messages", json={**body, "max_tokens": 1})
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counts[2]
    n_picture = counts[1] - counts[0]
    assert n_picture >= 6
    assert counts[2] - counts[1] == n_picture


@pytest.mark.slow
def test_a_model_that_sees_says_so(client: httpx.Client) -> None:
    assert client.get("/props").json()["modalities"]["vision"]
    capabilities = client.post("/api/show", json={"model": "m"}).json()["capabilities"]
    assert "vision" in capabilities


@pytest.mark.slow
def test_a_broken_picture_is_refused_and_nothing_is_lost(client: httpx.Client) -> None:
    body = {"messages": [user(shown(url_of(b"no picture")), text("a"))]}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "image_error"
    assert "no picture of a known format" in answer.json()["error"]["message"]
    ask(client, CAT)
