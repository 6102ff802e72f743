"""Types chosen tensor by tensor, so that a file of a given size predicts as nearly what its source
does as can be.

What a tensor's type costs is taken as the relative error of its products, times how far predictions
move for such an error. The error is measured on some of its rows, weighted by importance. The move
is measured, too: the tensors of one role in a quarter of the layers get a little noise at once, and
the divergence from the undisturbed predictions of a short text is divided by the noise. So each
tensor is rewritten once, and a text is read some thirty times.

That divergence grows in proportion to the sum of relative errors: Malinovskii et al., "Pushing the
Limits of Large Language Model Quantization via the Linearity Theorem", arXiv:2411.17525.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine.gguf.ggml_types import TYPES_BY_NAME
from engine.gguf.read import DEFAULT_ALIGNMENT
from engine.machine.memory import Memory
from engine.measure.perplexity import score
from engine.plan.dequantise import dequantised
from engine.quantize.mixtures import may_shrink
from engine.quantize.rows import WRITABLE, Floats, quantise_rows
from engine.weights.weights import Tensor

if TYPE_CHECKING:
    from engine.model import Model
    from engine.session import Session
    from engine.weights.weights import Weights

KINDS = ("Q2_K", "Q3_K", "IQ4_XS", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
"""Types that are chosen among, where rows are whole blocks of them."""
N_ROWS = 96
"""Rows of a tensor that errors are measured on."""
NOISE = 0.06
"""Standard deviation of the noise, as a share of a row's root mean square: about what four bits
lose."""
QUARTERS = 4
MOST_LOGITS = 32 << 20
"""Limit on the undisturbed log-probabilities that are kept: 128 MiB."""
MOST_TOKENS = 128
"""Tokens whose predictions count: a group's divergence is known to some ten per cent, and its harm
differs by more."""
FIRST = 16
"""Tokens at a text's beginning whose predictions do not count."""
_ADDED_BYTES = 512
"""Room for keys that quantising adds."""
_SLICE = 1 << 20


class TypeCost(NamedTuple):
    """A type that a tensor may have.

    Attributes:
        n_bytes: of the tensor then.
        error: mean square error of its products, relative to their mean square.
    """

    kind: str
    n_bytes: int
    error: float


class Budget:
    """A model's tensors that may get smaller, and what that costs.

    Args:
        session: of the model, with room for a text; its tokens are dropped.
        importance: as ``read_imatrix`` returns it; tensors may be missing.
        keep: as of ``mixtures.mixture``.

    Attributes:
        least_bytes: of a file with the smallest types; known when all is measured.
    """

    def __init__(
        self,
        model: Model,
        session: Session,
        importance: Mapping[str, Floats],
        keep: Mapping[str, str],
    ) -> None:
        self._session = session
        self._weights = model.weights
        self._importance = importance
        self._keep = keep
        self._n_threads = model.prefill_threads
        tensors = self._weights.tensors
        self._names = [
            name for name, one in tensors.items() if may_shrink(name, (one.n_rows, one.n_cols))
        ]
        kept_bytes = model.file_bytes - sum(tensors[name].size_bytes for name in self._names)
        self._other_bytes = kept_bytes + _ADDED_BYTES + DEFAULT_ALIGNMENT * len(self._names)
        self._groups = _roles(self._names, model.config.n_layers)
        self._choices: dict[str, list[TypeCost]] = {}
        self._harms: dict[str, float] = {}
        self.least_bytes = 0

    def measure(self, ids: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Measure, and yield (tensors done, tensors in all) after each of two rounds' steps.

        Args:
            ids: of a text; as many as there is room for count.
        """
        total = 2 * len(self._names)
        measured = {}
        for group, harm in _harms(self._session, self._weights, ids, self._groups, self._n_threads):
            measured[group] = harm
            yield sum(len(self._groups[one]) for one in measured), total
        self._harms = _known(measured, self._groups)
        for name in self._names:
            kept = [kind for pattern, kind in self._keep.items() if fnmatchcase(name, pattern)]
            tensor = self._weights.tensors[name]
            self._choices[name] = _choices(
                tensor, kept[:1] or KINDS, self._importance.get(name), bool(kept)
            )
            yield len(self._names) + len(self._choices), total
        least = (min(one.n_bytes for one in some) for some in self._choices.values())
        self.least_bytes = self._other_bytes + sum(least)

    def types(self, most_bytes: int) -> dict[str, str] | None:
        """Return the types of those tensors for a file of this size; None where the smallest ones
        do not fit."""
        return fit(self._choices, self._harms, most_bytes - self._other_bytes)


def _roles(names: Sequence[str], n_layers: int) -> dict[str, list[str]]:
    """Group tensors by their part of a layer's name and the quarter of the layers; others are
    alone."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        layer = re.match(r"blk\.(\d{1,6})\.(.*)", name)
        found[f"{QUARTERS * int(layer[1]) // n_layers} {layer[2]}" if layer else name].append(name)
    return dict(found)


def _choices(
    tensor: Tensor, kinds: Sequence[str], importance: Floats | None, is_kept: bool
) -> list[TypeCost]:
    """Measure what smaller types would cost a tensor; the last choice is to leave it as it is.

    Args:
        is_kept: it must get the one type that is given.
        importance: mean squares of its columns' inputs, (n_cols,) or n_experts times as many; None:
            all are alike.
    """
    if importance is None:
        columns = np.ones((1, tensor.n_cols), np.float32)
    else:
        columns = importance.reshape(-1, tensor.n_cols)
    n_parts = len(columns)
    rows = np.unique(np.linspace(0, tensor.n_rows - 1, N_ROWS).astype(np.int64))
    parts = rows * n_parts // tensor.n_rows
    values = dequantised(tensor, rows)
    weighed = columns[parts]
    whole = float((weighed * values * values).sum(dtype=np.float64)) or 1.0
    found = []
    for kind in kinds:
        layout = TYPES_BY_NAME[kind]
        n_bytes = tensor.n_rows * tensor.n_cols // layout.block_size * layout.type_size
        if tensor.n_cols % layout.block_size or (n_bytes >= tensor.size_bytes and not is_kept):
            continue
        error = 0.0
        for part in np.unique(parts):
            some = np.ascontiguousarray(values[parts == part])
            back = _through(some, kind, None if importance is None else columns[part])
            error += float((columns[part] * (some - back) ** 2).sum(dtype=np.float64))
        found.append(TypeCost(kind, n_bytes, error / whole))
    if is_kept and found:
        return found
    return [*found, TypeCost(tensor.quant, tensor.size_bytes, 0.0)]


def _through(values: Floats, kind: str, importance: Floats | None, n_threads: int = 1) -> Floats:
    """Return what is left of rows after a type."""
    made = quantise_rows(values, kind, importance, n_threads)
    tensor = Tensor(
        "rows", kind, values.shape[0], values.shape[1], made.shape[1], made.size, made.ctypes.data
    )
    return dequantised(tensor, np.arange(len(values)))


def _harms(
    session: Session,
    weights: Weights,
    ids: Sequence[int],
    groups: Mapping[str, Sequence[str]],
    n_threads: int,
) -> Iterator[tuple[str, float]]:
    """Measure how far a text's predictions move, for each group of tensors.

    Args:
        session: of a model whose weights are ``weights``; its tokens are dropped.
        ids: of the text; as many as there is room for count.

    Yields:
        Group, and nats a token for a relative error of 1 in each of its tensors; NaN where a type
        cannot be made.
    """
    n_kept = max(1, min(len(ids) - FIRST, MOST_TOKENS, MOST_LOGITS // session.config.vocab_size))
    ids = ids[: FIRST + n_kept]
    reference = list(_log_probabilities(session, ids))
    for group, names in groups.items():
        tensors = [weights.tensors[name] for name in names]
        if any(one.quant not in WRITABLE for one in tensors):
            yield group, float("nan")
            continue
        memories, errors = zip(*(_disturbed(one, n_threads) for one in tensors), strict=True)
        session.pipeline.use_weights(
            weights.with_copies(dict(zip(names, memories, strict=True))), keep_others=True
        )
        try:
            moved = [
                _divergence(*pair)
                for pair in zip(reference, _log_probabilities(session, ids), strict=True)
            ]
        finally:
            session.pipeline.use_weights(weights, keep_others=False)
        yield group, sum(moved) / n_kept / max(sum(errors), 1e-12)


def _disturbed(tensor: Tensor, n_threads: int) -> tuple[Memory, float]:
    """Return a tensor with noise in its own type, and the relative square error that is."""
    memory = Memory(tensor.size_bytes)
    rng = np.random.default_rng(0)
    n_at_once = max(1, _SLICE // tensor.n_cols)
    error = 0.0
    whole = 0.0
    for first in range(0, tensor.n_rows, n_at_once):
        n = min(n_at_once, tensor.n_rows - first)
        values = dequantised(tensor.part(first, n), np.arange(n))
        deviation = NOISE * np.sqrt(np.mean(values * values, axis=1, keepdims=True))
        noisy = values + deviation * rng.standard_normal(values.shape, np.float32)
        made = quantise_rows(noisy, tensor.quant, None, n_threads)
        memory.bytes[first * tensor.row_bytes : (first + n) * tensor.row_bytes] = made.ravel()
        back = replace(tensor.part(first, n), address=memory.address + first * tensor.row_bytes)
        error += float(np.square(dequantised(back, np.arange(n)) - values).sum(dtype=np.float64))
        whole += float(np.square(values).sum(dtype=np.float64))
    return memory, error / (whole or 1.0)


def _log_probabilities(session: Session, ids: Sequence[int]) -> Iterator[Floats]:
    session.truncate(0)
    for logits in score(session, ids, FIRST):
        shifted = logits - logits.max(axis=1, keepdims=True)
        yield shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _divergence(wanted: Floats, found: Floats) -> float:
    """Sum over tokens of the divergence of the predictions found from those wanted, in nats."""
    return float((np.exp(wanted) * (wanted - found)).sum(dtype=np.float64))


def fit(
    options: Mapping[str, Sequence[TypeCost]], harm: Mapping[str, float], most_bytes: int
) -> dict[str, str] | None:
    """Choose each tensor's type so that the sum of harms times errors is small, and their bytes are
    few enough.

    From the smallest types on, the step that takes most harm away for its bytes is made next. One
    that found no room is tried in place of smaller ones, since the last large step may be worth
    many of them.

    Returns:
        name -> type; None where the smallest types do not fit.
    """
    hulls = {name: _hull(some) for name, some in options.items()}
    found = _greedy(hulls, harm, most_bytes)
    if found is None:
        return None
    best, waiting = found
    for name, after in waiting:
        tried = _greedy(hulls | {name: hulls[name][hulls[name].index(after) :]}, harm, most_bytes)
        if tried is not None and _cost(tried[0], harm) < _cost(best, harm):
            best = tried[0]
            hulls = hulls | {name: hulls[name][hulls[name].index(after) :]}
    return {name: one.kind for name, one in best.items()}


def _greedy(
    hulls: Mapping[str, Sequence[TypeCost]], harm: Mapping[str, float], most_bytes: int
) -> tuple[dict[str, TypeCost], list[tuple[str, TypeCost]]] | None:
    """Return the choices, and the first step of each tensor that found no room; None: the smallest
    do not fit."""
    chosen = {name: hull[0] for name, hull in hulls.items()}
    left_bytes = most_bytes - sum(one.n_bytes for one in chosen.values())
    if left_bytes < 0:
        return None
    steps = [
        (harm[name] * _slope(*pair), name, pair[1])
        for name, hull in hulls.items()
        for pair in pairwise(hull)
    ]
    waiting: dict[str, TypeCost] = {}
    for _, name, after in sorted(steps, key=lambda step: (-step[0], step[2].n_bytes)):
        more_bytes = after.n_bytes - chosen[name].n_bytes
        if name not in waiting and more_bytes <= left_bytes:
            left_bytes = left_bytes - more_bytes
            chosen[name] = after
        else:
            waiting.setdefault(name, after)
    return chosen, list(waiting.items())


def _cost(chosen: Mapping[str, TypeCost], harm: Mapping[str, float]) -> float:
    return sum(harm[name] * one.error for name, one in chosen.items())


def _hull(some: Sequence[TypeCost]) -> list[TypeCost]:
    """The choices worth having, smallest first: each step from one to the next takes less error
    away for its bytes."""
    hull: list[TypeCost] = []
    for one in sorted(some, key=lambda choice: (choice.n_bytes, choice.error)):
        if hull and one.error >= hull[-1].error:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], one):
            hull.pop()
        hull.append(one)
    return hull


def _slope(before: TypeCost, after: TypeCost) -> float:
    return (before.error - after.error) / (after.n_bytes - before.n_bytes)


def _known(measured: Mapping[str, float], groups: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Give each tensor its group's harm; the median of the others where it could not be
    measured."""
    known = [value for value in measured.values() if not np.isnan(value)]
    if known:
        usual = float(np.median(known))
    else:
        usual = 1.0
    return {
        name: usual if np.isnan(measured[group]) else measured[group]
        for group, names in groups.items()
        for name in names
    }
