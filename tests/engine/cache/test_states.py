"""States of recurrent layers: where a session can rewind to, the cost, and what is restored from a
saved state."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import EngineError, Model, Sampling, Session
from engine.cache import states
from engine.cache.hybrid_memory import HybridMemory
from engine.cache.kv_cache import memory_needs
from engine.cache.kv_types import KV_TYPES
from engine.cache.layer_memory import MemoryNeeds
from engine.cache.states import MAX_CHECKPOINTS, MAX_GUESSES, RecurrentStates
from engine.config import Dense, Layer, ModelConfig, ShortConvolution
from engine.errors import Cancelled
from engine.machine import host
from engine.measure.replay import replay
from engine.saved_state import StateWriter, restorable, restore_state, stored_in, writer
from engine.saved_state.segments import SEGMENT_POSITIONS
from engine.tuning.fill_cache import fill_cache
from engine.weights.modes import RESERVE_BYTES
from tests.engine import tiny_gguf

IDS = np.random.default_rng(3).integers(3, 250, 600).tolist()
OTHERS = np.random.default_rng(4).integers(3, 250, 200).tolist()
TURN = 200
MAX_COPIES = MAX_CHECKPOINTS + MAX_GUESSES


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    model = Model.open(tiny_gguf.write(path, "qwen35", "Q8_0", context_length=2048), threads=2)
    yield model
    model.close()


def session_of(model: Model, checkpoint_bytes: int = states.CHECKPOINT_BYTES) -> Session:
    model.checkpoint_bytes = checkpoint_bytes
    return model.session(n_ctx=1024)


def next_logits(session: Session) -> bytes:
    """Return logits that depend on the states of all layers."""
    return session.feed(OTHERS[:7], all_logits=True).tobytes()


def fresh_logits(model: Model, ids: list[int]) -> bytes:
    session = session_of(model)
    session.feed(ids)
    return next_logits(session)


def save(session: Session, path: Path) -> None:
    saving = StateWriter(session, path)
    try:
        assert saving.flush(60), saving.problem
    finally:
        saving.close()


def test_a_new_reply_or_an_edit_restarts_at_the_nearest_turn(model: Model) -> None:
    session = session_of(model)
    session.prefill(IDS[:TURN], checkpoint_positions=[10, 70, 195])
    reply = [piece.token_id for piece in session.generate(Sampling.greedy(), 20)]
    assert session.reusable(IDS[:TURN]) == 195
    assert session.has_lost(IDS[:TURN])
    assert session.prefill(IDS[:TURN]).reused == 195
    assert [piece.token_id for piece in session.generate(Sampling.greedy(), 20)] == reply
    edited = [*IDS[:150], *OTHERS[:50]]
    assert session.prefill(edited).reused == 70
    assert next_logits(session) == fresh_logits(model, edited)


def test_the_next_turn_reuses_the_end_of_the_reply(model: Model) -> None:
    session = session_of(model)
    session.prefill(IDS[:50])
    for _ in session.generate(Sampling.greedy(), 20):
        pass
    tokens = session.tokens
    assert session.prefill([*tokens, *IDS[100:130]]).reused == len(tokens)
    assert session.prefill([*tokens, *IDS[130:180]]).reused == len(tokens)
    assert next_logits(session) == fresh_logits(model, [*tokens, *IDS[130:180]])


def test_messages_close_together_share_a_checkpoint(model: Model) -> None:
    session = session_of(model)
    positions = [64, 70, 100, 127, 128, 191, 299]
    session.prefill(IDS[:300], checkpoint_positions=positions)
    assert [n for n in positions if session.memory.checkpoint_before(n) == n] == [64, 128, 299]


def test_a_long_prompt_has_checkpoints_at_intervals(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "SPACING", 128)
    session = session_of(model)
    session.pipeline.block_size_at = lambda pos: 50  # type: ignore[method-assign]
    session.prefill(IDS)
    assert [session.memory.checkpoint_before(n) for n in (149, 150, 299, 300, 600)] == [
        0,
        150,
        150,
        300,
        600,
    ]


@pytest.mark.parametrize("n", [4, 70])
@pytest.mark.parametrize(
    ("architecture", "n_layers"),
    [
        ("qwen35", 2),
        ("qwen35", 3),
        ("falcon-h1", 2),
        ("nemotron_h", 2),
        ("nemotron_h", 3),
        ("nemotron_h", 4),
    ],
)
def test_the_last_token_of_a_prompt_has_the_logits_of_all_layers(
    architecture: str, n_layers: int, n: int, tmp_path: Path
) -> None:
    """All tokens pass the layers up to the last one with a memory; only the last token passes the
    layers after it."""
    model = Model.open(
        tiny_gguf.write(tmp_path / "m.gguf", architecture, "Q8_0", n_layers=n_layers), threads=2
    )
    all_tokens = model.session(n_ctx=128)
    prompt = model.session(n_ctx=128)
    assert prompt.feed(IDS[:n]).tobytes() == all_tokens.feed(IDS[:n], all_logits=True)[-1].tobytes()
    assert prompt.feed(OTHERS[:5]).tobytes() == all_tokens.feed(OTHERS[:5]).tobytes()
    model.close()


def test_a_cancelled_feed_loses_no_computed_tokens(model: Model) -> None:
    session = session_of(model)

    def cancel(done: int, total: int) -> None:
        if done > 60:
            session.cancel()

    session.feed(IDS[:100])
    block_size_at = session.pipeline.block_size_at
    session.pipeline.block_size_at = lambda pos: 16  # type: ignore[method-assign]
    with pytest.raises(Cancelled):
        session.feed(IDS[100:300], on_progress=cancel)
    session.pipeline.block_size_at = block_size_at  # type: ignore[method-assign]
    assert session.length == 164
    model.crew.cancel()
    # Some layers have written their state, some have not.
    assert not session.pipeline.cache_block(IDS[:4], 164, 2, is_small_batch=True)
    model.crew.clear_cancel()
    assert session.truncate(164) == 164
    assert next_logits(session) == fresh_logits(model, IDS[:164])


@pytest.mark.parametrize("n_kept", range(5))
def test_rejected_guesses_are_dropped_at_no_cost(model: Model, n_kept: int) -> None:
    session = session_of(model)
    session.feed(IDS[:100])
    session.verify(IDS[100:104])
    assert session.truncate(100 + n_kept) == 100 + n_kept
    assert next_logits(session) == fresh_logits(model, IDS[: 100 + n_kept])


def test_more_tokens_than_a_trial_has_are_dropped_together(model: Model) -> None:
    session = session_of(model)
    session.feed(IDS[:100])
    session.verify(IDS[100:106])
    assert session.truncate(102) == 100
    assert next_logits(session) == fresh_logits(model, IDS[:100])


def test_accepted_guesses_are_not_computed_again(model: Model) -> None:
    guessed = session_of(model)
    stepwise = session_of(model)
    for session in (guessed, stepwise):
        session.feed(IDS[:100])
    rows = guessed.verify(IDS[100:104])
    assert rows.tobytes() == np.stack([stepwise.feed([token]) for token in IDS[100:104]]).tobytes()
    assert next_logits(guessed) == next_logits(stepwise)


def test_repeated_text_is_guessed(model: Model) -> None:
    repeated = IDS[:20] * 6
    replies = []
    for guess in (True, False):
        session = session_of(model)
        session.prefill(repeated)
        session.guess_costs.balance = 1000.0
        replies.append(
            [piece.token_id for piece in session.generate(Sampling.greedy(), 30, guess=guess)]
        )
        n_guessed = replay(session, IDS[:20] * 2, guess)
        assert (n_guessed > 0) == guess
        assert next_logits(session) == fresh_logits(model, session.tokens[: session.length - 7])
    assert replies[0] == replies[1]


def test_models_with_large_states_guess_less(model: Model) -> None:
    state_bytes = states.state_bytes(model.config)
    for n in range(4):
        session = session_of(model, checkpoint_bytes=(4 * n + 3) * state_bytes)
        session.feed(IDS[:50])
        assert session.guess_limits.n_tokens == n
        session.verify(IDS[50 : 52 + n])
        session.truncate(50)
        assert next_logits(session) == fresh_logits(model, IDS[:50])


def test_temporary_tokens_are_forgotten(model: Model) -> None:
    session = session_of(model)
    session.feed(IDS[:200])
    with session.restoring():
        session.feed(IDS[300:400])
    assert session.tokens == IDS[:200]
    with session.restoring():
        session.feed([4])
    with session.restoring():
        assert session.truncate(192) == 0
        session.feed(IDS[:64])
        fill_cache(session, 512)
        session.feed([4])
    assert session.length == 0
    session.feed(IDS[:100])
    assert next_logits(session) == fresh_logits(model, IDS[:100])


def test_nothing_is_dropped_from_the_middle(model: Model) -> None:
    session = session_of(model)
    session.feed(IDS[:100])
    assert session.shift_towards([*IDS[:20], *IDS[40:100], 5]) == 0
    with pytest.raises(EngineError, match="cannot forget"):
        session.shift(20, 20)
    assert session.length == 100


def test_needs_are_all_slots_and_the_checkpoints_of_the_budget(model: Model) -> None:
    state_bytes = states.state_bytes(model.config)
    assert state_bytes == 4 * (3 * 8 * 32 + 4 * 32 * 32)
    needs = memory_needs(model.config, KV_TYPES["f16"], 5 * state_bytes + 1)
    assert needs == MemoryNeeds(2 * 2 * 2 * 16, 7 * state_bytes, state_bytes=state_bytes)
    assert (needs.bytes_moved(0), needs.bytes_moved(100)) == (
        2 * state_bytes,
        2 * state_bytes + 100 * 128,
    )
    session = session_of(model, checkpoint_bytes=5 * state_bytes + 1)
    assert session.kv_bytes == needs.bytes_for(1024)
    assert (session.kv_bytes_per_position, session.state_bytes) == (128, state_bytes)
    assert memory_needs(model.config, KV_TYPES["f16"]).fixed_bytes == (2 + MAX_COPIES) * state_bytes
    for n in range(100, 600, 50):
        session.feed(IDS[session.length : n])
        session.memory.make_checkpoint()
    assert isinstance(session.memory, HybridMemory)
    assert session.memory.states.used_bytes == 6 * state_bytes
    session.verify(IDS[:2])
    assert session.memory.states.used_bytes == 7 * state_bytes


def test_little_memory_means_fewer_checkpoints_or_a_refusal(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_bytes = states.state_bytes(model.config)
    free = [0]
    monkeypatch.setattr(host, "available_memory_bytes", lambda: RESERVE_BYTES + free[0])
    for free[0], n in ((12 * state_bytes, 3), (400_000_000, MAX_COPIES)):
        session = session_of(model)
        assert session.kv_bytes == 1024 * 128 + (2 + n) * state_bytes
        session.close()
    free[0] = state_bytes
    with pytest.raises(EngineError, match="recurrent layers need 0 MB for what they remember"):
        session_of(model)


def test_without_a_budget_a_session_rewinds_to_the_start(model: Model, tmp_path: Path) -> None:
    session, restored = (session_of(model, checkpoint_bytes=0) for _ in range(2))
    session.prefill(IDS[:200])
    session.memory.make_checkpoint()
    save(session, tmp_path / "kv.state")
    assert session.truncate(150) == 0
    assert restore_state(restored, tmp_path / "kv.state", IDS[:200]).tokens == 200
    assert next_logits(restored) == fresh_logits(model, IDS[:200])


# ---- saved states


def test_a_restored_state_can_continue_and_rewind(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "kv.state"
    session = session_of(model)
    session.prefill(IDS[:200], checkpoint_positions=[77, 190])
    for _ in session.generate(Sampling.greedy(), 21):
        pass
    tokens = session.tokens
    save(session, path)
    for prompt, n_restored in (
        (tokens, len(tokens)),
        ([*tokens[:195], 9, 9], 190),
        ([*tokens[:80], 9], 77),
    ):
        restored = session_of(model)
        assert restorable(restored, path, prompt) == n_restored
        assert restore_state(restored, path, prompt).tokens == n_restored
        assert next_logits(restored) == fresh_logits(model, tokens[:n_restored])
    early = session_of(model)
    assert restore_state(early, path, [*tokens[:60], 9]).tokens == 0
    assert early.prefill(tokens[:60]).fed == 60


def test_checkpoints_survive_a_restart(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "kv.state"
    session = session_of(model)
    restored = session_of(model)
    session.prefill(IDS[:300], checkpoint_positions=[77, 190])
    save(session, path)
    assert restore_state(restored, path, IDS).tokens == 300
    assert restored.reusable([*IDS[:195], 9]) == 190
    restored.prefill([*IDS[:195], *OTHERS[:100]], checkpoint_positions=[270])
    save(restored, path)
    restored_again = session_of(model)
    assert restore_state(restored_again, path, restored.tokens).tokens == 295
    assert restored_again.truncate(280) == 270
    assert next_logits(restored_again) == fresh_logits(model, restored.tokens[:270])


def test_a_state_written_in_steps_is_restored_at_every_turn(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "kv.state"
    session = session_of(model)
    saving = StateWriter(session, path)
    ends = []
    for turn in range(4):
        session.prefill([*session.tokens, *IDS[100 * turn : 100 * turn + 83]])
        assert saving.flush(60), saving.problem
        for _ in session.generate(Sampling.greedy(), 7):
            pass
        assert saving.flush(60), saving.problem
        ends.append(session.length)
    saving.close()
    assert any(end % SEGMENT_POSITIONS % 8 for end in ends)
    for end in ends:
        restored = session_of(model)
        assert restore_state(restored, path, session.tokens[: end + 2]).tokens == end
        assert next_logits(restored) == fresh_logits(model, session.tokens[:end])


def test_a_slow_reply_does_not_save_a_state_for_each_token(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "QUIET_S", 0.0)
    path = tmp_path / "kv.state"
    session = session_of(model)
    session.feed(IDS[:100])
    saving = StateWriter(session, path)
    assert saving.flush(60), saving.problem
    before_bytes = n_bytes_in(path)
    for token in IDS[100:120]:
        session.feed([token])
        saving.notify()
        wait_for(lambda: saving.saved_tokens == session.length)
    assert n_bytes_in(path) - before_bytes < 3 * states.state_bytes(model.config)
    saving.close()


def n_bytes_in(directory: Path) -> int:
    return sum(stored.n_bytes for stored in stored_in(directory))


def wait_for(condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_s
        threading.Event().wait(0.001)


def test_a_damaged_state_is_computed_again(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "kv.state"
    session = session_of(model)
    session.prefill(IDS[:300], checkpoint_positions=[77, 190])
    save(session, path)
    restored_lengths = {}
    fresh = cache(lambda n: fresh_logits(model, IDS[:n]))
    for stored in stored_in(path):
        sound = stored.path.read_bytes()
        for offset in (20, len(sound) // 2, len(sound) - 1):
            stored.path.write_bytes(
                sound[:offset] + bytes([sound[offset] ^ 1]) + sound[offset + 1 :]
            )
            restored = session_of(model)
            n_restored = restore_state(restored, path, IDS[:300]).tokens
            assert restored_lengths.setdefault(stored.segment.last, n_restored) == n_restored
            assert restored.length == n_restored
            if n_restored:
                assert next_logits(restored) == fresh(n_restored)
            assert not stored.path.exists()
            stored.path.write_bytes(sound)
            stored.path.chmod(0o600)
            restored.close()
    assert restored_lengths == {64: 0, 77: 300, 128: 77, 190: 300, 192: 190, 256: 190, 300: 190}


def test_only_the_first_and_the_newest_turns_are_saved(model: Model, tmp_path: Path) -> None:
    session = session_of(model)
    session.prefill(IDS[:580], checkpoint_positions=range(65, 580, 65))
    save(session, tmp_path / "kv.state")
    restored = session_of(model)
    assert restore_state(restored, tmp_path / "kv.state", IDS[:580]).tokens == 580
    assert [restored.memory.checkpoint_before(n) for n in (64, 454, 519, 579)] == [0, 65, 455, 520]


# ---- the states alone


def small(n: int = 8) -> ModelConfig:
    layers = (Layer(ShortConvolution(n, 3), Dense(8)), Layer(ShortConvolution(n, 5), Dense(8)))
    return ModelConfig("lfm2", n, layers, 1e-5, 4096, 300)


class Walked:
    """States whose content is computed from the tokens, as if layers had written it."""

    def __init__(self, max_checkpoints: int) -> None:
        self.states = RecurrentStates(small(), max_checkpoints * states.state_bytes(small()))
        self.tokens: list[int] = []

    def content(self) -> np.ndarray[Any, Any]:
        if not self.tokens:
            return np.zeros(self.states.size_bytes, np.uint8)
        seed = zlib.crc32(bytes(self.tokens))
        return np.random.default_rng([seed, len(self.tokens)]).integers(
            0, 256, self.states.size_bytes, np.uint8
        )

    def walk(self, ids: list[int], is_done: bool) -> None:
        self.states.reserve()
        wrong = self.states._slots[1 - self.states.slot]
        wrong[:] = 77
        if not is_done:
            self.rewind(len(self.tokens))
            return
        self.tokens += ids
        wrong[:] = self.content()
        self.states.commit(len(self.tokens))

    def try_out(self, ids: list[int], n_kept: int) -> None:
        """Compute tokens on trial, of which the first ones are kept."""
        ids = ids[: 1 + self.states.max_guesses]
        self.states.reserve_trial(len(ids))
        length = len(self.tokens)
        tokens = list(self.tokens)
        for token, slot in zip(ids, self.states._trial_slots[1:], strict=True):
            self.tokens.append(token)
            self.states._slots[slot][:] = self.content()
        self.tokens = tokens
        for token in ids[:n_kept]:
            self.tokens.append(token)
            self.states.commit(len(self.tokens))
        if not n_kept:
            self.rewind(length)

    def rewind(self, n: int) -> None:
        reachable = self.states.reachable(n)
        position = self.states.rewind(n)
        assert reachable == position <= n
        del self.tokens[position:]

    def check(self) -> None:
        assert (self.states._slots[self.states.slot] == self.content()).all()
        out = np.empty(self.states.size_bytes, np.uint8)
        assert (
            self.states.copy_state(len(self.tokens), out) == bool(len(self.tokens))
            or not self.tokens
        )
        assert self.states.reachable(len(self.tokens)) == len(self.tokens)


ACTIONS = st.one_of(
    st.tuples(st.just("walk"), st.lists(st.integers(0, 255), min_size=1, max_size=9)),
    st.tuples(st.just("fail"), st.just([1])),
    st.tuples(
        st.just("try"),
        st.tuples(st.lists(st.integers(0, 255), min_size=1, max_size=4), st.integers(0, 4)),
    ),
    st.tuples(st.just("rewind"), st.integers(0, 60)),
    st.tuples(st.sampled_from(["make_checkpoint", "save_end", "drop_saved_end"]), st.none()),
)


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 4), st.lists(ACTIONS, max_size=30))
def test_after_any_rewind_the_state_matches_the_tokens(
    max_checkpoints: int, actions: list[tuple[str, Any]]
) -> None:
    walked = Walked(max_checkpoints)
    for action, argument in actions:
        if action in ("walk", "fail"):
            walked.walk(argument, action == "walk")
        elif action == "try":
            walked.try_out(*argument)
        elif action == "rewind":
            walked.rewind(min(argument, len(walked.tokens)))
        elif action == "save_end":
            walked.states.save_end(len(walked.tokens))
        else:
            getattr(walked.states, action)()
        walked.check()
        assert walked.states.used_bytes <= walked.states.n_bytes + walked.states.size_bytes


def test_old_checkpoints_are_sparse_and_turns_are_preferred() -> None:
    walked = Walked(4)
    for number in range(40):
        walked.walk(list(range(10)), is_done=True)
        walked.states._add_checkpoint(is_turn=number % 4 == 3)
    positions = [checkpoint.n for checkpoint in walked.states._checkpoints]
    assert positions[-1] == 400
    assert all(checkpoint.is_turn for checkpoint in walked.states._checkpoints)
    gaps = np.diff([0, *positions])
    assert gaps[-1] < gaps[0]


def test_a_copy_overwritten_meanwhile_is_not_valid() -> None:
    walked = Walked(0)
    walked.walk([1, 2, 3], is_done=True)

    class Overtaken(np.ndarray[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            super().__setitem__(key, value)
            walked.walk([4], is_done=True)

    out = np.empty(walked.states.size_bytes, np.uint8)
    assert walked.states.copy_state(3, out)
    assert not walked.states.copy_state(3, out.view(Overtaken))
    assert not walked.states.copy_state(3, out)
