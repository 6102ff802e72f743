"""Guesses change the speed of a reply, never its text, and cost no more than their share."""

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from engine import Model, Sampling
from engine.sampling import guessing
from engine.sampling.earlier_text import DEPTH, EarlierText
from engine.sampling.guessing import GuessCosts, Guessing, GuessKind
from engine.session import Session
from tests.engine import tiny_gguf

VOCAB = 1 << 20
PROMPT = [5, 9, 20, 33, 47, 60, 71] * 3


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    if request.param == "llama":
        return Model.open(tiny_gguf.write(path, "llama", "Q8_0", context_length=512), threads=2)
    return Model.open(tiny_gguf.write(path, "gemma3", context_length=2048), threads=2)


@pytest.fixture(autouse=True)
def free_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guessing, "SHARE", 1e9)
    monkeypatch.setattr(guessing, "MAX_BALANCE", 1e9)


def reply(
    session: Session, sampling: Sampling, guess: bool, n: int = 60, stop: tuple[str, ...] = ()
) -> list[object]:
    session.prefill(PROMPT)
    pieces = [
        (piece.token_id, piece.text) for piece in session.generate(sampling, n, stop, guess=guess)
    ]
    return [pieces, session.finish_reason, session.tokens]


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling.greedy(),
        Sampling(seed=3),
        Sampling(seed=4, temperature=0.3, repeat_penalty=1.3),
        Sampling(seed=5, top_k=0, typical_p=0.9, xtc_probability=0.2, dry_multiplier=0.2,
                 presence_penalty=0.1),
    ],
    ids=["greedy", "drawn", "penalised", "with everything"],
)  # fmt: skip
def test_a_reply_is_the_same_with_guesses(model: Model, sampling: Sampling) -> None:
    plain = model.session(n_ctx=256)
    guessed = model.session(n_ctx=256)
    assert reply(guessed, sampling, True) == reply(plain, sampling, False)
    assert (guessed.feed([7]) == plain.feed([7])).all()
    for session in (plain, guessed):
        session.close()


@pytest.mark.slow
def test_guesses_come_true_where_a_reply_repeats_itself(model: Model) -> None:
    session = model.session(n_ctx=512)
    reply(session, Sampling.greedy(), True, 200)
    assert session.n_guessed > 20
    reply(session, Sampling.greedy(), False)
    assert session.n_guessed == 0
    session.close()


@pytest.mark.slow
@pytest.mark.parametrize("n_left", [1, 2, 3, 5])
def test_guesses_end_where_the_context_or_the_limit_does(model: Model, n_left: int) -> None:
    for n_ctx, n in ((len(PROMPT) + 40 + n_left, 200), (256, 40 + n_left)):
        plain = model.session(n_ctx=n_ctx)
        guessed = model.session(n_ctx=n_ctx)
        assert reply(guessed, Sampling.greedy(), True, n) == reply(
            plain, Sampling.greedy(), False, n
        )
        plain.close()
        guessed.close()


@pytest.mark.smoke
@pytest.mark.slow
def test_stopped_replies_keep_no_guessed_tokens(model: Model) -> None:
    plain = model.session(n_ctx=256)
    guessed = model.session(n_ctx=256)
    (pieces, *_) = reply(plain, Sampling.greedy(), False)
    stop = "".join(text for _, text in pieces)[40:43]  # type: ignore[attr-defined]
    assert reply(guessed, Sampling.greedy(), True, 60, (stop,)) == reply(
        plain, Sampling.greedy(), False, 60, (stop,)
    )
    guessed.prefill(PROMPT)
    generating = guessed.generate(Sampling.greedy(), 60, guess=True)
    first = [next(generating).token_id for _ in range(31)]
    generating.close()
    assert guessed.tokens == [*PROMPT, *first[:-1]]
    plain.prefill([*PROMPT, *first[:-1]])
    assert (guessed.feed([7]) == plain.feed([7])).all()
    plain.close()
    guessed.close()


@pytest.mark.slow
def test_an_ignored_end_token_is_never_generated(model: Model) -> None:
    session = model.session(n_ctx=256)
    end = min(model.tokenizer.end_ids)
    end_only = Sampling(temperature=0.0, logit_bias=((end, 100.0),))
    assert reply(session, end_only, False)[:2] == [[], "stop"]
    pieces, reason, _ = reply(session, replace(end_only, ignore_eos=True), True, 30)
    assert len(pieces) == 30  # type: ignore[arg-type]
    assert reason == "length"
    session.close()


# ---- what guesses cost


def spend(
    text: list[int],
    cost_steps: float,
    monkeypatch: pytest.MonkeyPatch,
    earlier: EarlierText | None = None,
    costs: GuessCosts | None = None,
) -> float:
    """Return the cost of each token of a text, in steps; each guess costs ``cost_steps``."""
    monkeypatch.undo()
    guesser = Guessing(text[:40], costs or GuessCosts(), earlier)
    steps = 0.0
    row = np.zeros(1, np.float32)
    for position in range(40, len(text)):
        if guesser.take_logits(text[position]) is None:
            guesses = guesser.propose(3)
            step_cost = 1.0 + cost_steps * len(guesses)
            guesser.record_run(guesses, [row] * len(guesses), step_cost)
            steps += step_cost
    return steps / (len(text) - 40)


def test_repeated_text_is_generated_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(1)
    once = [random.randrange(1000) for _ in range(300)]
    # Adjacent copies would be a loop, and loops are not guessed.
    text = [*once, 1001, 1002, *once, 1003, *once]
    assert spend(text, 0.5, monkeypatch) < 0.8


@pytest.mark.parametrize("cost_steps", [0.2, 1.0, 4.0])
def test_text_without_correct_guesses_is_hardly_slower(
    cost_steps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The pair of tokens repeats all the time, but never with the same successor.
    text = []
    random = Random(2)
    for _ in range(1000):
        text += [1, 2, random.randrange(10, 100_000)]
    assert spend(text, cost_steps, monkeypatch) < 1.01 + 2 * cost_steps / len(text)


def test_the_longest_match_decides() -> None:
    guesser = Guessing([1, 2, 3, 4, 50, 9, 3, 4, 60, 9, 1, 2, 3], GuessCosts())
    guesser.record_run([], [], 1.0)
    assert guesser.take_logits(4) is None
    assert guesser.propose(1) == [50]


def test_nothing_is_guessed_before_a_timed_step_or_with_no_match(tmp_path: Path) -> None:
    guesser = Guessing([1, 2, 3, 4, 8, 9, 1, 2, 3], GuessCosts())
    guesser.take_logits(4)
    assert guesser.propose(3) == []
    guesser.record_run([], [], 1.0)
    assert guesser.propose(3) == [8, 9, 1][: len(guesser.propose(3))] != []
    guesser.take_logits(77)
    assert guesser.propose(3) == []


def test_guesses_are_counted_by_kind_with_the_time_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    row = np.zeros(1, np.float32)
    guesser = Guessing([1, 2, 3, 4, 5, 9, 1, 2, 3], GuessCosts())
    for _ in range(7):
        guesser.record_run([], [], 1.0)
    assert guesser.tally.saved_s is None
    guesser.take_logits(4)
    guesser.record_run([5, 9], [row, row], 1.5)
    assert guesser.take_logits(5) is row
    assert guesser.take_logits(7) is None
    guesser.record_run([], [], 1.0)
    assert (guesser.tally.n_tried["conversation"], guesser.tally.n_right["conversation"]) == (2, 1)
    assert guesser.tally.saved_s == pytest.approx(0.5)
    guesser.record_draft(1, 0.2)
    assert guesser.tally.saved_s == pytest.approx(0.3)


def test_only_the_chosen_kinds_of_guesses_are_used() -> None:
    tokens = [1, 2, 3, 4, 50, 9, 1, 2, 3, 4]
    earlier = EarlierText([[1, 2, 3, 4, 60]], VOCAB)
    for kind, proposed in (
        (GuessKind.CONVERSATION, [50]),
        (GuessKind.EARLIER, [60]),
        (GuessKind.PREDICTOR, []),
    ):
        guesser = Guessing(tokens, GuessCosts(), earlier, [kind])
        guesser.record_run([], [], 1.0)
        guesser._costs.balance = 1e9
        assert guesser.propose(1) == proposed
        assert bool(guesser.best_draft(1, 0)) == (kind is GuessKind.PREDICTOR)


def test_the_predictor_guesses_as_many_tokens_as_pay() -> None:
    costs = GuessCosts()
    guesser = Guessing([1, 2, 3], costs)
    assert guesser.best_draft(3, 0) == 0
    guesser.record_run([], [], 1.0)
    costs.balance = 10.0
    costs.draft_steps = 0.03
    costs.run_steps = {1: 1.05, 2: 1.1, 3: 1.15}
    assert [guesser.best_draft(limit, 0) for limit in (1, 2, 3, 8)] == [1, 2, 3, 3]
    costs.run_steps = {1: 1.3, 2: 1.9, 3: 2.5}
    assert guesser.best_draft(3, 0) == 1
    costs.run_steps = {1: 1.9, 2: 2.8, 3: 3.7}
    assert guesser.best_draft(3, 0) == 1  # to notice a better hit rate
    assert guesser.best_draft(3, 1) == 0
    costs.balance = 1.5
    assert guesser.best_draft(3, 0) == 0


def test_the_first_guess_of_a_predictor_is_no_measured_cost() -> None:
    costs = GuessCosts()
    costs.record_run(0, 1.0)
    balance = costs.balance
    costs.record_draft(1, 50.0)
    assert (costs.draft_steps, costs.balance) == (0.1, balance)
    costs.record_draft(2, 0.4)
    assert costs.draft_steps == pytest.approx(0.7 * 0.1 + 0.3 * 0.2)
    assert costs.balance == pytest.approx(balance - 0.4)


def test_wrong_drafts_end_after_a_slow_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    costs = GuessCosts()
    guesser = Guessing([1], costs, kinds=[GuessKind.PREDICTOR])
    logits = np.zeros(8, np.float32)
    step_s = 3.0  # other programs were busy
    n_drafts = 0
    for n in range(200):
        assert guesser.take_logits(100 + n) is None
        if guesser.best_draft(1, 0):
            n_drafts += 1
            guesser.record_draft(1, 0.3)
            guesser.record_run([0], [logits], 1.2)
        else:
            guesser.record_run([], [], step_s)
            step_s = 1.0
    assert n_drafts < 50


# ---- text of earlier conversations


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Sampling.greedy(), Sampling(seed=3)], ids=["greedy", "drawn"])
def test_earlier_text_never_changes_a_reply(model: Model, sampling: Sampling) -> None:
    plain = model.session(n_ctx=256)
    guessed = model.session(n_ctx=256)
    plain_reply = reply(plain, sampling, False)
    guessed.earlier_text = EarlierText([plain.tokens], VOCAB)
    assert reply(guessed, sampling, True) == plain_reply
    assert guessed.n_guessed > 20
    guessed.earlier_text = EarlierText(
        [[(token + 1) % 64 for token in plain.tokens], PROMPT[:5]], VOCAB
    )
    assert reply(guessed, sampling, True) == plain_reply
    for session in (plain, guessed):
        session.close()


def test_text_of_an_earlier_conversation_is_generated_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = Random(4)
    text = [random.randrange(1000) for _ in range(300)]
    earlier = EarlierText([[7, 8, 9], [*text[50:], 5]], VOCAB)
    assert spend(text, 0.5, monkeypatch, earlier) < 0.75 < 0.99 < spend(text, 0.5, monkeypatch)


@pytest.mark.parametrize("cost_steps", [0.2, 1.0, 4.0])
def test_misleading_earlier_text_costs_hardly_more(
    cost_steps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(5)
    text = []
    misleading = []
    for _ in range(1000):
        words = [random.randrange(100) for _ in range(4)]
        text += [*words, random.randrange(100, 10_000)]
        misleading += [*words, random.randrange(10_000, 100_000)]
    assert spend(
        text, cost_steps, monkeypatch, EarlierText([misleading], VOCAB)
    ) < 1.01 + 2 * cost_steps / len(text)


def test_unlikely_guesses_are_not_tried_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    guesser = Guessing([1, 2, 8, 9, 1], GuessCosts())
    guesser.take_logits(2)
    guesser.record_run([], [], 1.0)
    assert guesser.propose(3) == []
    guesser._costs.balance += 0.5
    assert guesser.propose(3) == [8]


def test_several_guesses_are_expected_to_cost_little_if_one_does() -> None:
    cheap = GuessCosts()
    costly = GuessCosts()
    for costs, steps in ((cheap, 1.05), (costly, 3.0)):
        costs.record_run(0, 1.0)
        for _ in range(20):
            costs.record_run(1, steps)
    assert cheap.run_steps[2] < 1.2
    assert cheap.run_steps[3] < 1.3
    assert (costly.run_steps[2], costly.run_steps[3]) == pytest.approx((2.0, 2.5))
    for _ in range(5):
        cheap.record_run(3, 4.0)
    assert cheap.run_steps[3] > 2.0
    cheap.record_run(1, 1.05)
    assert cheap.run_steps[3] > 2.0  # its own measurement counts


def test_the_first_run_with_guesses_does_not_look_too_costly() -> None:
    costs = GuessCosts()
    costs.record_run(0, 1.0)
    expected = costs.run_steps[2]
    costs.record_run(2, 9.0)  # its plan is written
    assert costs.run_steps[2] == expected
    costs.record_run(2, 9.0)
    assert costs.run_steps[2] > expected + 1.0


def test_short_replies_of_a_session_share_one_balance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    random = Random(6)
    costs = GuessCosts()
    n_steps = 0.0
    text = [token for _ in range(50) for token in (1, 2, random.randrange(10, 100_000))]
    for _ in range(20):
        n_steps += spend(text, 1.0, monkeypatch, None, costs) / 20
    assert n_steps < 1.01


def longest(
    texts: list[list[int]], tokens: list[int], max_tokens: int
) -> tuple[int, set[tuple[int, ...]]]:
    """Return the length of the longest match and all its continuations of up to ``max_tokens``.

    It compares every position, unlike ``EarlierText.following``.
    """
    best_length = 0
    continuations: set[tuple[int, ...]] = set()
    for text in texts:
        for position in range(3, len(text)):
            length = 0
            while length < min(DEPTH, position, len(tokens)):
                if text[position - 1 - length] != tokens[-1 - length]:
                    break
                length += 1
            if length < 3 or length < best_length:
                continue
            if length > best_length:
                best_length = length
                continuations = set()
            continuations.add(tuple(text[position : position + max_tokens]))
    return best_length, continuations


def test_the_longest_match_is_found_at_any_position() -> None:
    random = Random(7)
    texts = [[random.randrange(3) for _ in range(random.randrange(60))] for _ in range(20)]
    earlier = EarlierText(texts, VOCAB)
    n_found = 0
    for _ in range(500):
        tokens = [random.randrange(3) for _ in range(random.randrange(14))]
        length, follow = earlier.following(tokens, 3)
        expected, allowed = longest(texts, tokens, 3)
        n_found += length > 5
        assert length == expected or not follow  # nothing follows the end of a text
        assert not follow or tuple(follow) in allowed
    assert n_found > 50


def test_no_match_extends_from_one_text_into_the_next() -> None:
    earlier = EarlierText([[1, 2, 3, 4], [5, 6, 7, 8], []], VOCAB)
    assert earlier.following([2, 3, 4], 3) == earlier.following([3, 4, 5], 3) == (0, [])
    assert earlier.following([5, 6, 7], 3) == (3, [8])
    assert (
        EarlierText([], VOCAB).following([1, 2, 3], 3)
        == EarlierText([[1, 2]], VOCAB).following([], 3)
        == (0, [])
    )


@pytest.mark.parametrize("vocab_size", [100, VOCAB, 1 << 40])
def test_ids_outside_the_vocabulary_are_never_proposed(vocab_size: int) -> None:
    earlier = EarlierText(
        [[-5, 1 << 41, 3, 4, 5], [1, 2, 3, 99, vocab_size], [4, 5, 6, vocab_size, 8]], vocab_size
    )
    assert earlier.following([1, 2, 3], 2) == (3, [99])
    assert earlier.following([-5, 1 << 41, 3], 2) == earlier.following([4, 5, 6], 2) == (0, [])


def test_among_equal_matches_the_newest_counts() -> None:
    words = list(range(10, 20))
    assert EarlierText([[*words, 1], [*words, 2], [3]], VOCAB).following(words, 1) == (DEPTH, [2])
