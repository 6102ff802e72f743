"""Adapters: the same logits as the model that has them merged in, and refusals of files that are none for it."""

from pathlib import Path

import numpy as np
import pytest

from engine import Model
from engine.adapters import _PER_HEAD
from engine.models import ARCHITECTURES, expected_tensors
from tests.engine import tiny_adapters, tiny_gguf

IDS = [3, 17, 5, 90, 4, 4, 61, 33, 20, 8, 77, 12, 9, 150, 101, 2, 44]


def matrices(model: Model, tiny: tiny_gguf.TinyGGUF) -> list[str]:
    """Names of what an adapter may change."""
    names = {str(one.name) for one in tiny.tensors}
    specs = expected_tensors(model.config).items()
    return [name for name, spec in specs if name in names and not spec.is_plain and not name.endswith(_PER_HEAD)]


def nmse(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(((found - wanted) ** 2).mean() / wanted.var())


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_adapter_on_all_matrices_equals_the_merged_model(architecture: str, tmp_path: Path) -> None:
    tiny = tiny_gguf.model(architecture)
    model = Model.open(tiny.write(tmp_path / "m.gguf"), threads=2)
    session = model.session(n_ctx=64, kv="f32")
    before = session.feed(IDS, every=True)
    found = tiny_adapters.adapter(tiny, matrices(model, tiny))
    model.use_adapters([(found.write(tmp_path / "a.gguf"), 0.7)])
    assert session.tokens == []
    other = Model.open(tiny_adapters.merged(tiny, found, 0.7).write(tmp_path / "merged.gguf"), threads=2)
    twin = other.session(n_ctx=64, kv="f32")
    wanted = twin.feed(IDS, every=True)
    assert nmse(before, wanted) > 0.01
    assert nmse(session.feed(IDS, every=True), wanted) < 1e-9
    session.truncate(0)
    assert nmse(np.stack([session.feed([token]) for token in IDS]), wanted) < 1e-9
    session.prefill(IDS)
    assert nmse(session.verify([7, 8, 9]), twin.verify([7, 8, 9])) < 1e-9
    model.use_adapters([])
    assert session.feed(IDS, every=True).tobytes() == before.tobytes()
    for one in (model, other):
        one.close()
