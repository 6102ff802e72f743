"""Tests of the API with the official Python client and with plain HTTP."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.conversations.state_files import kinds
from app.program.settings import built_in_settings
from app.server.command import listen
from app.server.http_server import HttpServer
from engine.errors import EngineError
from tests.app.conversations.fake_states import files, saved_in, with_one_vocabulary
from tests.app.fake_engine import Gate, Script
from tests.app.scripted_access import use_script
from tests.app.server.serving import Serving, client_of, serving, until

QUESTION: list[Any] = [{"role": "user", "content": "capital of France?"}]


def events_of(text: str) -> list[Any]:
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    assert blocks[-1] == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]


def test_an_answer_comes_complete_and_streamed(shared: Serving) -> None:
    create = client_of(shared).chat.completions.create
    reply = create(model="m", messages=QUESTION)
    assert reply.choices[0].message.content == "Paris."
    assert (reply.choices[0].finish_reason, reply.model, reply.object) == (
        "stop",
        "m",
        "chat.completion",
    )
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (
        7,
        3,
        10,
    )
    chunks = list(
        create(model="m", messages=QUESTION, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        == "Paris."
    )
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3
    assert len({chunk.id for chunk in chunks}) == 1


def test_several_answers_are_written_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(replies=[["Par", "is"], ["Ro", "me", "!"]], token_gate=Gate())
    with serving(monkeypatch, script, max_at_once=2) as server, ThreadPoolExecutor() as pool:
        future = pool.submit(
            server.chat, n=2, seed=7, stream=True, stream_options={"include_usage": True}
        )
        until(lambda: server.metric("requests_running") == 2)
        assert script.token_gate is not None
        script.token_gate.open()
        events = events_of(future.result().text)
        choices = [event["choices"][0] for event in events if event["choices"]]
        texts = [
            "".join(
                choice["delta"].get("content", "") for choice in choices if choice["index"] == index
            )
            for index in (0, 1)
        ]
        assert sorted(texts) == ["Paris", "Rome!"]
        assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == [
            "stop",
            "stop",
        ]
        usage = [event["usage"] for event in events if event["usage"]]
        assert [(choice["prompt_tokens"], choice["completion_tokens"]) for choice in usage] == [
            (5, 5)
        ]
        sessions = script.opened[0].sessions
        seeds = [sampling.seed for session in sessions for sampling in session.samplings]
        assert sorted(seeds) == [7, 8]


def test_several_answers_come_complete_and_in_order(server: Serving) -> None:
    server.script.replies = [["one"], ["two", "!"], ["three"]]
    reply = client_of(server).completions.create(model="m", prompt="Once upon", n=3)
    assert [(choice.index, choice.text) for choice in reply.choices] == [
        (0, "one"),
        (1, "two!"),
        (2, "three"),
    ]
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (
        3,
        4,
        7,
    )


def test_a_text_is_continued_complete_and_streamed(shared: Serving) -> None:
    client = client_of(shared)
    reply = client.completions.create(model="m", prompt="Once upon")
    stream = client.completions.create(model="m", prompt="Once upon", stream=True)
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == ("Paris.", "stop")
    assert "".join(chunk.choices[0].text for chunk in stream) == "Paris."
    ids = shared.post("/tokenize", {"content": "Once upon"}).json()["tokens"]
    assert shared.post("/v1/completions", {"prompt": ids}).json()["usage"]["prompt_tokens"] == 2
    assert shared.script.opened[0].sessions[0].tokens[:2] == ids


def test_the_length_is_limited(shared: Serving) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        choice = shared.chat(**{name: 2}).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Paris", "length")


def test_stop_seed_and_sampling_reach_the_engine(server: Serving) -> None:
    server.chat(
        stop=["x"], seed=7, temperature=0.1, top_p=0.5, top_k=3, min_p=0.2, repeat_penalty=1.5
    )
    server.chat(seed=-1)
    first, second = server.script.opened[0].sessions[0].samplings
    assert (first.seed, first.temperature, first.top_p, first.top_k) == (7, 0.1, 0.5, 3)
    assert (first.min_p, first.repeat_penalty) == (0.2, 1.5)
    assert (second.seed, second.temperature) == (None, 0.7)


@pytest.mark.parametrize("stream", [False, True])
def test_each_of_several_prompts_is_continued(shared: Serving, stream: bool) -> None:
    request_body = {
        "prompt": ["a b", "a"],
        "stream": stream,
        "stream_options": {"include_usage": True},
    }
    answer = shared.post("/v1/completions", request_body)
    if stream:
        events = events_of(answer.text)
        texts = [""] * 2
        for choice in (choice for event in events for choice in event["choices"]):
            texts[choice["index"]] += choice["text"]
        usage = events[-1]["usage"]
    else:
        texts = [choice["text"] for choice in answer.json()["choices"]]
        usage = answer.json()["usage"]
    assert texts == ["Paris.", "Paris."]
    alone = [
        shared.post("/v1/completions", {"prompt": prompt}).json()["usage"]
        for prompt in request_body["prompt"]
    ]
    assert usage["prompt_tokens"] == sum(single["prompt_tokens"] for single in alone)


def test_a_prompt_may_only_be_counted(shared: Serving) -> None:
    answer = shared.post("/v1/completions", {"prompt": "a b", "max_tokens": 0}).json()
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("", "length")
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["prompt_tokens"] > 0


def test_a_repetitive_reply_is_cut_and_marked(server: Serving) -> None:
    unit = ["round ", "and ", "about ", "it ", "goes "]
    server.script.replies = [unit * 100] * 4
    choice = server.chat().json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("".join(unit), "stop")
    assert choice["stop_reason"] == "repetition"
    text = server.post("/v1/completions", {"prompt": "a"}).json()["choices"][0]
    assert (text["text"], text["finish_reason"], text["stop_reason"]) == (
        "".join(unit),
        "stop",
        "repetition",
    )
    response = server.post("/v1/responses", {"input": "hi"}).json()
    assert (response["status"], response["stop_reason"]) == ("completed", "repetition")
    assert response["output"][0]["content"][0]["text"] == "".join(unit)
    choice = server.chat(ignore_eos=True).json()["choices"][0]
    assert choice["message"]["content"] == "".join(unit * 100)
    assert "stop_reason" not in choice


def test_the_next_request_uses_the_cache(server: Serving) -> None:
    first = server.chat("capital of France?").json()
    messages = [
        *QUESTION,
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "sure?"},
    ]
    second = server.post("/v1/chat/completions", {"messages": messages}).json()
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    # All tokens but the end of the turn, the new message and the opening of its reply.
    read = (
        second["usage"]["prompt_tokens"] - second["usage"]["prompt_tokens_details"]["cached_tokens"]
    )
    assert (second["usage"]["prompt_tokens"], read) == (15, 5)


def test_logprobs_come_with_the_text_they_belong_to(shared: Serving) -> None:
    reply = client_of(shared).chat.completions.create(
        model="m", messages=QUESTION, logprobs=True, top_logprobs=2
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [chance.token for chance in logprobs.content] == ["Par", "is", "."]
    assert [chance.logprob for chance in logprobs.content[0].top_logprobs] == [-0.5, -1.5]
    assert bytes(logprobs.content[1].bytes or []) == b"is"
    events = events_of(shared.chat(logprobs=True, stream=True).text)
    streamed = [
        chance
        for event in events
        for chance in (event["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert [(chance["token"], chance["top_logprobs"]) for chance in streamed] == [
        ("Par", []),
        ("is", []),
        (".", []),
    ]


def test_logprobs_of_a_continued_text_have_offsets(shared: Serving) -> None:
    logprobs = shared.post("/v1/completions", {"prompt": "a", "logprobs": 1}).json()["choices"][0][
        "logprobs"
    ]
    assert (logprobs["tokens"], logprobs["text_offset"]) == (["Par", "is", "."], [0, 3, 5])
    assert logprobs["token_logprobs"] == [-0.5] * 3
    assert [list(chance.values()) for chance in logprobs["top_logprobs"]] == [[-0.5]] * 3


def test_a_thought_comes_next_to_the_answer(server: Serving) -> None:
    server.script.replies = [["<think>", "hm", "</think>", "Paris"]]
    server.script.control = frozenset()
    choice = server.chat(logprobs=True).json()["choices"][0]
    assert choice["message"] == {
        "role": "assistant", "content": "Paris", "refusal": None, "reasoning_content": "hm",
    }  # fmt: skip
    assert [chance["token"] for chance in choice["logprobs"]["content"]] == ["Paris"]
    deltas = [event["choices"][0]["delta"] for event in events_of(server.chat(stream=True).text)]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
    assert "".join(delta.get("content", "") for delta in deltas) == "Paris"


def test_thinking_is_chosen_for_each_request(shared: Serving) -> None:
    chosen = []
    for fields in (
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {},
    ):
        shared.chat(**fields)
        chosen.append(str(shared.script.opened[0].chats[0].thinking))
    assert chosen == ["off", "on", "auto"]


def test_models_properties_and_tokens(shared: Serving) -> None:
    client = client_of(shared)
    assert [model.id for model in client.models.list()] == ["m"]
    assert client.models.retrieve("m").owned_by == "jalopy"
    props = shared.get("/props").json()
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (1, 512)
    ids = shared.post("/tokenize", {"content": "a b", "add_special": True}).json()["tokens"]
    assert shared.post("/detokenize", {"tokens": ids}).json() == {"content": "a b"}
    pieces = shared.post("/tokenize", {"content": "a b", "with_pieces": True}).json()["tokens"]
    assert [piece["piece"] for piece in pieces] == ["a", " b"]


def test_counters_have_the_format_of_prometheus(server: Serving) -> None:
    server.chat()
    server.post("/chat/completions/", {"messages": QUESTION})
    server.get("/nowhere")
    text = server.get("/metrics").text
    assert 'jalopy_requests_total{route="/v1/chat/completions",status="200"} 2\n' in text
    assert 'jalopy_requests_total{route="other",status="404"} 1\n' in text
    assert "jalopy_generated_tokens_total 6\n" in text
    assert all(line.startswith(("#", "jalopy_")) for line in text.splitlines())


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/models/gpt-4", 404, "model_not_found"),
        ("/v2", 404, "not_found"),
        ("/v1/chat/completions", 405, "method_not_allowed"),
    ],
)
def test_unknown_paths_are_refused_in_the_dialect(
    shared: Serving, path: str, status: int, code: str
) -> None:
    answer = shared.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_an_error_names_the_whole_path(shared: Serving) -> None:
    assert "nothing at /v1/nosuch" in shared.get("/v1/nosuch").text


def test_a_prompt_that_does_not_fit_is_refused_before_prefill(server: Serving) -> None:
    server.script.n_ctx = 512
    for is_streamed in (False, True):
        answer = server.chat("word " * 600, stream=is_streamed)
        assert (answer.status_code, answer.json()["error"]["code"]) == (
            400,
            "context_length_exceeded",
        )
        assert answer.json()["error"]["param"] == "messages"
    assert server.script.opened[0].sessions[0].tokens == []


def test_a_text_that_does_not_fit_leaves_the_conversation(server: Serving) -> None:
    server.script.n_ctx = 512
    server.chat("capital of France?")
    answer = server.post("/v1/completions", {"prompt": [1] * 600})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert len(server.script.opened[0].chats[0].messages) == 2


def test_a_model_that_does_not_open_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    use_script(monkeypatch, Script(open_error=EngineError("m.gguf: needs more memory")))
    with listen("127.0.0.1", 0) as listener, pytest.raises(EngineError, match="needs more memory"):
        HttpServer(Path("m.gguf"), built_in_settings(), listener, "m", ("127.0.0.1",), "", 16).run()


def test_a_refusal_of_the_template_is_status_400(server: Serving) -> None:
    server.script.refused_words = "nonsense"
    server.script.opened[0].chats[0]._refused_words = "nonsense"
    answer = server.chat("nonsense")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "template_refuses")
    assert server.chat("sense").status_code == 200


def test_an_engine_failure_ends_one_reply_with_one_line(server: Serving) -> None:
    server.script.fail_after_tokens = 1
    complete = server.chat()
    streamed = events_of(server.chat(stream=True).text)
    assert (complete.status_code, complete.json()["error"]["type"]) == (500, "server_error")
    assert "NaN" in complete.json()["error"]["message"]
    assert streamed[-1]["error"]["code"] == "engine_error"
    server.script.fail_after_tokens = None
    assert server.chat().status_code == 200


def test_a_bug_is_named_without_details(
    server: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script.fail_after_tokens = 0
    error = ValueError("secret words")
    server.script.generate_error = error  # type: ignore[assignment]
    answer = server.chat()
    assert answer.status_code == 500
    assert "ValueError" in answer.text
    err = capsys.readouterr().err
    assert "secret" not in answer.text + err
    assert "Traceback" not in answer.text + err


def test_a_client_before_the_model_is_open_gets_503(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script(open_gate=Gate())
    with serving(monkeypatch, script, waits=False) as server:
        answer = server.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_loading")
        assert answer.headers["retry-after"] == "2"
        assert server.get("/v1/models").status_code == 200
        assert script.open_gate is not None
        script.open_gate.open()
        until(lambda: server.get("/health").status_code == 200)
        assert server.chat().status_code == 200


def test_saved_states_are_reused_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    document = "long document " * 60
    script = with_one_vocabulary()
    cached = []
    for _ in range(2):
        with serving(monkeypatch, script, states=files()) as served:
            for question in ("what?", "why?"):
                usage = served.chat(document + question).json()["usage"]
                cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == 0
    assert min(cached[1:]) > 110
    settings = replace(built_in_settings(), save_conversations="off")
    with serving(monkeypatch, script, states=files(), settings=settings) as served:
        states_before = saved_in(kinds()[0])
        served.chat("something else " * 60)
    assert saved_in(kinds()[0]) == states_before


def test_a_reply_continues_from_its_beginning(server: Serving) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "It is "}]
    reply = server.post(
        "/v1/chat/completions", {"messages": messages, "continue_final_message": True}
    ).json()
    assert reply["choices"][0]["message"]["content"] == "Paris."
    model = server.script.opened[0]
    assert model.tokenizer.decode(model.sessions[0].tokens).endswith("It is Paris.")
    again = [
        *QUESTION,
        {"role": "assistant", "content": "It is Paris."},
        {"role": "user", "content": "sure?"},
    ]
    usage = server.post("/v1/chat/completions", {"messages": again}).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > reply["usage"]["prompt_tokens"]


@pytest.mark.parametrize("fields", [{"messages": QUESTION}, {"add_generation_prompt": True}])
def test_only_a_reply_can_be_continued(shared: Serving, fields: dict[str, Any]) -> None:
    answer = shared.post("/v1/chat/completions", {**fields, "continue_final_message": True})
    assert answer.status_code == 400
