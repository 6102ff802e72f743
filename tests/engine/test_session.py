"""Promises of a session: reuse of prefixes, limits, cancelling, errors that leave it as it was."""

import contextlib
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from engine import EngineError, Model, Sampling
from engine.errors import (
    BrokenModelError,
    Cancelled,
    ContextFullError,
    MemoryPlanError,
    ModelChangedError,
)
from engine.machine import host
from engine.sampling.logprobs import token_logprobs
from tests.engine import tiny_gguf

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tiny_gguf.write(
        tmp_path_factory.mktemp("model") / "tiny.gguf", "llama", "F32", context_length=2048
    )
    return Model.open(path, threads=2)


def test_prefill_computes_only_what_follows_the_common_prefix(model: Model) -> None:
    session = model.session(n_ctx=64)
    first = session.prefill([1, 2, 3, 4, 5, 6])
    again = session.prefill([1, 2, 3, 4, 9, 8, 7])
    assert (first.reused, first.fed) == (0, 6)
    assert (again.reused, again.fed) == (4, 3)
    assert session.tokens == [1, 2, 3, 4, 9, 8, 7]


def test_a_reused_prefix_gives_the_logits_of_a_fresh_run(model: Model) -> None:
    used = model.session(n_ctx=64)
    fresh = model.session(n_ctx=64)
    used.prefill([1, 2, 3, 4, 5, 6, 7, 8])
    used.prefill([1, 2, 3, 4, 9, 9, 9, 9, 9])
    fresh.prefill([1, 2, 3, 4, 9, 9, 9, 9, 9])
    assert (used.feed([11]) == fresh.feed([11])).all()


def test_prefill_of_what_is_there_already_still_has_logits(model: Model) -> None:
    session = model.session(n_ctx=64)
    session.prefill([1, 2, 3, 4])
    done = session.prefill([1, 2, 3, 4])
    assert (done.reused, done.fed) == (3, 1)
    assert len(list(session.generate(Sampling.greedy(), max_tokens=2))) == 2


@pytest.mark.parametrize("quant", ["F32", "F16", "Q4_0", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL"])
def test_a_prompt_sent_again_ends_with_the_same_bits(quant: str, tmp_path: Path) -> None:
    model = Model.open(
        tiny_gguf.model("llama", quant, context_length=256).write(tmp_path / "m.gguf"), threads=2
    )
    _ask_again(model, np.random.default_rng(1).integers(3, 200, 41).tolist())
    model.close()


@pytest.mark.parametrize(
    "architecture", ["gemma3", "qwen3moe", "lfm2", "qwen35", "falcon-h1", "deepseek2"]
)
def test_every_layer_gives_a_prompt_sent_again_the_same_bits(
    architecture: str, tmp_path: Path
) -> None:
    model = Model.open(
        tiny_gguf.model(architecture, context_length=256).write(tmp_path / "m.gguf"), threads=2
    )
    _ask_again(model, np.random.default_rng(1).integers(3, 200, 41).tolist())
    model.close()


def _ask_again(model: Model, prompt: list[int]) -> None:
    """Ask the same with all, nothing, and parts of the prompt cached, and after other prompts."""
    session = model.session(n_ctx=256)

    def ask(ids: list[int]) -> tuple[bytes, list[int]]:
        session.prefill(ids)
        assert session._logits is not None
        logits = session._logits.tobytes()
        return logits, [
            piece.token_id for piece in session.generate(Sampling.greedy(), max_tokens=6)
        ]

    expected = ask(prompt)
    assert ask(prompt) == expected
    for n_kept, ending in (
        (len(prompt) - 1, [7]),
        (len(prompt) - 3, [7, 8, 9]),
        (20, [5] * 9),
        (0, [6, 5, 4]),
    ):
        changed_prompt = [*prompt[:n_kept], *ending]
        answer = ask(changed_prompt)
        assert ask(prompt) == expected
        assert ask(changed_prompt) == answer
    for n in range(1, 5):  # what was cached ends just before the prompt's end
        session.truncate(0)
        ask(prompt[:-n])
        session.truncate(len(prompt) - n)
        assert ask(prompt) == expected


def test_truncate_keeps_the_shared_prefix(model: Model) -> None:
    session = model.session(n_ctx=64)
    session.feed([5, 6, 7, 8, 9])
    expected = session.feed([10])
    session.truncate(5)
    assert session.tokens == [5, 6, 7, 8, 9]
    assert (session.feed([10]) == expected).all()


def test_more_tokens_than_the_context_are_refused_with_counts(model: Model) -> None:
    session = model.session(n_ctx=16)
    session.feed([1] * 10)
    with pytest.raises(ContextFullError, match=r"17 tokens .* context of 16"):
        session.feed([1] * 7)
    assert session.length == 10


def test_a_reply_ends_where_the_context_does(model: Model) -> None:
    session = model.session(n_ctx=16)
    session.feed([1] * 10)
    pieces = list(session.generate(Sampling(seed=1)))
    assert session.finish_reason in ("context", "stop")
    assert session.length <= 16
    assert len(pieces) <= 8


def test_token_ids_out_of_range_are_refused_before_any_kernel(model: Model) -> None:
    session = model.session(n_ctx=16)
    for ids in ([-1], [model.config.vocab_size], []):
        with pytest.raises(EngineError):
            session.feed(ids)
    assert session.length == 0


def test_every_position_has_the_logits_of_a_step(model: Model) -> None:
    ids = [4, 8, 15, 16, 23, 42]
    every = model.session(n_ctx=32).feed(ids, all_logits=True)
    steps = model.session(n_ctx=32)
    assert every.shape == (6, model.config.vocab_size)
    assert np.allclose(every, [steps.feed([token]) for token in ids], atol=1e-4)


def test_same_seed_same_text(model: Model) -> None:
    session = model.session(n_ctx=64)
    texts = []
    for seed in (7, 7, 8):
        session.prefill([1, 2, 3])
        texts.append(
            [piece.token_id for piece in session.generate(Sampling(seed=seed, temperature=1.5), 20)]
        )
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


@pytest.mark.parametrize("guess", [False, True])
def test_logprobs_are_those_of_the_logits_before_each_token(model: Model, guess: bool) -> None:
    session, plain = model.session(n_ctx=64), model.session(n_ctx=64)
    session.prefill([1, 2, 3] * 4)
    logits = plain.feed([1, 2, 3] * 4)
    for piece in session.generate(
        Sampling(temperature=1.0, seed=3), max_tokens=12, guess=guess, n_logprobs=4
    ):
        if session.finish_reason:  # text that was held back, without a token of its own
            assert piece.logprobs is None
            break
        assert piece.logprobs is not None
        assert piece.logprobs == token_logprobs(logits, piece.token_id, 4)
        assert piece.logprobs.top[0][1] >= piece.logprobs.chosen
        logits = plain.feed([piece.token_id])
    assert plain.length == 24


def test_nothing_is_said_of_logprobs_that_no_one_asks_for(model: Model) -> None:
    session = model.session(n_ctx=64)
    session.prefill([1, 2, 3])
    assert {piece.logprobs for piece in session.generate(Sampling.greedy(), max_tokens=2)} == {None}


def test_cancel_ends_a_reply_and_keeps_what_there_is(model: Model) -> None:
    session = model.session(n_ctx=512)
    session.feed([1, 2, 3])
    got = []
    for piece in session.generate(Sampling(seed=1)):
        got.append(piece.token_id)
        if len(got) == 5:
            session.cancel()
    assert session.finish_reason in ("cancelled", "stop")
    assert session.tokens[:3] == [1, 2, 3]
    assert len(got) <= 6


def test_cancel_from_another_thread_ends_prefill_after_a_block(model: Model) -> None:
    session = model.session(n_ctx=2048)

    def after_a_block(done: int, total: int) -> None:
        canceller = threading.Thread(target=session.cancel)
        canceller.start()
        canceller.join()

    with pytest.raises(Cancelled):
        session.feed([1] * 2000, on_progress=after_a_block)
    assert 0 < session.length < 2000
    assert session.feed([2, 3]).shape == (model.config.vocab_size,)


def whole_reply(model: Model, ids: list[int], n_tokens: int) -> tuple[list[int], str]:
    session = model.session(n_ctx=256)
    session.prefill(ids)
    pieces = list(session.generate(Sampling.greedy(), n_tokens))
    session.close()
    # What is held back at the end comes with the id of the token before it.
    return [piece.token_id for piece in pieces][:n_tokens], "".join(piece.text for piece in pieces)


@pytest.mark.parametrize("stop_after", [1, 7, 39])
@pytest.mark.parametrize("vocabulary", ["spm", "bpe"])
def test_a_stopped_reply_goes_on_as_if_it_had_not_stopped(
    tmp_path: Path, vocabulary: str, stop_after: int
) -> None:
    path = tiny_gguf.model("llama", "Q8_0", vocabulary, context_length=256, seed=3).write(
        tmp_path / "m.gguf"
    )
    model = Model.open(path, threads=2)
    prompt = [5, 9, 20, 33, 47, 60, 71]
    wanted_ids, text_to_copy = whole_reply(model, prompt, 40)
    session = model.session(n_ctx=256)
    session.prefill(prompt)
    got: list[int] = []
    for piece in session.generate(Sampling.greedy(), 40):
        got.append(piece.token_id)
        if len(got) == stop_after:
            session.cancel()
    got = got[:stop_after]
    assert got == wanted_ids[:stop_after]
    # Something else is asked in between and taken back: the reply's tokens stay the start of the
    # cache.
    session.prefill([*prompt, *got, 3, 4, 5, 6, 7])
    done = session.prefill([*prompt, *got], n_replied=len(got))
    assert done.fed <= 1
    stream = model.tokenizer.stream()
    text = "".join(stream.push(token) for token in got)
    continuation = list(session.generate(Sampling.greedy(), 40 - len(got), after=got))
    assert (got + [piece.token_id for piece in continuation])[:40] == wanted_ids
    assert text + "".join(piece.text for piece in continuation) == text_to_copy
    model.close()


def test_a_stop_string_that_the_earlier_part_began_is_found(model: Model) -> None:
    session = model.session(n_ctx=256)
    session.prefill([1, 2, 3])
    pieces = list(session.generate(Sampling(seed=3), 30))
    ids = [piece.token_id for piece in pieces]
    texts = [piece.text for piece in pieces]
    cut = next(n for n in range(5, 30) if texts[n - 1] and texts[n])
    session.prefill([1, 2, 3, *ids[:cut]])
    sampling = Sampling.greedy()
    free = "".join(piece.text for piece in session.generate(sampling, 10, after=ids[:cut]))
    session.prefill([1, 2, 3, *ids[:cut]])
    stop = texts[cut - 1][-1] + free[0]
    assert (
        "".join(p.text for p in session.generate(sampling, 10, stop=[stop], after=ids[:cut])) == ""
    )
    assert session.finish_reason == "stop"
    session.prefill([1, 2, 3, *ids[:cut]])
    never = texts[cut - 1][-1] + "\0"  # what the earlier part ends with is there already
    assert (
        "".join(p.text for p in session.generate(sampling, 10, stop=[never], after=ids[:cut]))
        == free
    )


def test_a_stop_string_ends_the_reply_and_is_not_shown(model: Model) -> None:
    session = model.session(n_ctx=256)
    session.prefill([1, 2, 3])
    reply = "".join(piece.text for piece in session.generate(Sampling(seed=3), 40))
    stop = reply[6:9]
    session.prefill([1, 2, 3])
    text = "".join(piece.text for piece in session.generate(Sampling(seed=3), 40, stop=[stop]))
    assert text == reply[: reply.index(stop)]
    assert session.finish_reason == "stop"


def test_a_context_that_does_not_fit_is_refused_with_the_largest(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.machine.host.available_memory_bytes", lambda: (300 << 20) + 100_000)
    with pytest.raises(MemoryPlanError, match=r"the largest that fits is \d+"):
        model.session(n_ctx=100_000)


@pytest.mark.parametrize("n_ctx", [None, 100])
def test_no_room_for_the_program_itself_is_not_blamed_on_context(
    model: Model, n_ctx: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.machine.host.available_memory_bytes", lambda: 271_000_000)
    with pytest.raises(
        MemoryPlanError, match=r"needs about 315 MB next to the model, but only 271 MB"
    ) as refused:
        model.session(n_ctx=n_ctx)
    assert "context" not in str(refused.value)


def test_a_session_may_be_closed_twice(model: Model) -> None:
    session = model.session(n_ctx=16)
    session.close()
    session.close()


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="counts open files where Linux lists them"
)
def test_a_model_that_is_refused_once_it_is_open_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf.write(tmp_path / "tiny.gguf")
    monkeypatch.setattr("engine.machine.host.available_memory_bytes", lambda: 0)
    n_open_files = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(MemoryPlanError):
            Model.open(path, weights="huge")
    assert len(os.listdir("/proc/self/fd")) == n_open_files


def test_an_unknown_cache_type_is_refused_by_name(model: Model) -> None:
    with pytest.raises(MemoryPlanError, match="q9"):
        model.session(n_ctx=16, kv="q9")


def test_damaged_weights_give_one_clear_line_and_keep_the_length(tmp_path: Path) -> None:
    tiny = tiny_gguf.model("llama", "F32")
    tiny.fill("blk.1.ffn_up.weight", float("nan"))
    model = Model.open(tiny.write(tmp_path / "nan.gguf"), threads=1)
    session = model.session(n_ctx=32)
    with pytest.raises(BrokenModelError, match="nan"):
        session.feed([1, 2, 3, 4, 5])
    assert session.length == 0
    model.close()


SCALES = {
    "F32": (4, 0),
    "F16": (2, 0),
    "Q8_0": (34, 0),
    "Q4_0": (18, 0),
    "Q4_K": (144, 0),
    "Q6_K": (210, 208),
}
"""Bytes of a block, and where its scale begins."""


@pytest.mark.parametrize(
    ("quant", "kv", "bad"),
    [
        *((quant, "f16", "nan") for quant in SCALES),
        ("Q8_0", "f16", "inf"),
        ("F32", "f32", "nan"),
        ("F32", "q8_0", "nan"),
    ],
)
def test_no_damaged_scale_is_answered_from(quant: str, kv: str, bad: str, tmp_path: Path) -> None:
    """Damage one block of any matrix: NaN passes through quantised activations, attention and cache
    up to the logits."""
    n_bytes, offset = SCALES[quant]
    value = struct.pack("<f" if quant == "F32" else "<e", float(bad))
    shape = {"head_dim": 128} if quant.endswith("K") else {"dim": 64, "head_dim": 32}
    names = [
        "output.weight",
        *(f"blk.0.attn_{projection}.weight" for projection in ("q", "k", "v", "output")),
    ]
    runs = []
    tiny = tiny_gguf.model("llama", quant, n_heads=2, n_kv_heads=1, **shape)
    names += [f"blk.0.ffn_{projection}.weight" for projection in ("gate", "up", "down")]
    for name in (
        names
        if quant in ("F32", "Q8_0")
        else ("output.weight", "blk.0.attn_k.weight", "blk.0.ffn_down.weight")
    ):
        sound = tiny.tensor(name).data
        data = bytearray(sound)
        block = 5 * len(data) // n_bytes // tiny.tensor(name).dims[1]  # the first of the sixth row
        data[block * n_bytes + offset : block * n_bytes + offset + len(value)] = value
        tiny.tensor(name).data = bytes(data)
        model = Model.open(tiny.write(tmp_path / "broken.gguf"), threads=1)
        tiny.tensor(name).data = sound
        session = model.session(n_ctx=64, kv=kv)
        for prompt in ([5], list(range(5, 17))):
            session.truncate(0)
            with contextlib.suppress(BrokenModelError):
                session.feed(prompt)
                session.feed([7])
                runs.append((name, len(prompt)))
        model.close()
    assert not runs


def test_a_file_changed_under_the_map_is_not_read_any_more(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf")
    model = Model.open(path, threads=1)
    session = model.session(n_ctx=32)
    session.feed([1, 2])
    with path.open("r+b") as file:
        file.seek(0, 2)
        file.write(b"more")
    with pytest.raises(ModelChangedError, match="changed"):
        session.feed([3])
    assert session.tokens == [1, 2]
    model.close()


AFTER_A_CUT = """
import os, shutil, sys
from pathlib import Path
from engine import Model
from engine.errors import ModelChangedError

for asked in sys.argv[2:]:
    path = shutil.copy(sys.argv[1], Path(sys.argv[1]).with_name("m.gguf"))
    model = Model.open(path, threads=1)
    session = model.session(n_ctx=64)
    session.feed(list(range(40)))
    os.truncate(path, 0)
    try:
        eval(asked)
        print(asked, flush=True)
    except ModelChangedError as error:
        print(asked, str(error).startswith("m.gguf: the file was changed"), flush=True)
    os.unlink(path)
"""


def test_nothing_reads_a_map_whose_file_was_cut_short(tmp_path: Path) -> None:
    """Run in a process of its own: reading missing pages ends it by a signal."""
    path = tiny_gguf.write(tmp_path / "sound.gguf", rope_factors=True)
    read = ["session.shift(2, 8)", "session.rotations"]
    refused = ["model.session(n_ctx=32)", "model.describe_plan()", "model.use_weights('huge')"]
    command = [sys.executable, "-c", AFTER_A_CUT, str(path), *read, *refused]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [*read, *(f"{operation} True" for operation in refused)], (
        done.stderr
    )


def test_weights_do_not_move_back_to_the_map_of_a_changed_file(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf")
    model = Model.open(path, threads=1, weights="huge")
    os.utime(path, (1, 1))
    model.use_weights("huge")  # nothing moves
    with pytest.raises(ModelChangedError):
        model.use_weights("mmap")
    assert model.weights_mode == "huge"
    model.close()


def test_a_renamed_or_deleted_file_does_no_harm(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf")
    model = Model.open(path, threads=1)
    session = model.session(n_ctx=32)
    path.rename(tmp_path / "other.gguf")
    (tmp_path / "other.gguf").unlink()
    assert session.feed([1, 2, 3]).shape == (model.config.vocab_size,)
    model.close()


def test_kernels_that_cannot_be_kept_are_noted_after_a_session(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine import jit

    model.session(n_ctx=16)
    monkeypatch.setattr(jit, "CACHE_DIRECTORY", Path("somewhere"))
    assert [line for line in model.notices if "compiled at every start" in line] == []
    monkeypatch.setattr(jit, "CACHE_DIRECTORY", None)
    assert len([line for line in model.notices if "compiled at every start" in line]) == 1


def test_no_more_threads_run_than_a_session_has_room_for(tmp_path: Path) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf"), threads=1)
    session = model.session(n_ctx=32)
    expected = session.feed([1, 2, 3, 4, 5])
    thread_counts: list[int] = []
    run = model.crew.run
    model.crew.run = lambda table, n_threads, times=0: (
        thread_counts.append(n_threads) or run(table, n_threads, times)
    )
    model.set_threads(100)
    session.truncate(0)
    assert (session.feed([1, 2, 3, 4, 5]) == expected).all()
    assert max(thread_counts) <= max(1, host.cores().most_threads)
    model.close()


@pytest.mark.smoke
@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
def test_a_few_tokens_at_once_are_single_steps_to_the_bit(tmp_path: Path, quant: str) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "tiny.gguf", "llama", quant), threads=2)
    together = model.session(n_ctx=64)
    alone = model.session(n_ctx=64)
    ids = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    for first, last in ((0, 2), (2, 5), (5, 9)):
        logits = together.feed(ids[first:last], all_logits=True)
        expected = np.stack([alone.feed([token]) for token in ids[first:last]])
        assert logits.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("quant", "tied"), [("F32", False), ("Q8_0", False), ("Q4_K", True)])
@pytest.mark.parametrize("n", [2, 8])
def test_proposed_tokens_are_verified_in_one_walk_to_the_bit(
    tmp_path: Path, quant: str, tied: bool, n: int
) -> None:
    model = Model.open(
        tiny_gguf.write(tmp_path / "tiny.gguf", "llama", quant, tied=tied), threads=2
    )
    together = model.session(n_ctx=64)
    alone = model.session(n_ctx=64)
    for session in (together, alone):
        session.feed([3, 1, 4, 1, 5, 9])
    proposed = [2, 6, 5, 3, 5, 8, 9, 7][:n]
    logits = together.verify(proposed)
    expected = np.stack([alone.feed([token]) for token in proposed])
    assert logits.tobytes() == expected.tobytes()
    assert together.tokens == alone.tokens
    assert together.truncate(6 + n // 2) == 6 + n // 2  # the rest was proposed wrongly
    alone.truncate(6 + n // 2)
    assert together.feed([11]).tobytes() == alone.feed([11]).tobytes()
    head = "token_embd.weight" if tied else "output.weight"
    read = [
        row for row in together.pipeline.plans["verify"].describe() if row.get("weights") == head
    ]
    assert [row["op"].split()[0] for row in read if row["op"] != f"embed {row['type']}"] == [
        "small_batch"
    ]
    model.close()


def test_no_more_is_verified_than_a_walk_holds(model: Model) -> None:
    session = model.session(n_ctx=64)
    with pytest.raises(EngineError, match="at most 8"):
        session.verify([1] * 9)
    assert session.length == 0


def test_what_is_fed_while_forgetting_leaves_no_trace(model: Model) -> None:
    used = model.session(n_ctx=64)
    fresh = model.session(n_ctx=64)
    for session in (used, fresh):
        session.feed([1, 2, 3, 4, 5])
    with used.restoring():
        used.feed([9] * 20)
        used.feed([7])
    assert used.tokens == fresh.tokens
    texts = [[piece.token_id for piece in s.generate(Sampling.greedy(), 10)] for s in (used, fresh)]
    assert texts[0] == texts[1]
    used.close()
    fresh.close()


def test_tokens_fed_after_a_cut_while_forgetting_are_forgotten(model: Model) -> None:
    session = model.session(n_ctx=64)
    session.feed([1, 2, 3, 4, 5])
    with session.restoring():
        session.prefill([1, 2, 9, 9, 9, 9, 9])
    assert session.tokens == [1, 2]
    with pytest.raises(EngineError, match="nothing to continue"):
        next(session.generate(Sampling.greedy()))
    session.close()


def test_control_tokens_have_text_where_it_is_asked_for(tmp_path: Path) -> None:
    path = tiny_gguf.model("llama", "Q8_0", "bpe", context_length=256, seed=3).write(
        tmp_path / "m.gguf"
    )
    model = Model.open(path, threads=2)
    session = model.session(n_ctx=64)
    session.prefill([5, 9, 20])
    first, *_ = whole_reply(model, [5, 9, 20], 8)[0]
    [piece] = session.generate(Sampling.greedy(), 1, visible_control_ids={first})
    assert (piece.token_id, piece.text) == (first, model.tokenizer.token_text(first))
    model.close()
