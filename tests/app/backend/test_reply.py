import threading

import pytest

from app.backend.reply import Reply, ReplyMeter
from app.conversations.conversation import Ending
from app.text.guesses import GuessFigures
from engine.errors import BrokenModelError
from engine.sampling.guessing import GuessKind
from engine.sampling.loops import LoopGuard
from tests.app.fake_engine import FakeClock, FakeSession, Gate, Script


def session_of(script: Script) -> FakeSession:
    return script.open_model().session()


def reply_of(script: Script, prompt: int = 10, **options: object) -> Reply:
    return Reply(
        session_of(script), list(range(10, 10 + prompt)), None, clock=script.clock, **options
    )  # type: ignore[arg-type]


def test_a_reply_yields_its_text_and_counts_tokens_and_times() -> None:
    script = Script(replies=[["Hel", "", "lo", "!"]])
    reply = reply_of(script)
    assert list(reply) == ["Hel", "lo", "!"]
    assert reply.text == "Hello!"
    meter = reply.meter
    assert (meter.prompt_tokens, meter.read_tokens, meter.tokens, len(reply.ids)) == (10, 10, 4, 4)
    assert meter.prefill_tps == pytest.approx(10.0)
    assert meter.first_token_s == pytest.approx(1.5)  # 10 x 0.1 s of prefill, then 0.5 s
    assert meter.decode_tps == pytest.approx(2.0)
    assert meter.finish_reason == "stop"
    assert meter.ending is Ending.COMPLETE


def test_a_reply_counts_its_guesses_by_kind() -> None:
    script = Script()
    session = session_of(script)
    for n_guesses, tokens in ((0, [7]), (4, [8, 9])):
        session.guess_tally.record_run(GuessKind.EARLIER, n_guesses, 1.0)
        session.guess_tally.n_right[GuessKind.EARLIER] = n_guesses // 2
        reply = Reply(session, tokens, None, clock=script.clock)
        list(reply)
        expected = (GuessFigures("earlier", 4, 2),) if n_guesses else ()
        assert reply.meter.figures().guesses == expected
        assert reply.meter.figures().guess_saved_s is None  # too few steps without guesses
    for _ in range(8):
        session.guess_tally.record_run(GuessKind.EARLIER, 0, 1.0)
    list(reply := Reply(session, [5], None, clock=script.clock))
    assert reply.meter.figures().guess_saved_s == pytest.approx(2.0)


def test_cached_and_prefilled_tokens_are_counted_separately() -> None:
    script = Script()
    session = session_of(script)
    list(Reply(session, [1, 2, 3, 4], None, clock=script.clock))
    again = Reply(session, [1, 2, 3, 4, 5, 6], None, clock=script.clock)
    list(again)
    assert (again.meter.reused_tokens, again.meter.read_tokens, again.meter.prompt_tokens) == (
        4,
        2,
        6,
    )


def test_the_token_limit_ends_the_reply_and_0_is_unlimited() -> None:
    script = Script(replies=[["a", "b", "c"]])
    limited = reply_of(script, max_tokens=2)
    unlimited = reply_of(script, max_tokens=0)
    assert ("".join(limited), limited.meter.finish_reason) == ("ab", "length")
    assert ("".join(unlimited), unlimited.meter.finish_reason) == ("abc", "stop")


def test_a_repetitive_reply_ends_and_keeps_one_copy() -> None:
    unit = ["round ", "and ", "about ", "it ", "goes "]
    script = Script(replies=[["Well: ", *unit * 100]])
    session = session_of(script)
    reply = Reply(
        session,
        [10, 11],
        None,
        guard=LoopGuard(session.model.tokenizer.spelled_bytes),
        clock=script.clock,
    )
    streamed_text = "".join(reply)
    assert reply.text == "Well: " + "".join(unit)
    assert (
        streamed_text == reply.text + "".join(unit * 100)[len("".join(unit)) :][: reply.n_cut_chars]
    )
    assert len(reply.ids) == 6
    assert reply.meter.tokens < 200
    assert (reply.meter.finish_reason, reply.meter.ending) == ("repeats", Ending.REPEATED)


def test_without_a_guard_a_reply_may_repeat_itself() -> None:
    reply = reply_of(Script(replies=[["over ", "again "] * 200]))
    assert len(list(reply)) == 400
    assert reply.meter.ending is Ending.COMPLETE


def test_text_held_back_does_not_count_as_a_token() -> None:
    script = Script(replies=[["a", "b"]], held_back="!")
    reply = reply_of(script)
    assert "".join(reply) == reply.text == "ab!"
    assert (len(reply.ids), reply.meter.tokens) == (2, 2)


def test_cancel_while_generating_keeps_the_partial_text() -> None:
    script = Script(replies=[["a", "b", "c"]])
    reply = reply_of(script)
    pieces = iter(reply)
    assert next(pieces) == "a"
    reply.cancel()
    assert list(pieces) == []
    assert (reply.text, reply.meter.finish_reason, reply.meter.ending) == (
        "a",
        "cancelled",
        Ending.STOPPED,
    )


def test_cancel_during_prefill_ends_without_a_token() -> None:
    script = Script(prefill_gate=Gate())
    reply = reply_of(script)
    result: list[str] = []
    thread = threading.Thread(target=lambda: result.extend(reply))
    thread.start()
    assert script.prefill_gate is not None
    assert script.prefill_gate.waiting.wait(60)
    reply.cancel()
    thread.join(60)
    assert not thread.is_alive()
    assert (result, reply.meter.tokens, reply.meter.finish_reason) == ([], 0, "cancelled")


def test_cancel_between_prompt_and_first_token_is_not_lost() -> None:
    script = Script()
    reply = reply_of(
        script, on_prompt_progress=lambda done, total: reply.cancel() if done == total else None
    )
    assert list(reply) == []
    assert reply.meter.finish_reason == "cancelled"


def test_a_reply_stopped_before_its_start_is_empty() -> None:
    reply = reply_of(Script())
    reply.cancel()
    assert list(reply) == []
    assert reply.meter.finish_reason == "cancelled"


def test_an_engine_error_is_raised_and_the_text_stays() -> None:
    script = Script(replies=[["a", "b", "c"]], fail_after_tokens=2)
    reply = reply_of(script)
    with pytest.raises(BrokenModelError):
        list(reply)
    assert (reply.text, len(reply.ids), reply.meter.finish_reason) == ("ab", 2, "error")
    assert reply.meter.ending is Ending.FAILED


def test_prompt_progress_is_reported_token_by_token() -> None:
    seen: list[tuple[int, int]] = []
    list(
        reply_of(
            Script(), prompt=3, on_prompt_progress=lambda done, total: seen.append((done, total))
        )
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_the_rate_over_a_window_falls_without_tokens() -> None:
    clock = FakeClock()
    meter = ReplyMeter(1, clock)
    for _ in range(21):
        clock.advance(0.1)
        meter.token_times_s.append(clock.now_s)
    assert meter.window_tps(1.0) == pytest.approx(10.0, rel=0.01)
    clock.advance(0.5)
    assert 4.0 < meter.window_tps(1.0) < 7.0
    clock.advance(5.0)
    assert meter.window_tps(1.0) == 0.0


def test_rates_without_measurements_are_zero() -> None:
    meter = ReplyMeter(0, FakeClock())
    assert (meter.prefill_tps, meter.decode_tps, meter.window_tps(1.0)) == (0, 0, 0)
    assert meter.first_token_s is None
    meter.token_times_s = [5.0, 5.0]  # a clock too coarse to distinguish them
    assert meter.decode_tps == 0.0
