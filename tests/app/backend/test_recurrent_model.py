"""A conversation with a model with recurrent layers: tokens fed again in each turn, and a full
context."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.backend.options import ChatOptions
from app.program.settings import built_in_settings, override
from app.session.chat_session import ChatSession
from app.session.events import GenerationFinished, ModelLoaded, TurnsDropped
from engine import Model, Sampling
from tests.app.backend.engine_driver import Engine
from tests.engine import tiny_gguf

pytestmark = pytest.mark.slow

SYSTEM = "You are brief, and say what is needed in as few words as there can be. " * 2
QUESTION = (
    "What is the shortest way from the mountains to the sea, and what does one see on it? " * 2
)
N_SURROUNDING = 24
"""Limit on the tokens that the template adds around a message, and the few that are fed again
instead of saved."""


class RealEngine(Engine):
    """Engine thread over the real engine, which may have to compile its kernels first."""

    patience_s = 250.0

    def __init__(self) -> None:
        settings = built_in_settings()
        options = ChatOptions(
            lambda path, progress=None: Model.open(path, threads=1, progress=progress),
            lambda chosen, model, mode: Sampling.greedy(),
            settings=override(
                override(settings, "context_size", 1200, "--ctx"), "sampling.max_tokens", 30, "-n"
            ),
        )
        self.begin(options)

    def regenerate(self) -> GenerationFinished:
        self.chat_session.regenerate()
        return self.wait_for(GenerationFinished)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[RealEngine]:
    described = tiny_gguf.model("qwen35", "Q8_0", context_length=2048)
    path = described.write(tmp_path / "m.gguf")
    engine = RealEngine()
    engine.chat_session = ChatSession(engine.engine_thread, SYSTEM)
    engine.chat_session.load(path)
    engine.wait_for(ModelLoaded)
    yield engine
    assert engine.engine_thread.close(engine.patience_s)


def test_a_turn_prefills_only_new_text_and_a_retry_few_tokens(engine: RealEngine) -> None:
    first = engine.ask(QUESTION)
    assert first.figures.reused_tokens == 0
    repeated = engine.regenerate()
    assert repeated.raw == first.raw
    assert repeated.figures.prompt_tokens < N_SURROUNDING
    second = engine.ask("And back? " * 12)
    assert second.figures.reused_tokens >= first.figures.prompt_tokens
    assert engine.regenerate().figures.prompt_tokens < N_SURROUNDING
    engine.chat_session.submit_edit("Something else, " * 10, 1)
    edited = engine.wait_for(GenerationFinished)
    assert edited.figures.reused_tokens >= first.figures.prompt_tokens
    engine.chat_session.submit_edit(QUESTION + "?", 0)
    assert engine.wait_for(GenerationFinished).figures.reused_tokens > len(SYSTEM) // 4


@pytest.mark.smoke
def test_a_full_context_reports_the_tokens_read_again(engine: RealEngine) -> None:
    dropped: list[TurnsDropped] = []
    while not dropped:
        messages = engine.hear(QUESTION)
        finished = messages[-1]
        assert isinstance(finished, GenerationFinished)
        assert finished.raw
        dropped = [message for message in messages if isinstance(message, TurnsDropped)]
    assert dropped[0].n_turns >= 1
    assert dropped[0].read_tokens == finished.figures.prompt_tokens > len(QUESTION) // 4
    assert finished.figures.reused_tokens > 0
