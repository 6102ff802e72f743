"""Tests of filling in a gap: ``/infill``, ``suffix``, and what ends the text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.backend.local.model import TurnPrompt
from app.program.settings import built_in_settings
from app.server.api_error import ApiError
from app.server.completion_request import MIN_MOVED_TOKENS, CompletionRequest
from app.server.dialects import ollama
from app.server.dialects.llama_server import read_completion_request, read_infill_request
from app.server.dialects.openai_request import read_chat_request
from app.server.dialects.openai_request import read_completion_request as read_openai_request
from app.server.fields import Fields
from app.server.line_limit import LineLimit
from app.server.reply_task import Finish, ReplyTask
from app.server.reply_writer import ReplyWriter
from engine.errors import Cancelled
from engine.prompt.infill import InfillText
from tests.app.server.tiny_server import tiny_server

BODY: dict[str, Any] = {"input_prefix": "def add(a, b):\n", "input_suffix": "\nprint(1)\n"}
VIM: dict[str, Any] = {
    **BODY, "id_slot": 0, "input_extra": [{"text": "x = 1\n", "time": [1, 2], "filename": "a.py"}],
    "prompt": "    re", "n_predict": 4, "stop": [], "n_indent": 4, "top_k": 40, "top_p": 0.9,
    "samplers": ["top_k", "top_p", "infill"], "stream": False, "cache_prompt": True,
    "t_max_prompt_ms": 500, "t_max_predict_ms": 250, "model": "",
    "response_fields": ["content", "timings/prompt_n", "truncated", "tokens_cached", "nowhere/x"],
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with tiny_server(
        tmp_path_factory.mktemp("tiny"), marks={"pre": 5, "suf": 6, "mid": 7}
    ) as client:
        yield client


def test_the_request_of_an_editor_is_answered(tiny: httpx.Client) -> None:
    for _ in range(2):
        answer = tiny.post("/infill", json=VIM)
        assert answer.status_code == 200, answer.text
    assert set(answer.json()) == {"content", "timings/prompt_n", "truncated", "tokens_cached"}
    assert answer.text.startswith('{"content":"')
    assert "\n" not in answer.text
    assert answer.json()["timings/prompt_n"] == 1


def test_all_fields_come_unless_some_are_named(tiny: httpx.Client) -> None:
    fields = tiny.post("/infill", json={**BODY, "n_predict": 3, "ignore_eos": True}).json()
    assert (fields["stop"], fields["stop_type"], fields["tokens_predicted"]) == (True, "limit", 3)
    assert fields["tokens_cached"] == fields["tokens_evaluated"] + 3
    assert fields["timings"]["predicted_n"] == 3
    stream = tiny.post("/completion", json={"prompt": "a b", "n_predict": 2, "stream": True}).text
    last = json.loads(stream.strip().rpartition("data: ")[2])
    assert (last["stop"], last["content"]) == (True, "")


def test_a_prompt_may_be_read_ahead(tiny: httpx.Client) -> None:
    extra = [{"text": "ahead of time\n" * 4}]
    ahead = {"input_prefix": "", "input_suffix": "", "input_extra": extra, "n_predict": 0}
    answer = tiny.post("/infill", json={**ahead, "response_fields": [""], "samplers": []})
    assert (answer.status_code, answer.text) == (200, "{}")
    later = tiny.post("/infill", json={**BODY, "input_extra": extra, "n_predict": 1}).json()
    assert later["timings"]["cache_n"] > 20


def test_long_texts_are_cut_and_the_answer_says_so(tiny: httpx.Client) -> None:
    long = {**BODY, "input_suffix": "y = 2\n" * 5000, "n_predict": 1}
    assert tiny.post("/infill", json=long).json()["truncated"] is True
    extra = [{"text": "x = 1\n" * 20}] * 3000
    answer = tiny.post("/infill", json={**BODY, "input_extra": extra, "n_predict": 1}).json()
    assert answer["truncated"] is True
    assert tiny.post("/infill", json={**BODY, "n_predict": 1}).json()["truncated"] is False


def test_all_ways_to_fill_in_have_the_same_prompt(tiny: httpx.Client) -> None:
    prefix, suffix = BODY["input_prefix"], BODY["input_suffix"]
    n_tokens = tiny.post("/infill", json={**BODY, "n_predict": 1}).json()["tokens_evaluated"]
    openai = tiny.post(
        "/v1/completions", json={"prompt": prefix, "suffix": suffix, "max_tokens": 1}
    )
    assert openai.json()["usage"]["prompt_tokens"] == n_tokens
    body = {"prompt": prefix, "suffix": suffix, "stream": False, "options": {"num_predict": 1}}
    assert tiny.post("/api/generate", json=body).json()["prompt_eval_count"] == n_tokens


def test_a_model_without_marks_refuses_in_words(tmp_path: Path) -> None:
    with tiny_server(tmp_path) as client:
        answer = client.post("/infill", json=BODY)
        assert answer.status_code == 501
        assert "Infill is not supported by this model" in answer.text
        assert "prefix, suffix, middle" in answer.text
        answer = client.post("/v1/completions", json={"prompt": "a", "suffix": "b"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "suffix")
        answer = client.post("/api/generate", json={"prompt": "a", "suffix": "b", "stream": False})
        assert answer.status_code == 400
        assert "suffix" in answer.json()["error"]


def test_a_key_reads_little_with_the_suffix_first(tmp_path: Path) -> None:
    marks = {"pre": 5, "suf": 6, "mid": 7}
    with tiny_server(tmp_path, marks, suffix_first=True) as client:
        for line in ("x", "xy"):
            body = {**BODY, "input_suffix": "y = 2\n" * 20, "prompt": line, "n_predict": 1}
            timings = client.post("/infill", json=body).json()["timings"]
    assert timings["prompt_n"] <= 3
    assert timings["cache_n"] > 20


@pytest.mark.parametrize(
    ("n_cache_reuse", "is_moved"), [(1, True), (100, True), (0, False), (None, False)]
)
def test_a_key_does_not_read_a_long_suffix_again(
    tmp_path: Path, n_cache_reuse: int | None, is_moved: bool
) -> None:
    suffix = "".join(f"y = {n}\n" for n in range(100))
    body = {**BODY, "input_suffix": suffix, "n_predict": 1, "n_cache_reuse": n_cache_reuse}
    with tiny_server(tmp_path, marks={"pre": 5, "suf": 6, "mid": 7}) as client:
        for line in ("x", "xy"):
            timings = client.post("/infill", json={**body, "prompt": line}).json()["timings"]
    n_tokens = timings["prompt_n"] + timings["cache_n"]
    assert 128 < n_tokens < MIN_MOVED_TOKENS
    assert (timings["prompt_n"] <= 16) == is_moved


def test_a_window_that_moves_by_a_line_is_not_read_again(tmp_path: Path) -> None:
    lines = [f"x{n} = {n}\n" for n in range(60)]
    with tiny_server(tmp_path, marks={"pre": 5, "suf": 6, "mid": 7}) as client:
        for first in (0, 1):
            prefix = "".join(lines[first : first + 50])
            body = {"input_prefix": prefix, "input_suffix": "z\n", "n_predict": 1}
            timings = client.post("/infill", json=body).json()["timings"]
    assert timings["cache_n"] > 300
    assert timings["prompt_n"] < 40


def read(**fields: Any) -> Any:
    return read_infill_request(Fields({**BODY, **fields}), "m")


def test_the_samplers_left_out_have_no_effect() -> None:
    sampling = read(samplers=["top_k", "infill"], top_k=7, top_p=0.5, temperature=0.3).sampling
    assert sampling["infill"]
    assert (sampling["top_k"], sampling["top_p"], sampling["temperature"]) == (7, 1.0, 1.0)
    sampling = read(samplers=["typ_p", "temperature"], typical_p=0.5, temperature=0.3).sampling
    assert (sampling["typical_p"], sampling["temperature"]) == (0.5, 0.3)
    assert not sampling["infill"]
    assert "infill" not in read().sampling


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": None}, "input_suffix"),
        ({"input_suffix": 3}, "input_suffix"),
        ({"prompt": 3}, "prompt"),
        ({"input_extra": {}}, "input_extra"),
        ({"input_extra": [3]}, "input_extra[0]"),
        ({"input_extra": [{}]}, "input_extra[0].text"),
        ({"input_extra": [{"text": "a", "filename": 3}]}, "input_extra[0].filename"),
        ({"input_extra": [{"text": "a"}] * 10_001}, "input_extra"),
        ({"n_indent": -1}, "n_indent"),
        ({"t_max_predict_ms": "soon"}, "t_max_predict_ms"),
        ({"response_fields": [3]}, "response_fields"),
        ({"n_cache_reuse": -1}, "n_cache_reuse"),
        ({"n_cache_reuse": "many"}, "n_cache_reuse"),
        ({"n_predict": 0.5}, "n_predict"),
        ({"n_predict": False}, "n_predict"),
        ({"samplers": ["cow"]}, "samplers"),
        ({"samplers": [[]]}, "samplers"),
        ({"samplers": [None]}, "samplers"),
        ({"samplers": ["xtc", "infill"]}, "samplers"),
        ({"n_probs": 3}, "n_probs"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(**fields)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("read_request", "fields", "param"),
    [
        (read_openai_request, {"prompt": ["a", "b"], "suffix": "c"}, "prompt"),
        (read_openai_request, {"prompt": [1, 2], "suffix": "c"}, "prompt"),
        (read_openai_request, {"prompt": "a", "suffix": 3}, "suffix"),
        (ollama.read_generate_request, {"prompt": "a", "suffix": []}, "suffix"),
        (read_completion_request, {"prompt": ["a", "b"]}, "prompt"),
    ],
)
def test_wrong_fields_of_other_routes_are_named(
    read_request: Any, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as refused:
        read_request(Fields(fields), "m")
    assert refused.value.param == param


def test_a_chat_has_no_suffix() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "suffix": "b"}
    with pytest.raises(ApiError, match="suffix is not supported in a chat"):
        read_chat_request(Fields(body), "m")


class Clock:
    """Clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["a\n    b\n", "    c\n  d", "e"], "a\n    b\n    c"),
        (["a", "\n", "  ", "  b"], "a\n    b"),
        (["    a\n    b"], "    a\n    b"),
        (["a\n\n    b"], "a"),
        (["a\n\tb"], "a"),
        (["a\n\t\t\t\tb"], "a\n\t\t\t\tb"),
        (["a\n  "], "a\n  "),
        (["\n"], "\n"),
    ],
)
def test_a_line_of_less_indentation_is_cut_off(pieces: list[str], text: str) -> None:
    limit = LineLimit(4, 0.0)
    written = ""
    for piece in pieces:
        written += limit.push(piece)
        if limit.is_reached:
            break
    assert written + limit.flush() == text


def test_the_next_line_after_a_time_ends_the_text() -> None:
    clock = Clock()
    limit = LineLimit(0, 1.0, clock)
    assert limit.push("a\nb") == "a\nb"
    clock.now_s = 2.0
    assert (limit.push("cd"), limit.is_reached) == ("cd", False)
    assert (limit.push("e\nf"), limit.is_reached) == ("e\n", True)


def test_the_defaults_have_no_limits() -> None:
    assert built_in_settings().sampling.max_tokens >= 0
    request = read()
    assert (request.min_indent, request.line_limit_s, request.reads_only) == (0, 0.0, False)
    assert read(n_predict=-1).max_tokens == 0


def test_marks_in_a_raw_prompt_are_tokens(tiny: httpx.Client) -> None:
    body = {"content": "a<|im_end|>b", "add_special": True}
    tokens = tiny.post("/tokenize", json=body).json()["tokens"]
    n_tokens = tiny.post("/completion", json={"prompt": "a<|im_end|>b", "n_predict": 1}).json()
    assert n_tokens["tokens_evaluated"] == len(tokens)


def filling(prefix: str, suffix: str = "", line: str = "") -> CompletionRequest:
    return CompletionRequest(infill=InfillText(prefix, suffix, line))


def test_a_request_supersedes_the_one_before_a_key() -> None:
    older = filling("a\n", "z", "x")
    assert filling("a\n", "z", "xy").supersedes(older)
    assert filling("a\nxy\n", "z").supersedes(older)
    assert filling("a\n", "y", "xy").supersedes(older)
    # Programs ask for the same text several times to offer a choice.
    assert not filling("a\n", "z", "x").supersedes(older)
    assert not filling("b\n", "y").supersedes(older)
    assert not filling("b\n").supersedes(filling("a\n")), "the ends of two files"
    assert filling("a\n", "", "x").supersedes(filling("a\n"))
    assert not CompletionRequest(prompt="a").supersedes(older)
    assert not filling("a\n").supersedes(CompletionRequest(prompt="a"))
    reading = CompletionRequest(infill=InfillText("", "z"), reads_only=True)
    assert not reading.supersedes(older), "nothing was typed"
    assert older.supersedes(reading)


def test_a_newer_request_ends_reading_ahead(
    tiny: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def superseded(writer: ReplyWriter, task: ReplyTask, prompt: TurnPrompt) -> Finish:
        task.supersede()
        raise Cancelled

    monkeypatch.setattr(ReplyWriter, "_read_ahead", superseded)
    answer = tiny.post("/infill", json={**BODY, "n_predict": 0})
    assert (answer.status_code, answer.json()["stop_type"]) == (200, "limit")


def test_a_newer_request_ends_the_older_one(tiny: httpx.Client) -> None:
    long = {**BODY, "n_predict": 900, "ignore_eos": True, "stream": True}
    newer = {**BODY, "prompt": "xy", "n_predict": 2, "ignore_eos": True}
    with tiny.stream("POST", "/infill", json=long) as older:
        lines = older.iter_lines()
        next(lines)
        assert tiny.post("/infill", json=newer).json()["tokens_predicted"] == 2
        last = [line for line in lines if line.startswith("data: ")][-1]
    end = json.loads(last.removeprefix("data: "))
    assert end["stop_type"] == "limit"
    assert 0 < end["tokens_predicted"] < 900
