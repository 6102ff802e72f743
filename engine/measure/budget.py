"""Choice of a weight type for each tensor, so that a file of a given size predicts as nearly as
possible what its source predicts.

The cost of a type is the relative error of the tensor's products times the sensitivity of the
predictions to such an error. The error is measured on some rows, weighted by importance. To measure
the sensitivity, the tensors of one role in a quarter of the layers get a little noise, and the
divergence of the predictions of a short text is divided by the noise. Each tensor is rewritten
once, and the text is read about thirty times.

The divergence is proportional to the sum of relative errors: Malinovskii et al., "Pushing the
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

TYPE_NAMES = (
    "Q2_K",
    "Q3_K",
    "IQ4_XS",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
)
"""Types to choose from, if the length of rows suits them."""
N_ROWS = 96
"""Number of rows of a tensor for measuring errors."""
NOISE = 0.06
"""Standard deviation of the noise as a share of a row's root mean square: about the error of four
bits."""
QUARTERS = 4
MAX_LOGITS = 32 << 20
"""Limit on the number of reference log-probabilities: 128 MiB."""
MAX_TOKENS = 128
"""Limit on the tokens whose predictions count. They give a divergence to about ten per cent, and
sensitivities differ by more."""
FIRST = 16
"""Number of tokens at the beginning of a text whose predictions do not count."""
_ADDED_BYTES = 512
"""Bytes for metadata that quantizing adds."""
_SLICE = 1 << 20


class TypeCost(NamedTuple):
    """Cost of a type for a tensor.

    Attributes:
        kind: name of the type.
        n_bytes: size of the tensor with this type.
        error: mean square error of the tensor's products, relative to their mean square.
    """

    kind: str
    n_bytes: int
    error: float


class Budget:
    """Tensors of a model that may become smaller, and the costs of their types.

    Args:
        session: session of the model with room for a text; its tokens are dropped.
        importance: result of ``read_imatrix``; tensors may be missing.
        keep: types that are fixed, as in ``mixtures.mixture``.

    Attributes:
        least_bytes: size of a file with the smallest types, after ``measure``.
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
        self._fixed_types = keep
        self._n_threads = model.prefill_threads
        tensors = self._weights.tensors
        self._names = [
            name
            for name, tensor in tensors.items()
            if may_shrink(name, (tensor.n_rows, tensor.n_cols))
        ]
        fixed_bytes = model.file_bytes - sum(tensors[name].size_bytes for name in self._names)
        self._other_bytes = fixed_bytes + _ADDED_BYTES + DEFAULT_ALIGNMENT * len(self._names)
        self._groups = _roles(self._names, model.config.n_layers)
        self._choices: dict[str, list[TypeCost]] = {}
        self._sensitivities: dict[str, float] = {}
        self.least_bytes = 0

    def measure(self, ids: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Measure all costs in two rounds; yields (tensors done, tensors in all) after each step.

        Args:
            ids: tokens of a text; the first ones that fit are used.
        """
        total = 2 * len(self._names)
        measured = {}
        for group, sensitivity in _sensitivities(
            self._session, self._weights, ids, self._groups, self._n_threads
        ):
            measured[group] = sensitivity
            yield sum(len(self._groups[choice]) for choice in measured), total
        self._sensitivities = _by_tensor(measured, self._groups)
        for name in self._names:
            fixed = [
                type_name
                for pattern, type_name in self._fixed_types.items()
                if fnmatchcase(name, pattern)
            ]
            tensor = self._weights.tensors[name]
            self._choices[name] = _choices(
                tensor, fixed[:1] or TYPE_NAMES, self._importance.get(name), bool(fixed)
            )
            yield len(self._names) + len(self._choices), total
        smallest = (min(choice.n_bytes for choice in choices) for choices in self._choices.values())
        self.least_bytes = self._other_bytes + sum(smallest)

    def types(self, max_bytes: int) -> dict[str, str] | None:
        """Return the types of the tensors for a file of this size; None if the smallest types do
        not fit."""
        return fit(self._choices, self._sensitivities, max_bytes - self._other_bytes)


def _roles(names: Sequence[str], n_layers: int) -> dict[str, list[str]]:
    """Group tensors by their role in a layer and the quarter of the layers. Other tensors are
    groups of their own."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        layer = re.match(r"blk\.(\d{1,6})\.(.*)", name)
        groups[f"{QUARTERS * int(layer[1]) // n_layers} {layer[2]}" if layer else name].append(name)
    return dict(groups)


def _choices(
    tensor: Tensor, type_names: Sequence[str], importance: Floats | None, is_fixed: bool
) -> list[TypeCost]:
    """Measure what smaller types would cost a tensor; the last choice is to leave it as it is.

    Args:
        is_fixed: it must get the one type that is given.
        importance: mean squares of its columns' inputs, (n_cols,) or n_experts times as many; None:
            all are alike.
    """
    if importance is None:
        columns = np.ones((1, tensor.n_cols), np.float32)
    else:
        columns = importance.reshape(-1, tensor.n_cols)
    n_experts = len(columns)
    rows = np.unique(np.linspace(0, tensor.n_rows - 1, N_ROWS).astype(np.int64))
    experts = rows * n_experts // tensor.n_rows
    values = dequantised(tensor, rows)
    row_weights = columns[experts]
    total = float((row_weights * values * values).sum(dtype=np.float64)) or 1.0
    costs = []
    for type_name in type_names:
        layout = TYPES_BY_NAME[type_name]
        n_bytes = tensor.n_rows * tensor.n_cols // layout.block_size * layout.type_size
        if tensor.n_cols % layout.block_size or (n_bytes >= tensor.size_bytes and not is_fixed):
            continue
        error = 0.0
        for expert in np.unique(experts):
            expert_rows = np.ascontiguousarray(values[experts == expert])
            restored = _through(
                expert_rows, type_name, None if importance is None else columns[expert]
            )
            error += float((columns[expert] * (expert_rows - restored) ** 2).sum(dtype=np.float64))
        costs.append(TypeCost(type_name, n_bytes, error / total))
    if is_fixed and costs:
        return costs
    return [*costs, TypeCost(tensor.quant, tensor.size_bytes, 0.0)]


def _through(
    values: Floats, type_name: str, importance: Floats | None, n_threads: int = 1
) -> Floats:
    """Return rows after conversion to a type and back."""
    rows = quantise_rows(values, type_name, importance, n_threads)
    tensor = Tensor(
        "rows",
        type_name,
        values.shape[0],
        values.shape[1],
        rows.shape[1],
        rows.size,
        rows.ctypes.data,
    )
    return dequantised(tensor, np.arange(len(values)))


def _sensitivities(
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
    n_tokens = max(1, min(len(ids) - FIRST, MAX_TOKENS, MAX_LOGITS // session.config.vocab_size))
    ids = ids[: FIRST + n_tokens]
    reference = list(_log_probabilities(session, ids))
    for group, names in groups.items():
        tensors = [weights.tensors[name] for name in names]
        if any(tensor.quant not in WRITABLE for tensor in tensors):
            yield group, float("nan")
            continue
        memories, errors = zip(*(_disturbed(tensor, n_threads) for tensor in tensors), strict=True)
        session.pipeline.use_weights(
            weights.with_copies(dict(zip(names, memories, strict=True))), keep_others=True
        )
        try:
            divergences = [
                _divergence(*pair)
                for pair in zip(reference, _log_probabilities(session, ids), strict=True)
            ]
        finally:
            session.pipeline.use_weights(weights, keep_others=False)
        yield group, sum(divergences) / n_tokens / max(sum(errors), 1e-12)


def _disturbed(tensor: Tensor, n_threads: int) -> tuple[Memory, float]:
    """Return a tensor with noise, in its own type, and the relative square error."""
    memory = Memory(tensor.size_bytes)
    rng = np.random.default_rng(0)
    n_at_once = max(1, _SLICE // tensor.n_cols)
    error = 0.0
    total = 0.0
    for first in range(0, tensor.n_rows, n_at_once):
        n = min(n_at_once, tensor.n_rows - first)
        values = dequantised(tensor.part(first, n), np.arange(n))
        deviation = NOISE * np.sqrt(np.mean(values * values, axis=1, keepdims=True))
        noisy = values + deviation * rng.standard_normal(values.shape, np.float32)
        blocks = quantise_rows(noisy, tensor.quant, None, n_threads)
        memory.bytes[first * tensor.row_bytes : (first + n) * tensor.row_bytes] = blocks.ravel()
        restored = replace(tensor.part(first, n), address=memory.address + first * tensor.row_bytes)
        error += float(
            np.square(dequantised(restored, np.arange(n)) - values).sum(dtype=np.float64)
        )
        total += float(np.square(values).sum(dtype=np.float64))
    return memory, error / (total or 1.0)


def _log_probabilities(session: Session, ids: Sequence[int]) -> Iterator[Floats]:
    session.truncate(0)
    for logits in score(session, ids, FIRST):
        shifted = logits - logits.max(axis=1, keepdims=True)
        yield shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _divergence(reference: Floats, logprobs: Floats) -> float:
    """Return the divergence from the reference predictions, summed over tokens, in nats."""
    return float((np.exp(reference) * (reference - logprobs)).sum(dtype=np.float64))


def fit(
    options: Mapping[str, Sequence[TypeCost]], sensitivity: Mapping[str, float], max_bytes: int
) -> dict[str, str] | None:
    """Choose each tensor's type so that the sum of sensitivity times error is small and the sizes
    fit.

    Starting from the smallest types, the step with the largest improvement per byte is next. A step
    that does not fit is then tried instead of smaller ones, since it may be worth many of them.

    Returns:
        Types by the tensor's name; None if the smallest types do not fit.
    """
    hulls = {name: _hull(choices) for name, choices in options.items()}
    result = _greedy(hulls, sensitivity, max_bytes)
    if result is None:
        return None
    best, skipped = result
    for name, next_choice in skipped:
        attempt = _greedy(
            hulls | {name: hulls[name][hulls[name].index(next_choice) :]}, sensitivity, max_bytes
        )
        if attempt is not None and _cost(attempt[0], sensitivity) < _cost(best, sensitivity):
            best = attempt[0]
            hulls = hulls | {name: hulls[name][hulls[name].index(next_choice) :]}
    return {name: choice.kind for name, choice in best.items()}


def _greedy(
    hulls: Mapping[str, Sequence[TypeCost]], sensitivity: Mapping[str, float], max_bytes: int
) -> tuple[dict[str, TypeCost], list[tuple[str, TypeCost]]] | None:
    """Return the choices, and the first step of each tensor that does not fit; None if the smallest
    types do not fit."""
    chosen = {name: hull[0] for name, hull in hulls.items()}
    free_bytes = max_bytes - sum(choice.n_bytes for choice in chosen.values())
    if free_bytes < 0:
        return None
    steps = [
        (sensitivity[name] * _slope(*pair), name, pair[1])
        for name, hull in hulls.items()
        for pair in pairwise(hull)
    ]
    skipped: dict[str, TypeCost] = {}
    for _, name, next_choice in sorted(steps, key=lambda step: (-step[0], step[2].n_bytes)):
        added_bytes = next_choice.n_bytes - chosen[name].n_bytes
        if name not in skipped and added_bytes <= free_bytes:
            free_bytes = free_bytes - added_bytes
            chosen[name] = next_choice
        else:
            skipped.setdefault(name, next_choice)
    return chosen, list(skipped.items())


def _cost(chosen: Mapping[str, TypeCost], sensitivity: Mapping[str, float]) -> float:
    return sum(sensitivity[name] * choice.error for name, choice in chosen.items())


def _hull(choices: Sequence[TypeCost]) -> list[TypeCost]:
    """Return the useful choices, smallest first, with a falling improvement per byte."""
    hull: list[TypeCost] = []
    for choice in sorted(choices, key=lambda choice: (choice.n_bytes, choice.error)):
        if hull and choice.error >= hull[-1].error:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], choice):
            hull.pop()
        hull.append(choice)
    return hull


def _slope(smaller: TypeCost, larger: TypeCost) -> float:
    return (smaller.error - larger.error) / (larger.n_bytes - smaller.n_bytes)


def _by_tensor(
    measured: Mapping[str, float], groups: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Return each tensor's sensitivity: that of its group, or the median if that is unknown."""
    values = [value for value in measured.values() if not np.isnan(value)]
    default = float(np.median(values)) if values else 1.0
    return {
        name: default if np.isnan(measured[group]) else measured[group]
        for group, names in groups.items()
        for name in names
    }
