"""States of recurrent layers: where a session can go back to, what it costs, and what a saved state
brings back."""

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
from engine.cache.states import MAX_CHECKPOINTS, RecurrentStates
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
    """A summary of the layers' states."""
    return session.feed(OTHERS[:7], every=True).tobytes()


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


def test_another_reply_and_an_edit_restart_at_the_nearest_turn(model: Model) -> None:
    session = session_of(model)
    session.prefill(IDS[:TURN], turns=[10, 70, 195])
    reply = [piece.token_id for piece in session.generate(Sampling.greedy(), 20)]
    assert session.reusable(IDS[:TURN]) == 195
    assert session.has_lost(IDS[:TURN])
    assert session.prefill(IDS[:TURN]).reused == 195
    assert [piece.token_id for piece in session.generate(Sampling.greedy(), 20)] == reply
    edited = [*IDS[:150], *OTHERS[:50]]
    assert session.prefill(edited).reused == 70
    assert next_logits(session) == fresh_logits(model, edited)


def test_the_next_turn_keeps_where_the_reply_ended(model: Model) -> None:
    session = session_of(model)
    session.prefill(IDS[:50])
    for _ in session.generate(Sampling.greedy(), 20):
        pass
    held = session.tokens
    assert session.prefill([*held, *IDS[100:130]]).reused == len(held)
    assert session.prefill([*held, *IDS[130:180]]).reused == len(held)
    assert next_logits(session) == fresh_logits(model, [*held, *IDS[130:180]])


def test_messages_close_to_each_other_share_a_place(model: Model) -> None:
    session = session_of(model)
    turns = [64, 70, 100, 127, 128, 191, 299]
    session.prefill(IDS[:300], turns=turns)
    assert [n for n in turns if session.memory.checkpoint_before(n) == n] == [64, 128, 299]


def test_a_long_prompt_is_kept_now_and_then(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """Whatever the last layer is that remembers tokens: all of them pass it, and the last one all
    after it."""
    model = Model.open(
        tiny_gguf.write(tmp_path / "m.gguf", architecture, "Q8_0", n_layers=n_layers), threads=2
    )
    whole = model.session(n_ctx=128)
    prompt = model.session(n_ctx=128)
    assert prompt.feed(IDS[:n]).tobytes() == whole.feed(IDS[:n], every=True)[-1].tobytes()
    assert prompt.feed(OTHERS[:5]).tobytes() == whole.feed(OTHERS[:5]).tobytes()
    model.close()


def test_a_stopped_walk_costs_nothing(model: Model) -> None:
    session = session_of(model)
    session.feed(IDS[:100])
    columns = session.pipeline.block_size_at
    session.pipeline.block_size_at = lambda pos: 16  # type: ignore[method-assign]
    with pytest.raises(Cancelled):
        session.feed(
            IDS[100:300], on_progress=lambda done, total: session.cancel() if done > 60 else None
        )
    session.pipeline.block_size_at = columns  # type: ignore[method-assign]
    assert session.length == 164
    model.crew.cancel()
    # some layers have written, others not
    assert not session.pipeline.store(IDS[:4], 164, 2, is_small_batch=True)
    model.crew.clear_cancel()
    assert session.truncate(164) == 164
    assert next_logits(session) == fresh_logits(model, IDS[:164])


def test_a_rejected_guess_leaves_the_state_as_it_was(model: Model) -> None:
    session = session_of(model)
    session.feed(IDS[:100])
    session.verify(IDS[100:104])
    assert session.truncate(102) == 100
    session.feed(IDS[100:102])
    other = session_of(model)
    other.feed(IDS[:100])
    other.feed(IDS[100:102])
    assert next_logits(session) == next_logits(other)


def test_guesses_that_hold_need_nothing_again(model: Model) -> None:
    one = session_of(model)
    other = session_of(model)
    for session in (one, other):
        session.feed(IDS[:100])
    rows = one.verify(IDS[100:104])
    assert rows.tobytes() == np.stack([other.feed([token]) for token in IDS[100:104]]).tobytes()
    assert next_logits(one) == next_logits(other)


def test_nothing_is_guessed_where_a_rejected_guess_costs_more(model: Model) -> None:
    repeated = IDS[:20] * 6
    replies = []
    for guess in (True, False):
        session = session_of(model)
        session.prefill(repeated)
        replies.append(
            [piece.token_id for piece in session.generate(Sampling.greedy(), 30, guess=guess)]
        )
        replay(session, IDS[:20] * 2, guess)
        assert session.n_guessed == 0
        assert next_logits(session) == fresh_logits(model, session.tokens[: session.length - 7])
    assert replies[0] == replies[1]


def test_what_is_only_tried_is_forgotten(model: Model) -> None:
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


def test_nothing_is_dropped_from_the_midst(model: Model) -> None:
    session = session_of(model)
    session.feed(IDS[:100])
    assert session.shift_towards([*IDS[:20], *IDS[40:100], 5]) == 0
    with pytest.raises(EngineError, match="cannot forget"):
        session.shift(20, 20)
    assert session.length == 100


def test_needs_are_both_slots_and_the_checkpoints_of_the_budget(model: Model) -> None:
    each = states.state_bytes(model.config)
    assert each == 4 * (3 * 8 * 32 + 4 * 32 * 32)
    needs = memory_needs(model.config, KV_TYPES["f16"], 5 * each + 1)
    assert needs == MemoryNeeds(2 * 2 * 2 * 16, 7 * each, state_bytes=each)
    assert (needs.bytes_moved(0), needs.bytes_moved(100)) == (2 * each, 2 * each + 100 * 128)
    session = session_of(model, checkpoint_bytes=5 * each + 1)
    assert session.kv_bytes == needs.bytes_for(1024)
    assert (session.kv_bytes_per_position, session.state_bytes) == (128, each)
    assert memory_needs(model.config, KV_TYPES["f16"]).fixed_bytes == (2 + MAX_CHECKPOINTS) * each
    for n in range(100, 600, 50):
        session.feed(IDS[session.length : n])
        session.memory.make_checkpoint()
    assert isinstance(session.memory, HybridMemory)
    assert session.memory.states.used_bytes == 7 * each


def test_little_memory_means_fewer_checkpoints_or_a_refusal(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = states.state_bytes(model.config)
    free = [0]
    monkeypatch.setattr(host, "available_memory_bytes", lambda: RESERVE_BYTES + free[0])
    for free[0], n in ((12 * each, 3), (400_000_000, MAX_CHECKPOINTS)):
        session = session_of(model)
        assert session.kv_bytes == 1024 * 128 + (2 + n) * each
        session.close()
    free[0] = each
    with pytest.raises(EngineError, match="recurrent layers need 0 MB for what they remember"):
        session_of(model)


def test_without_a_budget_only_the_start_is_left_to_go_back_to(
    model: Model, tmp_path: Path
) -> None:
    session, back = (session_of(model, checkpoint_bytes=0) for _ in range(2))
    session.prefill(IDS[:200])
    session.memory.make_checkpoint()
    save(session, tmp_path / "kv.state")
    assert session.truncate(150) == 0
    assert restore_state(back, tmp_path / "kv.state", IDS[:200]).tokens == 200
    assert next_logits(back) == fresh_logits(model, IDS[:200])


# ---- saved states


def test_a_saved_state_goes_on_and_goes_back(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "kv.state"
    session = session_of(model)
    session.prefill(IDS[:200], turns=[77, 190])
    for _ in session.generate(Sampling.greedy(), 21):
        pass
    held = session.tokens
    save(session, path)
    for wanted, there in ((held, len(held)), ([*held[:195], 9, 9], 190), ([*held[:80], 9], 77)):
        back = session_of(model)
        assert restorable(back, path, wanted) == there
        assert restore_state(back, path, wanted).tokens == there
        assert next_logits(back) == fresh_logits(model, held[:there])
    early = session_of(model)
    assert restore_state(early, path, [*held[:60], 9]).tokens == 0
    assert early.prefill(held[:60]).fed == 60


def test_a_restart_keeps_the_way_back(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "kv.state"
    session = session_of(model)
    back = session_of(model)
    session.prefill(IDS[:300], turns=[77, 190])
    save(session, path)
    assert restore_state(back, path, IDS).tokens == 300
    assert back.reusable([*IDS[:195], 9]) == 190
    back.prefill([*IDS[:195], *OTHERS[:100]], turns=[270])
    save(back, path)
    again = session_of(model)
    assert restore_state(again, path, back.tokens).tokens == 295
    assert again.truncate(280) == 270
    assert next_logits(again) == fresh_logits(model, back.tokens[:270])


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
        back = session_of(model)
        assert restore_state(back, path, session.tokens[: end + 2]).tokens == end
        assert next_logits(back) == fresh_logits(model, session.tokens[:end])


def test_a_slow_reply_does_not_save_its_state_with_each_token(
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


def n_bytes_in(place: Path) -> int:
    return sum(one.n_bytes for one in stored_in(place))


def wait_for(condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_s
        threading.Event().wait(0.001)


def test_a_damaged_state_costs_a_reread_and_never_an_answer(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "kv.state"
    session = session_of(model)
    session.prefill(IDS[:300], turns=[77, 190])
    save(session, path)
    found = {}
    fresh = cache(lambda n: fresh_logits(model, IDS[:n]))
    for one in stored_in(path):
        whole = one.path.read_bytes()
        for at in (20, len(whole) // 2, len(whole) - 1):
            one.path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            back = session_of(model)
            there = restore_state(back, path, IDS[:300]).tokens
            assert found.setdefault(one.segment.last, there) == there
            assert back.length == there
            assert next_logits(back) == fresh(there) if there else True
            assert not one.path.exists()
            one.path.write_bytes(whole)
            one.path.chmod(0o600)
            back.close()
    assert found == {64: 0, 77: 300, 128: 77, 190: 300, 192: 190, 256: 190, 300: 190}


def test_only_the_first_and_the_newest_turns_are_saved(model: Model, tmp_path: Path) -> None:
    session = session_of(model)
    session.prefill(IDS[:580], turns=range(65, 580, 65))
    save(session, tmp_path / "kv.state")
    back = session_of(model)
    assert restore_state(back, tmp_path / "kv.state", IDS[:580]).tokens == 580
    assert [back.memory.checkpoint_before(n) for n in (64, 454, 519, 579)] == [0, 65, 455, 520]


# ---- the states alone


def small(n: int = 8) -> ModelConfig:
    layers = (Layer(ShortConvolution(n, 3), Dense(8)), Layer(ShortConvolution(n, 5), Dense(8)))
    return ModelConfig("lfm2", n, layers, 1e-5, 4096, 300)


class Walked:
    """States whose content follows from the tokens, as a walk would write it."""

    def __init__(self, most: int) -> None:
        self.states = RecurrentStates(small(), most * states.state_bytes(small()))
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

    def rewind(self, n: int) -> None:
        said = self.states.reachable(n)
        there = self.states.rewind(n)
        assert said == there <= n
        del self.tokens[there:]

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
    st.tuples(st.just("rewind"), st.integers(0, 60)),
    st.tuples(st.sampled_from(["make_checkpoint", "save_end", "drop_saved_end"]), st.none()),
)


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 4), st.lists(ACTIONS, max_size=30))
def test_after_any_rewind_the_state_is_that_of_the_tokens(
    most: int, actions: list[tuple[str, Any]]
) -> None:
    walked = Walked(most)
    for action, argument in actions:
        if action in ("walk", "fail"):
            walked.walk(argument, action == "walk")
        elif action == "rewind":
            walked.rewind(min(argument, len(walked.tokens)))
        elif action == "save_end":
            walked.states.save_end(len(walked.tokens))
        else:
            getattr(walked.states, action)()
        walked.check()
        assert walked.states.used_bytes <= walked.states.n_bytes + walked.states.size_bytes


def test_old_checkpoints_are_sparse_and_turns_are_kept_first() -> None:
    walked = Walked(4)
    for number in range(40):
        walked.walk(list(range(10)), is_done=True)
        walked.states._add_checkpoint(is_turn=number % 4 == 3)
    kept = [one.n for one in walked.states._checkpoints]
    assert kept[-1] == 400
    assert all(one.is_turn for one in walked.states._checkpoints)
    gaps = np.diff([0, *kept])
    assert gaps[-1] < gaps[0]


def test_a_copy_that_is_overwritten_meanwhile_does_not_count() -> None:
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
