"""What some files of a family have that others lack, and how positions are told apart without rope."""

from pathlib import Path

import numpy as np
import pytest

from engine import Model
from engine.cache.kv_cache import memory_needs
from engine.cache.kv_types import KV_TYPES
from engine.errors import EngineError
from tests.engine import tiny_gguf
from tests.engine.architectures.rows import VARIANTS
from tests.engine.test_models import IDS, assert_equals_twin, nmse, twin_logits

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_some_files_of_a_family_have_equals_the_numpy_twin(variant: str, tmp_path: Path) -> None:
    assert_equals_twin(VARIANTS[variant].tiny(), VARIANTS[variant].logits, tmp_path)


def test_distances_count_across_chunks_and_in_narrow_caches(tmp_path: Path) -> None:
    ids = np.random.default_rng(1).integers(0, 200, 300).tolist()
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf", "bloom", dim=128, context_length=512), threads=2)
    wanted = twin_logits(model, ids)[-1]
    for kv, bound in (("f32", 1e-9), ("f16", 1e-6), ("q8_0", 1e-3)):
        session = model.session(n_ctx=320, kv=kv)
        session.feed(ids[:-1])
        assert nmse(session.feed(ids[-1:]), wanted) < bound
    model.close()


def test_a_context_ends_with_the_learned_positions(tmp_path: Path) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf", "gpt2", context_length=40))
    session = model.session(n_ctx=64, kv="f32")
    assert session.n_ctx == 40
    assert nmse(session.feed([*IDS, *IDS], every=True), twin_logits(model, [*IDS, *IDS])) < 1e-9
    with pytest.raises(EngineError, match="layers cannot forget"):
        session.shift(2, 4)
    model.close()


@pytest.mark.parametrize("name", ["plm", "minicpm3"])
def test_what_is_made_of_joint_matrices_counts_as_memory(name: str, tmp_path: Path) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf", name))
    made = model.session(n_ctx=64)._pipeline._buffers.turned_over.values()
    assert memory_needs(model.config, KV_TYPES["f16"]).fixed_bytes == sum(one.tensor.size_bytes for one in made) > 0
    model.close()
