"""Rows of pictures in a text model: twins, positions, prefixes, saved states and shifts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine import EngineError, Model, Sampling
from engine.config import BOTH_WAYS, BOTH_WAYS_IN_WINDOWS, CAUSAL
from engine.errors import Cancelled
from engine.loader import validate
from engine.prompt.chat_prompt import picture_name
from engine.saved_state import StateWriter, restore_state
from engine.session import Session
from engine.vision.known import ids_of_parts
from engine.vision.rows import PicturePart, PictureRows, PreparedPicture, RowGrid
from tests.engine import families, reference, tiny_gguf
from tests.engine.architectures import load, test_gemma4
from tests.engine.reference import Array, Twin
from tests.engine.vision import tiny_mmproj

pytestmark = pytest.mark.slow

SECTIONS = {"rope.dimension_sections": np.array([2, 1, 1, 0], "<i4")}
FAMILIES: dict[str, tuple[Callable[[], tiny_gguf.TinyGGUF], str]] = {
    "qwen35": (lambda: families.keyed(_tiny("qwen35"), **SECTIONS), CAUSAL),
    "qwen3": (lambda: _tiny("qwen3"), CAUSAL),
    "qwen3vl": (lambda: families.keyed(_tiny("qwen3vl"), n_deepstack_layers=2), CAUSAL),
    "lfm2": (lambda: _tiny("lfm2"), CAUSAL),
    "gemma3": (lambda: _tiny("gemma3"), BOTH_WAYS),
    "gemma4": (lambda: _gemma4(per_layer=False), BOTH_WAYS_IN_WINDOWS),
    "gemma4 with inputs of layers": (lambda: _gemma4(per_layer=True), CAUSAL),
}


def _tiny(name: str, **arguments: Any) -> tiny_gguf.TinyGGUF:
    return load(name).tiny(context_length=512, **arguments)


def _gemma4(per_layer: bool) -> tiny_gguf.TinyGGUF:
    described = test_gemma4.tiny(n_layers=4, context_length=512)
    if not per_layer:
        described.set("gemma4.embedding_length_per_layer_input", 0)
        for number in range(4):
            names = [f"blk.{number}.{name}.weight" for name in ("inp_gate", "proj", "post_norm")]
            described.drop_tensors(*names)
        described.drop_tensors(
            "per_layer_token_embd.weight",
            "per_layer_model_proj.weight",
            "per_layer_proj_norm.weight",
        )
    return described


def picture(
    model: Model, name: str, grid: tuple[int, int] = (3, 5), visibility: str = CAUSAL
) -> PictureRows:
    """Return a picture of random rows, which the model knows."""
    config = model.config
    has_positions = bool(config.ropes[0].sections)
    part = PicturePart("", np.zeros((8, 8, 3), np.uint8), RowGrid(*grid))
    digest = hashlib.sha256(name.encode()).hexdigest()
    prepared = PreparedPicture(8, 8, (part,), "", digest, visibility, has_positions)
    rng = np.random.default_rng(int(digest[:8], 16))
    width = config.dim * (1 + config.n_deepstack)
    rows = rng.standard_normal((part.grid.n, width)).astype(np.float32)
    read = PictureRows(prepared, (rows,), config.n_deepstack)
    model.pictures.add_rows(read)
    return read


def ids_of(read: PictureRows) -> list[int]:
    return ids_of_parts(read.picture)[0]


class PictureTwin(Twin):
    """Twin of a text model that reads rows of pictures in place of embeddings.

    Attributes:
        rows: rows of all pictures by their index in the prompt.
        positions: time, row and column of each token.
        sees: whether a query sees a later key because both are rows of one picture.
    """

    def place(self, prompt: list[int | PictureRows]) -> list[int]:
        """Read a prompt; returns the ids of tokens, with 0 for rows."""
        ids: list[int] = []
        self.rows: dict[int, Array] = {}
        self.positions: list[tuple[int, int, int]] = []
        owners: list[int] = []
        position = 0
        for number, item in enumerate(prompt):
            if isinstance(item, int):
                ids.append(item)
                self.positions.append((position,) * 3)
                owners.append(-1)
                position += 1
                continue
            grid = item.picture.parts[0].grid
            for index, row in enumerate(item.rows[0]):
                self.rows[len(ids)] = row.astype(np.float64)
                ids.append(0)
                owners.append(number)
                y, x = divmod(index, grid.n_columns)
                if item.picture.has_grid_positions:
                    self.positions.append((position, position + y, position + x))
                else:
                    self.positions.append((position + index,) * 3)
            if item.picture.has_grid_positions:
                position += max(grid.n_rows, grid.n_columns)
            else:
                position += grid.n
        owner = np.array(owners)
        self.sees = (owner[:, None] == owner) & (owner >= 0)
        return ids

    def embed(self, ids: list[int]) -> Array:
        x = super().embed(ids)
        scale = 1.0
        if self.metadata["general.architecture"].startswith("gemma"):
            scale = np.sqrt(self.key("embedding_length"))
        for index, row in self.rows.items():
            x[index] = row[: x.shape[1]] / scale
        return x

    def turn(self, frequencies: Array, neighbours: bool, magnitude: float) -> reference.Turn:
        """Stand in for ``reference._turn``: rotate by the positions of the prompt."""
        positions = np.array(self.positions)
        sections = self.key("rope.dimension_sections")
        axis = np.zeros(len(frequencies), int)
        if sections is not None:
            for pair in range(len(frequencies)):
                if pair < 3 * sections[pair % 3]:
                    axis[pair] = pair % 3

        def turn(heads: Array) -> Array:
            turned = heads.copy()
            for pair, frequency in enumerate(frequencies):
                a, b = (2 * pair, 2 * pair + 1) if neighbours else (pair, pair + len(frequencies))
                angle = positions[: len(heads), axis[pair], None] * frequency
                x, y = heads[..., a], heads[..., b]
                turned[..., a] = magnitude * (x * np.cos(angle) - y * np.sin(angle))
                turned[..., b] = magnitude * (x * np.sin(angle) + y * np.cos(angle))
            return turned

        return turn

    def attend(self, visibility: str) -> Callable[..., Array]:
        """Stand in for ``reference.causal_attention``: rows see later rows of their picture."""

        def attention(
            q: Array,
            k: Array,
            v: Array,
            window: int | None = None,
            soft_cap: float | None = None,
            sinks: Array | None = None,
            alibi: float = 0.0,
            n_after: int = 0,
        ) -> Array:
            n, n_heads, _ = q.shape
            group = n_heads // k.shape[1]
            scores = np.einsum("qhd,khd->hqk", q, np.repeat(k, group, axis=1))
            if soft_cap:
                scores = soft_cap * np.tanh(scores / soft_cap)
            distance = np.arange(n)[:, None] - np.arange(n)
            sees = (distance >= 0) & (distance < (window or n))
            if visibility == BOTH_WAYS or (visibility == BOTH_WAYS_IN_WINDOWS and window):
                sees |= self.sees & (distance < 0)
            weights = reference.softmax(np.where(sees, scores, -np.inf))
            return np.einsum("hqk,khd->qhd", weights, np.repeat(v, group, axis=1))

        return attention


def twin_logits(
    path: Path,
    architecture: str,
    prompt: list[int | PictureRows],
    visibility: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Array:
    """Return the twin's logits of all tokens of a prompt."""
    twin = PictureTwin(validate(path))
    ids = twin.place(prompt)
    monkeypatch.setattr(reference, "_turn", twin.turn)
    for module in (reference, test_gemma4):
        monkeypatch.setattr(module, "causal_attention", twin.attend(visibility))
    if twin.key("n_deepstack_layers", 0):
        return _with_deepstack(twin, ids)
    return load(architecture).logits(twin, ids)


def _with_deepstack(twin: PictureTwin, ids: list[int]) -> Array:
    x = twin.embed(ids)
    dim = x.shape[1]
    turn = twin.turner(neighbours=False)
    for number, block in enumerate(twin.blocks):
        h = twin.norm(x, block + "attn_norm")
        x = x + twin.attention(block, h, turn, has_head_norms=True)
        x = x + twin.feed_forward(block, twin.norm(x, block + "ffn_norm"))
        if number < 2:
            for index, row in twin.rows.items():
                x[index] += row[(number + 1) * dim : (number + 2) * dim]
    return twin.unembed(twin.norm(x, "output_norm"))


def nmse(computed: Array, expected: Array) -> float:
    return float(((computed - expected) ** 2).sum() / (expected**2).sum())


def flat(prompt: list[int | PictureRows]) -> list[int]:
    """Return the ids of a prompt with pictures."""
    ids: list[int] = []
    for item in prompt:
        ids += [item] if isinstance(item, int) else ids_of(item)
    return ids


@pytest.fixture
def qwen3vl(tmp_path: Path) -> Model:
    return Model.open(FAMILIES["qwen3vl"][0]().write(tmp_path / "m.gguf"), threads=2)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_after_pictures_are_the_twins(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, visibility = FAMILIES[family]
    path = build().write(tmp_path / "m.gguf")
    model = Model.open(path, threads=2)
    first = picture(model, "first", (3, 5), visibility)
    second = picture(model, "second", (6, 4), visibility)
    turns: list[list[int | PictureRows]] = [
        [4, 5, 6, 7, 8, first, 9, 10, 11],
        [12, 13, second, 14, first, 15, 16],
        [17, 18, 19],
    ]
    whole = [item for turn in turns for item in turn]
    expected = twin_logits(path, family.split()[0], whole, visibility, monkeypatch)

    session = model.session(n_ctx=256, kv="f32")
    for n in range(1, 4):
        ids = flat([item for turn in turns[:n] for item in turn])
        result = session.prefill(ids)
        assert n == 1 or result.reused > 0
        assert nmse(session.next_logits, expected[len(ids) - 1]) < 1e-9
    session.truncate(0)
    session.prefill(flat(whole)[:-2])  # decode after the pictures, too
    for token, row in ((18, expected[-2]), (19, expected[-1])):
        assert nmse(session.feed([token]), row) < 1e-9
    model.close()


@pytest.mark.parametrize("family", ["gemma3", "gemma4"])
def test_rows_that_see_each_other_change_the_logits(family: str, tmp_path: Path) -> None:
    build, visibility = FAMILIES[family]
    model = Model.open(build().write(tmp_path / "m.gguf"), threads=2)
    logits = []
    for shown in (CAUSAL, visibility):
        session = model.session(n_ctx=256, kv="f32")
        session.prefill(flat([4, 5, picture(model, "cat", (4, 4), shown), 9]))
        logits.append(session.next_logits)
        session.close()
    assert nmse(logits[0], logits[1]) > 1e-4
    model.close()


@pytest.mark.parametrize("family", ["qwen35", "qwen3vl", "lfm2"])
def test_a_long_picture_in_several_blocks_equals_the_twin(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, visibility = FAMILIES[family]
    path = build().write(tmp_path / "m.gguf")
    model = Model.open(path, threads=2)
    prompt: list[int | PictureRows] = [4, 5, picture(model, "wide", (9, 16)), 9, 10]
    expected = twin_logits(path, family, prompt, visibility, monkeypatch)
    session = model.session(n_ctx=256, kv="f32")
    monkeypatch.setattr(session.pipeline, "block_size_at", lambda pos: 40)
    steps: list[tuple[int, int]] = []
    session.prefill(flat(prompt), on_progress=lambda done, total: steps.append((done, total)))
    assert len(steps) >= 6
    assert nmse(session.next_logits, expected[-1]) < 1e-9
    model.close()


def test_a_prompt_sent_again_has_the_same_bits_and_no_rows(qwen3vl: Model) -> None:
    session = qwen3vl.session(n_ctx=128)
    ids = flat([4, 5, picture(qwen3vl, "cat"), 6, 7])
    session.prefill(ids)
    logits = session.next_logits
    result = session.prefill(ids)
    assert (result.reused, result.fed) == (len(ids) - 1, 1)
    assert (session.next_logits == logits).all()
    assert session.reusable([*ids, 8]) == len(ids)


def test_another_picture_of_the_same_size_is_no_shared_prefix(qwen3vl: Model) -> None:
    session = qwen3vl.session(n_ctx=128)
    cat = picture(qwen3vl, "cat")
    dog = picture(qwen3vl, "dog")
    session.prefill(flat([4, 5, cat, 6, 7]))
    assert session.reusable(flat([4, 5, dog, 6, 7])) == 2
    session.prefill(flat([4, 5, dog, 6, 7]))
    fresh = qwen3vl.session(n_ctx=128)
    fresh.prefill(flat([4, 5, dog, 6, 7]))
    assert (session.next_logits == fresh.next_logits).all()


def test_a_picture_that_was_cut_is_computed_as_a_whole(qwen3vl: Model) -> None:
    session = qwen3vl.session(n_ctx=128)
    ids = flat([4, 5, picture(qwen3vl, "cat"), 6, 7])
    session.prefill(ids)
    logits = session.next_logits
    session.truncate(9)
    assert session.reusable(ids) == 2
    assert session.prefill(ids).reused == 2
    assert (session.next_logits == logits).all()


def _stand_in(encode: Callable[..., PictureRows]) -> Any:
    """Return an encoder that only encodes."""
    return SimpleNamespace(encode=encode, close=lambda: None, needed_bytes=0, used_bytes=0)


def test_rows_come_from_the_encoder_once(qwen3vl: Model) -> None:
    read = picture(qwen3vl, "cat")
    qwen3vl.pictures._rows.clear()
    calls = []

    def encode(prepared: PreparedPicture, progress: object) -> PictureRows:
        calls.append(prepared)
        return read

    qwen3vl.pictures.encoder = _stand_in(encode)
    for _ in range(2):
        session = qwen3vl.session(n_ctx=128)
        session.prefill(flat([4, 5, read, 6]))
        session.prefill(flat([4, 5, read, 6, 7, 8]))
    assert calls == [read.picture]


def test_another_question_reads_no_picture_again(tmp_path: Path) -> None:
    model = Model.open(FAMILIES["qwen35"][0]().write(tmp_path / "m.gguf"), threads=2)
    cat = picture(model, "cat", (8, 9))
    session = model.session(n_ctx=256)
    session.prefill(flat([4, 5, cat, 6, 7, 8]))
    other = flat([4, 5, cat, 9, 10, 11])
    assert session.prefill(other).reused == 2 + 72
    fresh = model.session(n_ctx=256)
    fresh.prefill(other)
    assert (session.next_logits == fresh.next_logits).all()
    model.close()


def _seeing_model(folder: Path) -> Model:
    """Return a tiny model with its encoder."""
    described = families.keyed(
        tiny_gguf.model("qwen35", dim=tiny_mmproj.TEXT_WIDTH, head_dim=16, context_length=512),
        **SECTIONS,
    )
    path = described.write(folder / "m.gguf")
    tiny_mmproj.qwen3vl().write(folder / "mmproj-m.gguf")
    return Model.open(path, threads=2, mmproj="auto")


def test_a_model_reads_pictures_with_its_encoder(tmp_path: Path) -> None:
    model = _seeing_model(tmp_path)
    encoder = model.pictures.encoder
    assert encoder is not None
    prepared = encoder.prepare(tiny_mmproj.picture(100, 70))
    chat = model.chat()
    name = picture_name(prepared.digest)
    chat.pictures[name] = model.pictures.prompt_ids(prepared)
    ids = chat.add_user(f"{name}what is it?")
    session = model.session(n_ctx=256)
    session.prefill(ids)
    span = session.cached.pictures[0]
    assert (span.n_rows, span.n_columns) == (prepared.parts[0].grid.n_rows, span.n_columns)
    assert span.has_grid_positions
    path = model.path
    model.close()
    assert Model.open(path, threads=2).pictures.encoder is None


def test_progress_of_a_picture_and_stopping_in_it(tmp_path: Path) -> None:
    model = _seeing_model(tmp_path)
    pictures = model.pictures
    assert pictures.encoder is not None
    prepared = pictures.encoder.prepare(tiny_mmproj.picture(100, 70))
    ids = [4, 5, *(token for token in pictures.prompt_ids(prepared) if token < 0), 6]
    shares: list[float] = []

    def stop_in_the_middle(picture: PreparedPicture, share: float) -> None:
        assert picture is prepared
        shares.append(share)
        if 0 < share < 1:
            raise Cancelled("stopped")

    session = model.session(n_ctx=256)
    pictures.on_progress = stop_in_the_middle
    with pytest.raises(Cancelled):
        session.prefill(ids)
    assert session.tokens == [4, 5]
    *opening, stopped_at = shares  # its weights are prepared before the first layer
    assert set(opening) == {0.0}
    assert 0 < stopped_at < 1
    shares.clear()
    pictures.on_progress = lambda picture, share: shares.append(share)
    session.prefill(ids)
    assert (shares[0], shares[-1]) == (0, 1)
    assert shares == sorted(shares)
    n_shares = len(shares)
    session.prefill([*ids, 7])
    assert len(shares) == n_shares  # its rows are in the cache
    model.close()


def test_memory_of_an_encoder_is_counted_until_it_is_used(tmp_path: Path) -> None:
    model = _seeing_model(tmp_path)
    encoder = model.pictures.encoder
    assert encoder is not None
    session = model.session(n_ctx=256)
    assert model.pictures.unused_bytes == encoder.needed_bytes > 0
    assert model.unwritten_bytes == session.unwritten_bytes + encoder.needed_bytes
    encoder.encode(encoder.prepare(tiny_mmproj.picture(1500, 1500)))
    assert model.pictures.unused_bytes == max(0, encoder.needed_bytes - encoder.used_bytes)
    model.close()
    assert encoder.used_bytes == 0


def test_models_with_large_parts_have_larger_blocks(tmp_path: Path) -> None:
    path = _tiny("gemma3", dim=tiny_mmproj.TEXT_WIDTH, head_dim=16).write(tmp_path / "m.gguf")
    tiny_mmproj.gemma3().write(tmp_path / "mmproj-m.gguf")
    blind = Model.open(path, threads=2)
    seeing = Model.open(path, threads=2, mmproj=tmp_path / "mmproj-m.gguf")
    sizes = [model.session(n_ctx=1024).pipeline.max_block_tokens for model in (blind, seeing)]
    assert sizes == [256, 512]
    with pytest.raises(EngineError, match="is a model and no encoder"):
        Model.open(path, threads=2, mmproj=path)
    blind.close()
    seeing.close()


def test_a_stopped_encoder_leaves_what_came_before(qwen3vl: Model) -> None:
    read = picture(qwen3vl, "cat")
    qwen3vl.pictures._rows.clear()

    def stop(prepared: PreparedPicture, progress: object) -> PictureRows:
        raise Cancelled("stopped")

    qwen3vl.pictures.encoder = _stand_in(stop)
    session = qwen3vl.session(n_ctx=128)
    with pytest.raises(Cancelled):
        session.prefill(flat([4, 5, read, 6]))
    assert session.tokens == [4, 5]
    qwen3vl.pictures.add_rows(read)
    assert session.prefill(flat([4, 5, read, 6])).reused == 2


def test_saved_states_hold_pictures(qwen3vl: Model, tmp_path: Path) -> None:
    session = qwen3vl.session(n_ctx=256)
    ids = flat([4, 5, picture(qwen3vl, "cat", (9, 10)), 6, 7, 8])
    session.prefill(ids)
    writer = StateWriter(session, tmp_path / "states")
    writer.notify()
    assert writer.flush(60)
    writer.close()

    qwen3vl.pictures._rows.clear()  # nothing is read again
    restored = qwen3vl.session(n_ctx=256)
    assert restore_state(restored, tmp_path / "states", ids).tokens == len(ids)
    assert restored.cached.position_offset == 10 - 90
    restored.prefill([*ids, 9])
    session.prefill([*ids, 9])
    assert (restored.next_logits == session.next_logits).all()

    other = qwen3vl.session(n_ctx=256)
    dog = flat([4, 5, picture(qwen3vl, "dog", (9, 10)), 6, 7, 8])
    assert restore_state(other, tmp_path / "states", dog).tokens == 2


def test_a_shift_drops_a_picture_as_a_whole(tmp_path: Path) -> None:
    # keys and values of one layer do not depend on earlier tokens: a shift is exact
    path = families.keyed(_tiny("qwen3vl", n_layers=1), n_deepstack_layers=0)
    model = Model.open(path.write(tmp_path / "m.gguf"), threads=2)
    session = model.session(n_ctx=128, kv="f32")
    cat = picture(model, "cat", (4, 6))
    dog = picture(model, "dog", (2, 7))
    rest: list[int | PictureRows] = [8, dog, *range(20, 40)]
    session.prefill(flat([4, 5, 6, cat, 7, *rest]))
    with pytest.raises(EngineError, match="as a whole"):
        session.shift(3, 5)
    shorter = flat([4, 5, 6, *rest, 50])
    assert session.shift_towards(shorter) == 25
    assert session.prefill(shorter).fed == 1
    fresh = model.session(n_ctx=128, kv="f32")
    fresh.prefill(shorter)
    assert nmse(session.next_logits, fresh.next_logits) < 1e-9
    model.close()


def test_peers_copy_pictures_and_write_after_them(qwen3vl: Model) -> None:
    ids = flat([4, 5, picture(qwen3vl, "cat", (6, 8)), *range(20, 40)])
    alone = qwen3vl.session(n_ctx=128)
    alone.prefill(ids)
    reply = [token.token_id for token in alone.generate(Sampling.greedy(), max_tokens=6)]
    first = qwen3vl.session(n_ctx=128)
    peer = qwen3vl.session(peer=first)
    assert first.batch is not None
    for session in (first, peer):
        session.prefill(ids)
    assert first.batch.n_copied >= len(ids) - 9
    for session in (first, peer):
        tokens = session.generate(Sampling.greedy(), max_tokens=6)
        assert [token.token_id for token in tokens] == reply


def _greedy(session: Session, **arguments: Any) -> list[int]:
    sampling = arguments.pop("sampling", Sampling(temperature=0.0, ignore_eos=True))
    return [t.token_id for t in session.generate(sampling, max_tokens=24, **arguments)]


@pytest.mark.parametrize("family", ["qwen3vl", "qwen35"])
def test_guesses_change_no_reply_after_a_picture(family: str, tmp_path: Path) -> None:
    model = Model.open(FAMILIES[family][0]().write(tmp_path / "m.gguf"), threads=2)
    cat = picture(model, "cat")
    ids = flat([4, 5, cat, 4, 5, cat, 4, 5])
    replies = []
    for guess in (False, True):
        session = model.session(n_ctx=128)
        session.prefill(ids)
        replies.append(_greedy(session, guess=guess))
        assert min(replies[-1]) >= 0
        session.close()
    assert replies[0] == replies[1]
    model.close()


def test_penalties_see_text_alone(qwen3vl: Model) -> None:
    sampling = Sampling(
        temperature=0.0, repeat_penalty=1.3, frequency_penalty=0.2, dry_multiplier=0.8
    )
    session = qwen3vl.session(n_ctx=128)
    cat = picture(qwen3vl, "cat")
    session.prefill(flat([4, 5, cat, 6, cat, 6, 7]))
    assert min(_greedy(session, sampling=sampling)) >= 0


def test_what_is_wrong_with_a_picture_is_said(qwen3vl: Model) -> None:
    session = qwen3vl.session(n_ctx=128)
    cat = picture(qwen3vl, "cat")
    ids = ids_of(cat)
    with pytest.raises(EngineError, match="not complete"):
        session.prefill([4, 5, *ids[:7], 6])
    with pytest.raises(EngineError, match="token ids must be"):
        session.verify([4, ids[0]])
    rows = np.zeros((15, 8), np.float32)
    narrow = PictureRows(cat.picture, (rows,), 0)
    qwen3vl.pictures.add_rows(narrow)
    with pytest.raises(EngineError, match="belongs to another model"):
        session.prefill([4, 5, *ids, 6])
    rows = np.full_like(cat.rows[0], np.nan)
    qwen3vl.pictures.add_rows(PictureRows(cat.picture, (rows,), 2))
    with pytest.raises(EngineError, match="NaN"):
        session.prefill([4, 5, *ids, 6])
    qwen3vl.pictures._rows.clear()
    with pytest.raises(EngineError, match="no encoder"):
        session.prefill([4, 5, *ids, 6])
    del cat, narrow
    with pytest.raises(EngineError, match="no longer there"):
        session.prefill([4, 5, *ids, 6])
    assert session.tokens == [4, 5]
