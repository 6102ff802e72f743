"""Measurements of the engine thread for the performance screen.

They cost a system call per token and, while a screen shows them, a look at the profile once a
second. The profile adds a few cycles to each operation, so every reply is profiled and the screen
has figures at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

from app.backend.reply import ReplyMeter
from app.machine.sensors.daily_speeds import ReplyConditions
from app.machine.sensors.page_faults import FaultLog
from app.machine.sensors.records import INTERFACE, EngineFigures, ModelFacts, PhaseCost, TimeSpent
from app.machine.sensors.reply_history import (
    LEAST_PROMPT_TOKENS,
    READ_GBPS,
    KnownAs,
    PastReply,
    ReplyHistory,
    history_key,
    rates_key,
)
from app.machine.sensors.token_speed import excess_at
from app.machine.sensors.tuning_conditions import Conditions, ConditionsWatch
from app.program.version import installed_version
from app.session.events import MemoryMeasured
from engine.errors import EngineError

if TYPE_CHECKING:
    from app.backend.engine_link import EngineLink
    from engine import Model, Session

PROFILE_PERIOD_S = 1.0
PROBE_BYTES = 256 << 20
PROBE_ROOM = 3
"""Multiple of the probe's memory that must be free: measuring must not evict the weights."""


class EngineMeasures:
    """Measurements of one open model."""

    def __init__(
        self,
        link: EngineLink,
        history: ReplyHistory,
        model: Model,
        session: Session,
        conditions: ConditionsWatch,
    ) -> None:
        self._link = link
        self._history = history
        self._model = model
        self._session = session
        self._conditions = conditions
        self._meter: ReplyMeter | None = None
        self._next_profile_s = 0.0
        facts = ModelFacts(
            identity=_identity(model),
            weights_mode=model.weights_mode,
            weights_bytes=model.weights_bytes,
            bytes_per_token=model.bytes_per_token + 2 * session.state_bytes,
            kv_bytes=session.kv_bytes,
            kv_bytes_per_position=session.kv_bytes_per_position,
            resident_weight_bytes=_call_weakly(model.resident_weight_bytes),
            resident_kv_bytes=_call_weakly(session.kv_resident_bytes),
        )
        earlier = history.earlier(_known_as(model))
        known = history.rates(rates_key(model.threads)).get(READ_GBPS)
        link.update(
            figures=EngineFigures(
                facts,
                earlier=earlier,
                daily=history.daily(_known_as(model)),
                threads=model.threads,
                weights_mode=model.weights_mode,
                read_gbps={model.threads: known} if known else {},
            )
        )

    def usual_prefill_tps(self) -> float | None:
        """Return the prompt tokens per second of earlier replies here; None if there were none."""
        usual = self._history.usual(_known_as(self._model))
        if usual is not None and usual.prefill_tps > 0:
            return usual.prefill_tps
        return None

    def update_weights(self) -> None:
        """Compare later replies with those whose weights were in the same kind of memory."""
        facts = self._link.state.figures.facts
        if facts is not None:
            moved = replace(
                facts, identity=_identity(self._model), weights_mode=self._model.weights_mode
            )
            self._link.update(figures=replace(self._link.state.figures, facts=moved))

    @contextmanager
    def measuring(self, meter: ReplyMeter, sent_s: float | None) -> Iterator[None]:
        """Measure a reply during the block.

        Args:
            sent_s: time at which the message was sent; None if just now.
        """
        model = self._model
        self._meter = meter
        self._next_profile_s = meter.started_s
        key = history_key(_identity(model), model.threads)
        changes_before = self._link.state.changes
        self._update(
            faults=FaultLog(),
            earlier=self._history.earlier(_known_as(model)),
            threads=model.threads,
            weights_mode=model.weights_mode,
        )
        self._conditions.begin()
        self._session.profiler.start()
        try:
            yield
        finally:
            conditions = self._conditions.end()
            ended_s = self._link.now_s()
            self._link.state.figures.faults.note(meter.tokens)
            self._show_profile(meter)
            self._session.profiler.stop()
            self._meter = None
            if sent_s is None or sent_s > meter.started_s:
                sent_s = meter.started_s
            spent = time_spent(meter, self._link.state.figures, sent_s, ended_s)
            self._update(last_reply=spent, threads=model.threads)
            is_changed = self._link.state.changes is not changes_before
            if not is_changed and key == history_key(_identity(model), model.threads):
                self._save(meter, conditions)

    def _save(self, meter: ReplyMeter, conditions: Conditions) -> None:
        """Save the speeds of a reply for later comparison."""
        if meter.finish_reason == "error":
            return
        prefill_tps = 0.0
        if meter.read_tokens >= LEAST_PROMPT_TOKENS:
            prefill_tps = meter.prefill_tps
        first_token_s = meter.first_token_s or 0.0
        is_quiet = conditions.is_quiet
        past = PastReply(
            time.time(), meter.tokens, meter.decode_tps, prefill_tps, first_token_s, is_quiet
        )
        model = self._model
        reply_conditions = ReplyConditions(
            model.threads, conditions.on_battery, is_quiet, installed_version()
        )
        known_as = _known_as(model)
        self._history.add_reply(known_as, model.weights_mode, past, reply_conditions)
        self._update(daily=self._history.daily(known_as))

    def update_progress(self) -> None:
        """Measure after some of the prompt was read or a token was generated."""
        if self._meter is None:
            return
        self._link.state.figures.faults.note(self._meter.tokens)
        if self._link.inbox.is_watched and self._link.now_s() >= self._next_profile_s:
            self._next_profile_s = self._link.now_s() + PROFILE_PERIOD_S
            self._show_profile(self._meter)

    def _update(self, **changes: Any) -> None:
        self._link.update(figures=replace(self._link.state.figures, **changes))

    def _show_profile(self, meter: ReplyMeter) -> None:
        phases = self._session.profiler.read()
        decode = phases.get("decode", [])
        prompt = [
            phases.get(plan, [])
            for plan in ("small batch", "small batch last", "block", "block last")
        ]
        n_decoded = decode[0].n_runs if decode else 0
        self._update(
            decode_phases=phase_costs([decode], n_decoded),
            prompt_phases=phase_costs(prompt, meter.read_tokens),
        )

    def measure_bandwidth(self, is_unwanted: Callable[[], bool]) -> MemoryMeasured | None:
        """Measure how fast memory can be read; None if there is no room or other work waits."""
        model = self._model
        threads = self._model.threads
        if not has_room(model):
            return None
        self._conditions.begin()
        try:
            gbps = model.read_bandwidth_gbps(threads, is_unwanted)
        except EngineError:  # given way to something better, or no memory
            return None
        is_quiet = self._conditions.end().is_quiet
        known = self._history.remember_rates(rates_key(threads), {READ_GBPS: gbps}, is_quiet)
        if best := known.get(READ_GBPS):
            self._link.update(
                figures=replace(
                    self._link.state.figures,
                    read_gbps={**self._link.state.figures.read_gbps, threads: best},
                )
            )
        return MemoryMeasured(gbps, is_quiet)


def _identity(model: Model) -> str:
    return _known_as(model).identity(model.weights_mode)


def _known_as(model: Model) -> KnownAs:
    return KnownAs(model.name, model.quantization, model.weights_bytes)


def _call_weakly(method: Callable[[], int | None]) -> Callable[[], int | None]:
    """Return a function that calls a method and does not keep its object in memory.

    Screens keep the figures of a model that was closed; the method of a freed object returns None.
    """
    reference = WeakMethod(method)

    def call() -> int | None:
        living = reference()
        if living is None:
            return None
        return living()

    return call


def has_room(model: Model) -> bool:
    """Return whether the probe has room without evicting the weights."""
    from engine.machine import host  # not with the module: the first frame would wait for it

    if model.weights_mode == "mmap":
        weights = model.weights_bytes
    else:
        weights = 0
    return host.available_memory_bytes() - weights > PROBE_ROOM * PROBE_BYTES


def time_spent(
    meter: ReplyMeter, figures: EngineFigures, sent_s: float, ended_s: float
) -> TimeSpent:
    """Divide the time from sending a message to the end of its reply among its causes."""
    interface_s = disk_s = first_s = decode_s = 0.0
    read_until_s = min(ended_s, meter.started_s + meter.prefill_s)
    if meter.token_times_s:
        first_token_s = meter.token_times_s[0]
        decode_whole_s = ended_s - first_token_s
        handing_s = (
            sum(phase.ms_per_token for phase in figures.decode_phases if phase.name == INTERFACE)
            / 1000
        )
        interface_s = min(decode_whole_s, handing_s * meter.tokens)
        disk_s = min(
            decode_whole_s - interface_s, excess_at(meter.token_times_s, figures.faults.by_token())
        )
        first_s = max(0.0, first_token_s - read_until_s)
        decode_s = decode_whole_s - interface_s - disk_s
        prefill_s = first_token_s - meter.started_s - first_s
    else:
        prefill_s = ended_s - meter.started_s
    return TimeSpent(
        waited_s=max(0.0, meter.started_s - sent_s),
        disk_s=disk_s,
        prefill_s=max(0.0, prefill_s),
        first_s=first_s,
        decode_s=decode_s,
        interface_s=interface_s,
        prompt_tokens=meter.read_tokens,
        reused_tokens=meter.reused_tokens,
        tokens=meter.tokens,
        disk_pages=figures.faults.total,
        guesses=meter.guesses,
        guess_saved_s=meter.guess_saved_s,
    )


def phase_costs(plans: Sequence[Sequence[Any]], n_tokens: int) -> tuple[PhaseCost, ...]:
    """Return the cost per token of the engine's phases; phases of one name are added up."""
    costs: dict[str, tuple[float, int]] = {}
    for phase in (phase for phases in plans for phase in phases):
        if phase.phase == "caller":
            name = INTERFACE
        else:
            name = phase.phase
        seconds, n_bytes = costs.get(name, (0.0, 0))
        costs[name] = seconds + phase.seconds, n_bytes + phase.weight_bytes
    total_s = sum(seconds for seconds, _ in costs.values())
    return tuple(
        PhaseCost(
            name=name,
            ms_per_token=1000 * seconds / max(1, n_tokens),
            share=seconds / total_s if total_s > 0 else 0.0,
            gbps=n_bytes / seconds / 1e9 if n_bytes and seconds > 0 else None,
        )
        for name, (seconds, n_bytes) in costs.items()
    )
