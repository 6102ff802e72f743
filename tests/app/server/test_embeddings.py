"""Tests of embeddings and ranking over HTTP, with tiny real models."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.backend.local import engine_access
from app.server import served_engine
from app.server.dialects.embeddings import read_ollama_embed_request
from app.server.fields import Fields
from engine import Model
from tests.app.fake_engine import Script
from tests.app.server import serving as scripted
from tests.app.server.serving import Serving, serving
from tests.engine import tiny_gguf
from tests.engine.architectures import encoders

pytestmark = pytest.mark.slow


@contextmanager
def served(monkeypatch: pytest.MonkeyPatch, path: Path) -> Iterator[Serving]:
    """Serve a file instead of the scripted engine."""
    monkeypatch.setattr(scripted, "use_script", lambda patch, script: script)
    monkeypatch.setattr(
        engine_access, "open_model", lambda settings, name, *options: Model.open(path, threads=1)
    )
    with serving(monkeypatch, Script()) as server:
        yield server


def vectors(server: Serving, texts: Any, **fields: Any) -> np.ndarray:
    answer = server.post("/v1/embeddings", {"input": texts, "model": "any", **fields}).json()
    assert [entry["index"] for entry in answer["data"]] == list(range(len(answer["data"])))
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 0
    return np.array([entry["embedding"] for entry in answer["data"]])


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "input is missing"),
    ({"input": []}, "list of 1 to 2048"),
    ({"input": ["a", 5]}, "input[1] is 5"),
    ({"input": {"text": "a"}}, "input is an object"),
    ({"input": ["a"] * 2049}, "list of 1 to 2048"),
    ({"input": [10**9]}, "token ids must be 0 to"),
    ({"input": [[]]}, "no tokens"),
    ({"input": "a " * 900}, "is too long: at most 128"),
    ({"input": "a", "dimensions": 0}, "dimensions is 0"),
    ({"input": "a", "dimensions": 65}, "this model has 64"),
    ({"input": "a", "encoding_format": "int8"}, "one of float, base64"),
]


def test_an_encoder_serves_only_vectors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = encoders.bert().write(tmp_path / "bert.gguf")
    with served(monkeypatch, path) as server:
        expected = vectors(server, ["a cat", "the sea"])
        model = Model.open(path, threads=2)
        ids = model.tokenizer.encode("the sea", special=False)
        assert np.allclose(expected[1], model.embedder.embed(ids), atol=1e-6)
        model.close()
        for entry in ("the sea", ids, [ids]):
            assert (vectors(server, entry)[0] == expected[1]).all()
        short = vectors(server, "the sea", dimensions=8)[0]
        assert np.allclose(short, expected[1][:8] / np.linalg.norm(expected[1][:8]))
        answer = server.post(
            "/v1/embeddings", {"input": "the sea", "encoding_format": "base64"}
        ).json()
        raw = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4")
        assert np.allclose(raw, expected[1])
        response = server.post(
            "/api/embed", {"model": "any", "input": ["a cat", "the sea"], "truncate": True}
        ).json()
        assert np.allclose(response["embeddings"], expected)
        assert (response["model"], response["prompt_eval_count"] > len(ids)) == ("m", True)
        refused = server.chat()
        assert (refused.status_code, "writes no text" in refused.text) == (400, True)
        assert server.post("/tokenize", {"content": "the sea"}).status_code == 200
        assert server.get("/v1/models").json()["data"][0]["id"] == "m"
        engine = server.running._models.opened["m"].engine
        claimed_before = engine.claimed_bytes
        n_floats = 100 * engine.model.config.activation_floats
        assert claimed_before > engine.model.weights_bytes + 4 * n_floats
        vectors(server, "a " * 50)
        assert engine.model.weights_bytes < engine.claimed_bytes < claimed_before
        _check_ollama(server, path, expected[1])
        for body, why in WRONG:
            refused = server.post("/v1/embeddings", body)
            assert (refused.status_code, why in refused.json()["error"]["message"]) == (
                400,
                True,
            ), body


def _check_ollama(server: Serving, path: Path, vector: np.ndarray) -> None:
    """Check that Ollama's routes cut long texts and answer empty ones."""
    assert np.allclose(
        server.post("/api/embeddings", {"prompt": "the sea"}).json()["embedding"], vector
    )
    assert server.post("/api/embeddings", {"model": "m"}).json() == {"embedding": []}
    for empty in ({}, {"input": []}, {"input": ""}):
        assert server.post("/api/embed", empty).json()["embeddings"] == []
    long = "a " * 900
    cut = server.post("/api/embed", {"input": [long, "the sea"]}).json()
    assert cut["prompt_eval_count"] > 128
    assert cut["total_duration"] >= cut["load_duration"] > 0
    model = Model.open(path, threads=1)
    ids = model.tokenizer.encode(long, special=False)
    first = model.embedder.embed(ids[:128])
    model.close()
    assert np.allclose(cut["embeddings"], [first, vector], atol=1e-6)
    assert np.allclose(
        server.post("/api/embeddings", {"prompt": long}).json()["embedding"], first, atol=1e-6
    )
    refused = server.post("/api/embed", {"input": long, "truncate": False})
    assert (refused.status_code, "is too long: at most 128" in refused.json()["error"]) == (
        400,
        True,
    )


@pytest.mark.parametrize(("add_eos", "end"), [(True, 9), (False, 4)])
def test_a_cut_text_keeps_its_end_token(add_eos: bool, end: int) -> None:
    class Tokenizer:
        eos_id = 9
        most_token_bytes = 3

        def __init__(self) -> None:
            self.add_eos = add_eos

        def encode(self, text: str, special: bool) -> list[int]:
            assert len(text) <= 12
            return [*range(1, len(text) + 1), *([9] if add_eos else [])]

    class Embedder:
        n_ctx = 4
        dim = 1

        def embed(self, ids: list[int]) -> np.ndarray:
            return np.array(ids)

    class Chat:
        tokenizer = Tokenizer()
        embedder = Embedder()

    answer = read_ollama_embed_request(Fields({"input": "a" * 100})).compute("m", Chat())
    assert answer["embeddings"] == [[1, 2, 3, end]]


def test_a_reranker_orders_documents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = encoders.judging(encoders.bert(), 1, has_dense=True).write(tmp_path / "judge.gguf")
    texts = ["the sea", "a cat on the mat", "he ran", "an inn"]
    model = Model.open(path, threads=1)
    scores = [model.embedder.rank(model.pair_ids("a cat", text)) for text in texts]
    model.close()
    with served(monkeypatch, path) as server:
        body = {
            "query": "a cat",
            "documents": [*texts[:3], {"text": texts[3]}],
            "return_documents": True,
        }
        results = server.post("/v1/rerank", body).json()["results"]
        assert [entry["index"] for entry in results] == np.argsort(-np.array(scores)).tolist()
        assert [entry["document"]["text"] for entry in results] == [
            texts[entry["index"]] for entry in results
        ]
        assert np.allclose(
            [entry["relevance_score"] for entry in results], sorted(scores, reverse=True), atol=1e-5
        )
        assert server.post("/v1/rerank", {**body, "top_n": 2}).json()["results"] == results[:2]
        for wrong, why in (
            ({"query": "a"}, "documents is missing"),
            ({**body, "documents": [1]}, "documents[0] is 1"),
        ):
            assert why in server.post("/v1/rerank", wrong).json()["error"]["message"]
        assert (
            "judges documents"
            in server.post("/v1/embeddings", {"input": "a"}).json()["error"]["message"]
        )


@pytest.mark.smoke
def test_a_chat_model_makes_vectors_next_to_its_replies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(served_engine, "MAX_AT_ONCE", 2)
    path = tiny_gguf.write(tmp_path / "m.gguf", "qwen3", context_length=512)
    with served(monkeypatch, path) as server:
        request_body = {"prompt": "once", "max_tokens": 40, "temperature": 0}
        text = server.post("/v1/completions", request_body).json()["choices"][0]["text"]
        alone = vectors(server, "the sea")
        with server.raw() as writing:
            raw = b'{"prompt": "once", "max_tokens": 300, "temperature": 0, "stream": true}'
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
            writing.sendall(head % len(raw) + raw)
            assert writing.recv(1)  # the reply has started
            assert (vectors(server, "the sea") == alone).all()
        assert server.post("/v1/completions", request_body).json()["choices"][0]["text"] == text
        refused = server.post("/v1/rerank", {"query": "a", "documents": ["b"]})
        assert "does not judge documents" in refused.json()["error"]["message"]
