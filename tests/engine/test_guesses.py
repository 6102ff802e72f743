"""Replies with guesses are those without, to the bit, for every architecture that writes text.

The guesses are scripted: parts of the reply itself, some of them with a wrong token, so that walks
of two to four tokens are kept whole, in part and not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine import Model, Sampling, Session
from engine.models import ARCHITECTURES
from engine.sampling.guessing import MAX_GUESSES, Guessing
from engine.saved_state import StateWriter, restore_state
from tests.engine.families import N_CTX, family
from tests.engine.predicting import PREDICTING, described

pytestmark = pytest.mark.slow

PROMPT = [7, 101, 33, 58, 9, 240, 77, 101, 33, 12, 18]
LONG = PROMPT * 9
N_TOKENS = 40
RECURRENT = [
    "lfm2",
    "lfm2moe",
    "qwen35",
    "qwen35moe",
    "qwen3next",
    "granitehybrid",
    "falcon-h1",
    "nemotron_h",
    "nemotron_h_moe",
]
GREEDY = Sampling.greedy()
SEEDED = Sampling(temperature=1.5, seed=5)


class ScriptedGuesses:
    """Guesses of known continuations, every third of which has a wrong token.

    Attributes:
        texts: Token ids of prompts with their replies.
        n_right: Number of proposed tokens that follow in a text.
    """

    def __init__(self) -> None:
        self.texts: list[list[int]] = []
        self.n_right = 0

    def propose(self, tokens: Sequence[int], limit: int) -> list[int]:
        """Return guesses of what follows; one of them may be wrong."""
        n = len(tokens)
        following = next((text[n:] for text in self.texts if text[:n] == list(tokens)), [])
        guesses = following[: min(limit, 1 + n % MAX_GUESSES)]
        if not guesses:
            return []
        if n % 3 == 0:
            wrong = n % len(guesses)
            guesses[wrong] = (guesses[wrong] + 1) % 250
            self.n_right += wrong
        else:
            self.n_right += len(guesses)
        return guesses


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedGuesses:
    """Guesses of every session in this test."""
    guesses = ScriptedGuesses()

    def propose(guessing: Guessing, limit: int) -> list[int]:
        if not guessing._costs.step_s:  # a guess is compared with a step of one token
            return []
        return guesses.propose(guessing._tokens, limit)

    monkeypatch.setattr(Guessing, "propose", propose)
    return guesses


@pytest.fixture(params=ARCHITECTURES, scope="module")
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    """Tiny model of each architecture."""
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    model = Model.open(family(request.param).write(path), threads=2)
    yield model
    model.close()


Reply = tuple[list[int], bytes]
"""Tokens of a reply, and the logits after it."""


def reply(session: Session, sampling: Sampling, n_tokens: int, guess: bool) -> Reply:
    """Write a reply after the tokens in the cache."""
    tokens = [piece.token_id for piece in session.generate(sampling, n_tokens, guess=guess)]
    return tokens, session.next_logits.tobytes()


def replies(session: Session, seed: int | None, guess: bool) -> list[Reply]:
    """Return a reply, half of it and its continuation, and two other replies to the prompt."""
    found = []
    for number in range(4):
        sampling = GREEDY if seed is None else Sampling(temperature=1.5, seed=seed + number // 2)
        if number != 2:
            session.prefill(PROMPT)
        n_tokens = N_TOKENS if number % 2 == 0 else N_TOKENS // 2
        found.append(reply(session, sampling, n_tokens, guess))
    return found


@pytest.fixture
def scripted_drafts(monkeypatch: pytest.MonkeyPatch) -> ScriptedGuesses:
    """Guesses of the predictor of every session in this test, which computes each one."""
    guesses = ScriptedGuesses()
    monkeypatch.setattr(Guessing, "propose", lambda guessing, limit: [])
    monkeypatch.setattr(
        Guessing,
        "best_draft",
        lambda guessing, limit, n_proposed: limit if guessing._costs.step_s else 0,
    )
    draft = Session.draft

    def scripted_draft(session: Session, token: int, n: int) -> list[int] | None:
        drafted = draft(session, token, n)
        return guesses.propose([*session.tokens, token], n) or drafted

    monkeypatch.setattr(Session, "draft", scripted_draft)
    return guesses


@pytest.fixture(params=PREDICTING)
def predicting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Model]:
    """Tiny model with a predictor."""
    model = Model.open(described(request.param).write(tmp_path / "m.gguf"), threads=2)
    yield model
    model.close()


def kv_types(model: Model) -> list[str]:
    """Return the types of cache to test that the model's heads allow."""
    sizes = {size for a in model.config.attentions.values() for size in (a.key_dim, a.value_dim)}
    if any(size % 32 for size in sizes):
        return ["f16"]
    return ["f16", "q8_0"]


def compare(plain: Session, guessing: Session, scripted: ScriptedGuesses, seed: int | None) -> None:
    """Compare the replies of two sessions."""
    scripted.texts = []
    expected = replies(plain, seed, guess=False)
    half = [*PROMPT, *expected[1][0]]
    scripted.texts = [PROMPT + tokens for tokens, _ in expected] + [half + expected[2][0]]
    n_right = scripted.n_right
    assert replies(guessing, seed, guess=True) == expected
    is_long = any(len(tokens) > 10 for tokens, _ in expected)
    assert scripted.n_right > n_right or not is_long


@pytest.mark.parametrize("seed", [None, 5], ids=["greedy", "seeded"])
def test_guesses_never_change_a_reply(
    model: Model, scripted: ScriptedGuesses, seed: int | None
) -> None:
    assert bool(model.config.recurrents) == (model.config.architecture in RECURRENT)
    for kv in kv_types(model):
        plain = model.session(n_ctx=N_CTX, kv=kv)
        guessing = model.session(n_ctx=N_CTX, kv=kv)
        compare(plain, guessing, scripted, seed)
        plain.close()
        guessing.close()


@pytest.mark.parametrize("name", RECURRENT)
def test_guesses_never_change_replies_side_by_side(
    name: str, tmp_path: Path, scripted: ScriptedGuesses
) -> None:
    model = Model.open(family(name).write(tmp_path / "m.gguf"), threads=2)
    first = model.session(n_ctx=N_CTX)
    expected = {seed: replies(first, seed, guess=False) for seed in (5, 15, 25)}
    scripted.texts = [PROMPT + tokens for written in expected.values() for tokens, _ in written]
    sessions = [first, model.session(peer=first), model.session(peer=first)]
    with ThreadPoolExecutor(3) as pool:
        written = pool.map(lambda session, seed: replies(session, seed, True), sessions, expected)
        assert list(written) == list(expected.values())
    model.close()


@pytest.mark.parametrize("name", RECURRENT)
def test_guesses_never_change_a_restored_reply(
    name: str, tmp_path: Path, scripted: ScriptedGuesses
) -> None:
    model = Model.open(family(name).write(tmp_path / "m.gguf"), threads=2)
    compare_restored(model, tmp_path / "kv.state", scripted)
    model.close()


def compare_restored(model: Model, path: Path, scripted: ScriptedGuesses) -> None:
    """Compare a reply after a restored state with one after the tokens themselves."""
    plain = model.session(n_ctx=N_CTX)
    plain.prefill(LONG)
    expected = reply(plain, SEEDED, N_TOKENS, guess=False)
    scripted.texts = [LONG + expected[0]]
    guessing = model.session(n_ctx=N_CTX)
    guessing.prefill(LONG)
    writer = StateWriter(guessing, path)
    first = reply(guessing, SEEDED, N_TOKENS, guess=True)
    n_guessed = guessing.n_guessed
    assert writer.flush(60), writer.problem
    writer.close()

    restored = model.session(n_ctx=N_CTX)
    n_restored = restore_state(restored, path, guessing.tokens).tokens
    assert n_restored == guessing.length
    following = [5, 60, 7]
    for session in (plain, restored):
        session.feed(following)
    after = reply(plain, SEEDED, N_TOKENS, guess=False)
    scripted.texts.append(plain.tokens)
    assert first == expected
    assert n_guessed > 0
    assert reply(restored, SEEDED, N_TOKENS, guess=True) == after


@pytest.mark.parametrize("seed", [None, 5], ids=["greedy", "seeded"])
def test_predictions_never_change_a_reply(
    predicting: Model, scripted_drafts: ScriptedGuesses, seed: int | None
) -> None:
    for kv in kv_types(predicting):
        plain = predicting.session(n_ctx=N_CTX, kv=kv)
        guessing = predicting.session(n_ctx=N_CTX, kv=kv)
        compare(plain, guessing, scripted_drafts, seed)


def test_predictions_never_change_replies_side_by_side(
    predicting: Model, scripted_drafts: ScriptedGuesses
) -> None:
    first = predicting.session(n_ctx=N_CTX)
    expected = {seed: replies(first, seed, guess=False) for seed in (5, 15, 25)}
    sessions = [first, predicting.session(peer=first), predicting.session(peer=first)]
    scripted_drafts.texts = [
        PROMPT + tokens for written in expected.values() for tokens, _ in written
    ]
    with ThreadPoolExecutor(3) as pool:
        written = pool.map(lambda session, seed: replies(session, seed, True), sessions, expected)
        assert list(written) == list(expected.values())


def test_predictions_never_change_a_restored_reply(
    predicting: Model, scripted_drafts: ScriptedGuesses, tmp_path: Path
) -> None:
    compare_restored(predicting, tmp_path / "kv.state", scripted_drafts)
