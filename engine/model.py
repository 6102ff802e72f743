"""A model file opened for use: weights in the map, a crew of threads, and the sessions that share both."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cache.kv_cache import kv_type_of, memory_needs
from engine.cache.kv_types import KVType
from engine.errors import EngineError, MemoryPlanError, ModelChangedError, UnsupportedCPUError
from engine.loader import validate
from engine.machine import address_space, host, residency
from engine.machine.memory import shown_bytes
from engine.models import expected_tensors
from engine.plan.compilation import Progress, ProgressCallback
from engine.session import Session
from engine.weights.modes import MMAP, RESERVE_BYTES, WEIGHT_MODES, RoomForBoth, WeightModes
from engine.weights.weights import multiplied

if TYPE_CHECKING:
    from engine.pipeline import Pipeline
    from engine.prompt.chat_prompt import ChatPrompt
    from engine.prompt.chat_template import ChatTemplate
    from engine.weights.weights import Tensor

DEFAULT_CONTEXT = 8192
"""Largest context chosen without being asked for: more of it costs memory that few conversations use."""
MOST_THREADS = 128


class Model:
    """A model file, its weights mapped, and the threads that compute with them.

    Attributes:
        path: the file.
        config: the hyperparameters.
        tokenizer: the vocabulary in the file.
        name: ``general.name``, as untrusted as any metadata, or the file's stem.
        quantization: the mix of types, ``"Q4_K_M"``.
        threads, prefill_threads: of a decode step, and of a prefill block.
        weights_mode: the one of ``WEIGHT_MODES`` in use.
        weights_bytes: of all tensors.
        bytes_per_token: weights that one decode step reads.
    """

    def __init__(
        self, path: Path, threads: int, prefill_threads: int, weights: str, progress: ProgressCallback | None
    ) -> None:
        self._checked = validate(path)
        self._weights = self._checked.weights
        self.path = path
        self.config = self._checked.config
        self.tokenizer = self._checked.tokenizer
        self.weights_bytes = self._checked.weights.total_bytes
        self.quantization = self._checked.weights.quantization_label()
        self.threads, self.prefill_threads = threads, prefill_threads
        self.weights_mode = MMAP
        self._progress = progress
        self._sessions: list[Session] = []
        self._crew: Any = None
        self._pinned = False
        self._modes = WeightModes(self._weights, self.shown_name)
        self._mapping = self._weights.map_ahead() if weights == MMAP else None
        try:
            self.use_weights(weights)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        threads: int | None = None,
        weights: str = "mmap",
        *,
        prefill_threads: int | None = None,
        pinned: bool = False,
        progress: ProgressCallback | None = None,
    ) -> Model:
        """Open and check a GGUF file. Kernels are compiled when the first session is made.

        Args:
            threads: of decode; None takes one per physical core that this process may use.
            weights: ``"mmap"`` reads them where they lie in the file; ``"huge"`` copies them once into memory advised
                for huge pages, where there is room for that.
            prefill_threads: None takes as many as decode.
            pinned: bind every thread but the caller's to one logical CPU, physical cores first (Linux only).
            progress: told about everything slow, now and in later sessions.

        Raises:
            EngineError: one line that says what is wrong with the file or an argument.
        """
        if weights not in WEIGHT_MODES:
            raise EngineError(f"weights is '{weights}': must be one of {', '.join(WEIGHT_MODES)}")
        decode = _checked_threads("threads", threads or min(MOST_THREADS, host.cores().default_threads))
        prefill = _checked_threads("prefill_threads", prefill_threads or decode)
        model = cls(Path(path), decode, prefill, weights, progress)
        model.set_pinned(pinned)
        return model

    @property
    def shown_name(self) -> str:
        """The file's name, fit for a one-line message."""
        return self._checked.gguf.shown_name

    @property
    def name(self) -> str:
        """What the file calls itself, unsanitised, or its stem."""
        name = self._checked.gguf.metadata.get("general.name")
        return name if isinstance(name, str) and name else self.path.stem

    @cached_property
    def bytes_per_token(self) -> int:
        """Weights that one decode step reads: one row of a table that tokens are looked up in, all of the rest."""
        tensors = self._weights.tensors
        specs = multiplied(tensors, expected_tensors(self.config))
        return sum(specs[name].bytes_read(tensor.size_bytes) for name, tensor in tensors.items())

    @cached_property
    def fingerprint(self) -> str:
        """What the file holds, metadata and samples of the weights, in 64 hexadecimal digits.

        Raises:
            ModelChangedError: the file is not what was opened any more.
        """
        from engine.saved_state.fingerprint import fingerprint_of

        self.refuse_changed_file()
        return fingerprint_of(self._checked.gguf)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """How this model writes conversations."""
        from engine.prompt.chat_template import ChatTemplate

        tokenizer = self.tokenizer
        bos, eos = tokenizer.token_text(tokenizer.bos_id), tokenizer.token_text(tokenizer.eos_id)
        return ChatTemplate.from_metadata(self._checked.gguf.metadata, self.shown_name, bos, eos)

    @property
    def sampling_advice(self) -> dict[str, float]:
        """The fields of ``Sampling`` that the file recommends."""
        from engine.sampling.advice import sampling_advice

        return sampling_advice(self._checked.gguf.metadata)

    @property
    def notices(self) -> list[str]:
        """What the user should know about this model on this machine, one line each; complete once a session exists.

        A replaced template is named only where a conversation was begun.
        """
        template = self.chat_template if "chat_template" in self.__dict__ else None
        lines = self.tokenizer.notice, template.notice if template is not None else None
        found = [line for line in lines if line]
        jit = sys.modules.get("engine.jit")
        if jit is not None and jit.CACHE_DIRECTORY is None:
            found.append(
                "no private directory for compiled kernels is to be had, so they are compiled at every start "
                "(set JALOPY_CACHE_DIR to a directory of your own)"
            )
        return found

    @property
    def crew(self) -> Any:
        """The threads; hired when the first plan runs."""
        if self._crew is None:
            from engine.plan.crew import Crew

            self._crew = Crew(self._pinned)
        return self._crew

    def chat(self) -> ChatPrompt:
        """Begin the tokens of a new conversation."""
        from engine.prompt.chat_prompt import ChatPrompt

        return ChatPrompt(self.tokenizer, self.chat_template)

    def session(self, n_ctx: int | None = None, kv: str = "f16", progress: ProgressCallback | None = None) -> Session:
        """Allocate a cache and compile what it needs.

        Args:
            n_ctx: tokens; None takes what the model was trained for, the memory allows and few conversations exceed.
            kv: a key of ``engine.KV_TYPES``.
            progress: told what is slow in place of what the model was opened with; what it raises passes through.

        Raises:
            MemoryPlanError: it does not fit; the message names the largest context that does.
            ModelChangedError: the model file is not what it was.
            UnsupportedCPUError: the kernels cannot be compiled for this processor.
        """
        kv_type = kv_type_of(kv, self.config)
        self.bring_weights_in()
        n_ctx = self._context(n_ctx, kv_type)
        pipeline = self._pipeline(kv_type, n_ctx)
        pipeline.compile(progress or self._progress)
        session = Session(self, pipeline, n_ctx)
        self._sessions.append(session)
        return session

    def describe_plan(self) -> list[dict[str, Any]]:
        """The operations of one decode step, in order: phase, op, weights, type, shape, bytes, threads."""
        plan = self._pipeline(kv_type_of("f16", self.config), 256).plans["decode"]
        return [{**row, "threads": self.threads} for row in plan.describe()]

    def sample_tensors(self) -> list[Tensor]:
        """One matrix of every type in the file."""
        matrices = [tensor for tensor in self._weights.tensors.values() if tensor.n_rows > 1]
        return list({tensor.quant: tensor for tensor in matrices}.values())

    def set_threads(self, decode: int, prefill: int | None = None) -> None:
        """Change the numbers of threads from the next walk on.

        A session made before uses no more than it has room for: all logical CPUs, or as many as were asked for then.

        Raises:
            EngineError: out of range.
        """
        self.threads = _checked_threads("threads", decode)
        self.prefill_threads = _checked_threads("prefill_threads", prefill or decode)

    @property
    def pinned(self) -> bool:
        """Whether every thread but the caller's keeps to one logical CPU."""
        return self._pinned

    @property
    def most_threads(self) -> int:
        """Threads that a session has room for: all logical CPUs, or as many as were asked for."""
        return max(self.threads, self.prefill_threads, min(MOST_THREADS, host.cores().most_threads))

    @property
    def can_pin(self) -> bool:
        """Whether this system lets threads be bound to CPUs."""
        return hasattr(os, "sched_setaffinity")

    def set_pinned(self, pinned: bool) -> None:
        """Bind the threads to CPUs, or let the system place them, from the next walk on."""
        self._pinned = pinned
        if self._crew is not None:
            self._crew.set_pinned(pinned)

    def use_weights(self, mode: str, progress: ProgressCallback | None = None, keep_copy: bool = False) -> None:
        """Have all sessions read the weights in another mode from their next steps on; what they hold stays.

        Args:
            mode: one of ``WEIGHT_MODES``. Weights that are not in huge pages yet are copied there first.
            progress: told about the copying in place of what the model was opened with; what it raises ends that, and
                everything is as it was.
            keep_copy: hold on to the copy in huge pages while the map is used, so that going back costs nothing.

        Raises:
            MemoryPlanError: there is no room for a copy; everything is as it was.
            ModelChangedError: the model file is not what it was.
        """
        if mode != self.weights_mode:
            self.refuse_changed_file()
        report = self._report_bytes if progress is None else partial(self._report_bytes, to=progress)
        weights = self._modes.in_mode(mode, report)
        for session in self._sessions:
            session.use_weights(weights, keep_copy)
        self._weights, self.weights_mode = weights, mode
        if mode == MMAP and not keep_copy:
            self._modes.let_copy_go()
            if self._sessions:
                self.bring_weights_in()

    def room_for_both_modes(self) -> RoomForBoth:
        """What it takes to have the weights in the map and in huge pages at once."""
        return self._modes.room_for_both()

    def read_bandwidth_gbps(self, threads: int | None = None, is_unwanted: Callable[[], bool] = lambda: False) -> float:
        """Measure how fast this machine reads memory with so many threads (None: those of decode), in GB/s.

        Args:
            is_unwanted: asked every few milliseconds whether something more important has come up.

        Raises:
            Cancelled: something has.
            MemoryPlanError: there is no memory to measure with.
        """
        from engine.plan.profile import read_bandwidth_gbps

        return read_bandwidth_gbps(self.crew, threads or self.threads, is_unwanted=is_unwanted)

    def resident_weight_bytes(self) -> int | None:
        """How much of the weights lies in memory now; None where the system does not say. Any thread may ask."""
        return self._weights.resident_bytes()

    def refuse_changed_file(self) -> None:
        """Call it before the map is read: where the file was cut short, that would end the process.

        Raises:
            ModelChangedError: the file on disk is no longer what was opened.
        """
        if self._checked.gguf.changed():
            raise ModelChangedError(f"{self.shown_name}: the file was changed since it was opened (open it again)")

    def forget(self, session: Session) -> None:
        """Drop a closed session."""
        if session in self._sessions:
            self._sessions.remove(session)

    def close(self) -> None:
        """End the threads and unmap the file. Closing twice is harmless."""
        if self._mapping is not None:
            self._mapping.stop()
        for session in list(self._sessions):
            session.close()
        if self._crew is not None:
            self._crew.close()
        if "chat_template" in self.__dict__:
            self.chat_template.close()
        self._checked.gguf.close()

    def bring_weights_in(self) -> None:
        """Read a file that is not in memory yet once, in order, if it fits there at all."""
        share, size_bytes = self._weights.resident_share(), self._checked.gguf.file_bytes
        if share < residency.RESIDENT_ENOUGH and size_bytes < host.available_memory_bytes():
            residency.read_in_order([file.path for file in self._checked.gguf.files], size_bytes, self._report_bytes)

    def _report_bytes(self, done: int, total: int, to: ProgressCallback | None = None) -> None:
        report = to or self._progress
        if report is not None:
            report(Progress("load", self.shown_name, done, total))

    @property
    def huge_bytes(self) -> int:
        """Bytes of weights that the system really keeps in huge pages."""
        return self._weights.huge_bytes

    def _pipeline(self, kv_type: KVType, n_ctx: int) -> Pipeline:
        self.refuse_changed_file()
        try:
            from engine.pipeline import Pipeline
        except ImportError as error:
            if address_space.limit_bytes() is not None:
                raise  # more likely than the processor
            raise UnsupportedCPUError(f"numba cannot run on this processor: {error}") from None
        return Pipeline(self.config, self._weights, kv_type, n_ctx, self.crew, self.most_threads)

    def _context(self, n_ctx: int | None, kv_type: KVType) -> int:
        """Check a wished context against the memory, or choose one."""
        needs = memory_needs(self.config, kv_type)
        available = host.available_memory_bytes()
        most = needs.largest_context(available - RESERVE_BYTES)
        if n_ctx is None:
            n_ctx = min(self.config.context_length, DEFAULT_CONTEXT, max(256, most // 2))
        if n_ctx < 1:
            raise MemoryPlanError(f"a context of {n_ctx} tokens is not possible: must be at least 1")
        if not most:
            raise MemoryPlanError(
                f"the program needs about {shown_bytes(RESERVE_BYTES)} beside the model, but only "
                f"{shown_bytes(available)} of memory are available (end other programs, or raise a container's limit)"
            )
        if n_ctx > most:
            wanted = shown_bytes(needs.bytes_for(n_ctx))
            raise MemoryPlanError(
                f"a context of {n_ctx:,} tokens needs {wanted} for its KV cache ({kv_type.name}); "
                f"{shown_bytes(available)} are available, {shown_bytes(RESERVE_BYTES)} of them for the program: "
                f"the largest that fits is {most:,}"
            )
        return n_ctx


def _checked_threads(name: str, n: int) -> int:
    if not 1 <= n <= MOST_THREADS:
        raise EngineError(f"{name} is {n}: must be 1 to {MOST_THREADS}")
    return n
