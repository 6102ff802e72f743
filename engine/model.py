"""An opened model file: memory-mapped weights, a crew of threads, and the sessions that share
both."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.batch import Batch
from engine.cache.kv_cache import AUTO, AUTO_TYPES, kv_type_of, memory_needs
from engine.cache.kv_types import KVType
from engine.cache.rotation import with_yarn, yarn_obstacle
from engine.cache.states import CHECKPOINT_BYTES
from engine.errors import EngineError, MemoryPlanError, ModelChangedError, UnsupportedCPUError
from engine.gguf.title import model_title
from engine.loader import validate
from engine.machine import address_space, host, residency
from engine.machine.memory import shown_bytes
from engine.models import expected_tensors
from engine.plan.compilation import Progress, ProgressCallback
from engine.plan.crew import MOST_THREADS
from engine.sampling.advice import refused_keys
from engine.session import Session
from engine.weights.modes import MMAP, RESERVE_BYTES, WEIGHT_MODES, BothCopies, WeightModes
from engine.weights.weights import multiplied

if TYPE_CHECKING:
    from engine.adapters import Adapters
    from engine.cache.layer_memory import MemoryNeeds
    from engine.embedding import Embedder
    from engine.pipeline import Pipeline
    from engine.plan.crew import Crew
    from engine.prompt.chat_prompt import ChatPrompt
    from engine.prompt.chat_template import ChatTemplate
    from engine.weights.weights import Tensor, Weights

DEFAULT_CONTEXT = 8192
"""Limit on the context chosen by default, in tokens: a larger one costs memory that few
conversations use."""
CHECKPOINT_SHARE = 4
"""Copies of recurrent states take at most one byte in this many of the memory available."""
ROPE_SCALINGS = "file", "yarn"


class Model:
    """A model file with its weights mapped into memory, and the threads that compute with them.

    Make one with ``Model.open`` and end it with ``close``. One thread at a time may use it and its
    sessions, except where a method says "any thread".

    Attributes:
        path: of the file; the first part of a model in several files.
        config: hyperparameters read from the file.
        tokenizer: the file's vocabulary.
        name: what to call it, unsanitised.
        quantization: name of the mix of weight types, such as ``"Q4_K_M"``.
        threads: threads of a decode step, 1 to ``MOST_THREADS``.
        prefill_threads: threads of a prefill block, 1 to ``MOST_THREADS``.
        weights_mode: the mode in use, one of ``WEIGHT_MODES``.
        weights_bytes: bytes of all tensors that are brought into memory.
        bytes_per_token: bytes of weights that one decode step reads.
        rope_scaling: one of ``ROPE_SCALINGS``: how a later session's positions beyond the trained
            context are told
            apart: as the file says, or stretched by YaRN.
        checkpoint_bytes: limit on the copies of recurrent layers' states that a later session keeps
            to go back to.
    """

    def __init__(
        self,
        path: Path,
        threads: int,
        prefill_threads: int,
        weights: str,
        progress: ProgressCallback | None,
    ) -> None:
        self._checked = validate(path)
        self._weights = self._checked.weights
        self.path = path
        self.config = self._checked.config
        self.tokenizer = self._checked.tokenizer
        self.weights_bytes = self._checked.weights.memory_bytes
        self.quantization = self._checked.weights.quantization_label()
        self.threads = threads
        self.prefill_threads = prefill_threads
        self.weights_mode = MMAP
        self.checkpoint_bytes = CHECKPOINT_BYTES
        self.rope_scaling = ROPE_SCALINGS[0]
        self._adapters: Adapters | None = None
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
            path: of a .gguf file; the first part of a model in several files.
            threads: threads of decode, 1 to ``MOST_THREADS``; None takes one per physical core this
                process may use.
            weights: ``"mmap"`` reads weights from the file's map; ``"huge"`` copies them once into
                memory advised for huge pages.
            prefill_threads: threads of prefill, 1 to ``MOST_THREADS``; None takes as many as
                decode.
            pinned: bind every thread but the caller's to one logical CPU, physical cores first
                (Linux only).
            progress: called during slow work (loading, compiling), now and in later sessions.

        Raises:
            FileUnreadableError: the file is missing, unreadable or not a regular file.
            GGUFError: the file is damaged or not GGUF.
            UnsupportedArchitectureError: the engine does not implement the architecture.
            UnsupportedQuantError: a tensor has an unsupported type.
            TokenizerError: the vocabulary is damaged or not supported.
            MemoryPlanError: ``weights="huge"`` does not fit into memory.
            EngineError: an argument is out of range; base of all the above, one line for the user.
        """
        if weights not in WEIGHT_MODES:
            raise EngineError(f"weights is '{weights}': must be one of {', '.join(WEIGHT_MODES)}")
        decode = _checked_threads(
            "threads", threads or min(MOST_THREADS, host.cores().default_threads)
        )
        prefill = _checked_threads("prefill_threads", prefill_threads or decode)
        model = cls(Path(path), decode, prefill, weights, progress)
        model.set_pinned(pinned)
        return model

    @property
    def shown_name(self) -> str:
        """The file's name, escaped for a one-line message."""
        return self._checked.gguf.shown_name

    @property
    def name(self) -> str:
        """What to call it (``model_title``), unsanitised."""
        return model_title(self._checked.gguf.metadata, self.path)

    @property
    def weights(self) -> Weights:
        """Its tensors, where they are now."""
        return self._weights

    @property
    def file_bytes(self) -> int:
        """Of all its files."""
        return self._checked.gguf.file_bytes

    @property
    def bytes_per_token(self) -> int:
        """Bytes of weights that one decode step reads: one row of the embedding table, every other
        matrix whole."""
        return self._file_bytes_per_token + (
            self._adapters.bytes_per_token if self._adapters is not None else 0
        )

    @cached_property
    def _file_bytes_per_token(self) -> int:
        tensors = self._weights.tensors
        specs = multiplied(tensors, expected_tensors(self.config))
        return sum(specs[name].bytes_read(tensor.size_bytes) for name, tensor in tensors.items())

    @property
    def fingerprint(self) -> str:
        """Hash of the file's metadata, of samples of its weights, and of its adapters, 64
        hexadecimal digits.

        Raises:
            ModelChangedError: the file was changed on disk since it was opened.
        """
        if self._adapters is None:
            return self._file_fingerprint
        return hashlib.sha256((self._file_fingerprint + self._adapters.key).encode()).hexdigest()

    @cached_property
    def _file_fingerprint(self) -> str:
        from engine.saved_state.fingerprint import fingerprint_of

        self.refuse_changed_file()
        return fingerprint_of(self._checked.gguf)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The chat template of the file, or ChatML if it has no usable one."""
        from engine.prompt.chat_template import ChatTemplate

        tokenizer = self.tokenizer
        bos = tokenizer.token_text(tokenizer.bos_id)
        eos = tokenizer.token_text(tokenizer.eos_id)
        return ChatTemplate.from_metadata(self._checked.gguf.metadata, self.shown_name, bos, eos)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Keys and values of the file, unsanitised."""
        return self._checked.gguf.metadata

    @property
    def notices(self) -> list[str]:
        """Warnings about this model on this machine, one line each; complete once a session exists.

        A replaced chat template is reported only after ``chat`` was called.
        """
        if "chat_template" in self.__dict__:
            template = self.chat_template
        else:
            template = None
        found = [
            *self.tokenizer.notices,
            *filter(None, [template.notice if template is not None else None]),
        ]
        if self._adapters is not None:
            found += self._adapters.notices
        else:
            found += ()
        if refused := refused_keys(self.metadata):
            found.append(
                f"{self.shown_name}: no use is made of {', '.join(refused)} (no such value is "
                f"allowed)"
            )
        found += dict.fromkeys(line for session in self._sessions for line in session.notices)
        jit = sys.modules.get("engine.jit")  # where nothing was compiled, nothing need be kept
        if jit is not None and jit.CACHE_DIRECTORY is None:
            found.append(
                "no private cache directory: kernels are compiled at every start "
                "(set JALOPY_CACHE_DIR to a directory of your own)"
            )
        return found

    @property
    def crew(self) -> Any:
        """The worker threads; started when the first plan runs."""
        if self._crew is None:
            from engine.plan.crew import Crew

            self._crew = Crew(self._pinned)
        return self._crew

    def chat(self) -> ChatPrompt:
        """Return a new, empty conversation for this model's tokenizer and chat template."""
        from engine.prompt.chat_prompt import ChatPrompt

        return ChatPrompt(self.tokenizer, self.chat_template)

    @cached_property
    def embedder(self) -> Embedder:
        """What makes vectors of texts; it has a memory of its own, next to the sessions'.

        Raises:
            EngineError: as ``session``.
        """
        from engine.embedding import Embedder, answers_of

        kv_type = kv_type_of("f16", self.config)
        n_ctx = self._context(None, kv_type)
        self.bring_weights_in()
        pipeline = self._pipeline(kv_type, n_ctx, is_embedding=True)
        pipeline.compile(self._progress)
        needs = self._needs(kv_type, host.available_memory_bytes())
        answers = answers_of(self.tokenizer, self.metadata, self.config.pooling)
        return Embedder(
            pipeline,
            n_ctx,
            needs,
            self.shown_name,
            answers,
            lambda: self.prefill_threads,
            lambda: self._turn(pipeline),
        )

    def pair_ids(self, query: str, document: str) -> list[int]:
        """Return the tokens of a query and a document for ``embedder.rank``."""
        from engine.embedding import pair_ids

        return pair_ids(self.tokenizer, self.metadata, query, document, self.config.pooling)

    @contextmanager
    def _turn(self, pipeline: Pipeline) -> Iterator[None]:
        """Have the threads while no session computes."""
        self.refuse_changed_file()
        batch = next((one.batch for one in self._sessions if one.batch is not None), None)
        if batch is not None:
            with batch.use_threads(pipeline):
                yield
        else:
            self.crew.clear_cancel()
            yield

    def session(
        self,
        n_ctx: int | None = None,
        kv: str = "f16",
        progress: ProgressCallback | None = None,
        peer: Session | None = None,
    ) -> Session:
        """Allocate a cache and compile what it needs.

        Args:
            n_ctx: size of the context in tokens, at least 1. None takes the trained context,
                limited by ``DEFAULT_CONTEXT`` and by half of what fits into memory.
            kv: type of the KV cache, a key of ``engine.KV_TYPES``; or "auto": f16, or a smaller one
                where memory is short for the context.
            progress: called during slow work instead of the model's own callback; its exceptions
                pass through.
            peer: a session whose context and type of cache this one has, too, in place of ``n_ctx``
                and ``kv``. From then on each of them may have a thread of its own, and what they
                write is computed together (``engine.batch``).

        Raises:
            MemoryPlanError: the cache does not fit (the message names the largest context that
                does), ``kv`` is unknown, or the model's heads do not suit it.
            EngineError: the context is longer than the trained one, and ``rope_scaling`` is not for
                this model; or the model writes no text.
            ModelChangedError: the model file was changed on disk.
            UnsupportedCPUError: the kernels cannot be compiled for this processor.
        """
        if self.config.is_encoder:
            name = self.shown_name
            raise EngineError(
                f"{name}: makes vectors of texts and writes none (jalopy embed {name} TEXT)"
            )
        if peer is not None:
            n_ctx = peer.n_ctx
            kv = peer.kv_type
        if kv == AUTO:
            kv_type = self._roomy_type(n_ctx)
        else:
            kv_type = kv_type_of(kv, self.config)
        n_ctx = self._context(n_ctx, kv_type, 0 if peer is None else self._promised_bytes(peer))
        self._refuse_stretching(n_ctx)
        self.bring_weights_in(self._needs(kv_type, host.available_memory_bytes()).bytes_for(n_ctx))
        pipeline = self._pipeline(kv_type, n_ctx, peer)
        pipeline.compile(progress or self._progress)
        session = Session(
            self, pipeline, n_ctx, self._notices_of(n_ctx, kv_type if kv == AUTO else None)
        )
        if peer is not None:
            _share_threads(self.crew, session, peer)
        self._sessions.append(session)
        return session

    def describe_plan(self) -> list[dict[str, Any]]:
        """The operations of one decode step, in order; each with phase, op, weights, type, shape,
        bytes and threads."""
        plan = self._pipeline(kv_type_of("f16", self.config), 256).plans["decode"]
        return [{**row, "threads": self.threads} for row in plan.describe()]

    def sample_tensors(self) -> list[Tensor]:
        """Return one matrix of every weight type in the file."""
        matrices = [tensor for tensor in self._weights.tensors.values() if tensor.n_rows > 1]
        return list({tensor.quant: tensor for tensor in matrices}.values())

    def set_threads(self, decode: int, prefill: int | None = None) -> None:
        """Change the thread counts; takes effect with the next step.

        A session made earlier keeps to its own limit, the ``most_threads`` of the time it was made.

        Args:
            decode: threads of a decode step, 1 to ``MOST_THREADS``.
            prefill: threads of a prefill block, 1 to ``MOST_THREADS``; None takes as many as
                decode.

        Raises:
            EngineError: a count is out of range.
        """
        self.threads = _checked_threads("threads", decode)
        self.prefill_threads = _checked_threads("prefill_threads", prefill or decode)

    @property
    def pinned(self) -> bool:
        """Whether every thread but the caller's is bound to one logical CPU."""
        return self._pinned

    @property
    def most_threads(self) -> int:
        """Limit on a new session's threads: the number of logical CPUs, or the counts in use if
        those are higher."""
        return max(self.threads, self.prefill_threads, min(MOST_THREADS, host.cores().most_threads))

    @property
    def can_pin(self) -> bool:
        """Whether this system can bind threads to CPUs (Linux)."""
        return hasattr(os, "sched_setaffinity")

    def set_pinned(self, pinned: bool) -> None:
        """Bind the threads to CPUs, or let the system place them; takes effect with the next
        step."""
        self._pinned = pinned
        if self._crew is not None:
            self._crew.set_pinned(pinned)

    def use_weights(
        self, mode: str, progress: ProgressCallback | None = None, keep_copy: bool = False
    ) -> None:
        """Switch all sessions to another place of the weights, from their next step on; their
        contents are kept.

        Args:
            mode: one of ``WEIGHT_MODES``. ``"huge"`` first copies the weights into huge pages if
                there is no copy yet.
            progress: called while copying, instead of the model's own callback; an exception from
                it ends the copying and leaves everything unchanged.
            keep_copy: keep the copy in huge pages while the map is in use, so that switching back
                is immediate.

        Raises:
            MemoryPlanError: the copy does not fit into memory; nothing was changed.
            ModelChangedError: the model file was changed on disk.
        """
        if mode != self.weights_mode:
            self.refuse_changed_file()
        if progress is None:
            report = self._report_bytes
        else:
            report = partial(self._report_bytes, to=progress)
        weights = self._modes.in_mode(mode, report)
        for session in self._sessions:
            session.pipeline.use_weights(weights, keep_copy)
        self.__dict__.pop("embedder", None)  # its plans have the old addresses
        self._weights = weights
        self.weights_mode = mode
        if mode == MMAP and not keep_copy:
            self._modes.let_copy_go()
            if self._sessions:
                self.bring_weights_in()

    def use_adapters(self, chosen: Sequence[tuple[str | os.PathLike[str], float]]) -> None:
        """Change the weights of all sessions by low-rank adapters, in place of those before, from
        the next step on.

        What sessions hold is dropped: it was computed by other weights.

        Args:
            chosen: (path of an adapter, its scale); they add up, and none are none.

        Raises:
            EngineError: as ``load_adapters``; nothing was changed.
        """
        from engine.adapters import load_adapters

        before = self._weights.low_ranks
        done = list[Session]()
        if chosen:
            adapters = load_adapters(chosen, self.config, self._weights)
        else:
            adapters = None
        self._modes.adapt(adapters.low_ranks if adapters is not None else {})
        try:
            for session in self._sessions:
                session.reset()
                done.append(session)
        except BaseException:
            self._modes.adapt(before)
            for session in done:
                session.reset()
            raise
        self._adapters = adapters
        self.__dict__.pop("embedder", None)

    def room_for_both_modes(self) -> BothCopies:
        """Return the memory needed for the weights in the map and in huge pages at once, and the
        memory available."""
        return self._modes.room_for_both()

    def read_bandwidth_gbps(
        self, threads: int | None = None, is_unwanted: Callable[[], bool] = lambda: False
    ) -> float:
        """Measure this machine's read-only memory bandwidth, in GB/s (10^9 bytes per second).

        Args:
            threads: number of reading threads; None takes those of decode.
            is_unwanted: called every few milliseconds; returns True to end the measurement.

        Raises:
            Cancelled: ``is_unwanted`` returned True, or the crew was cancelled.
            MemoryPlanError: the buffer to read does not fit into memory.
        """
        from engine.plan.profile import read_bandwidth_gbps

        return read_bandwidth_gbps(self.crew, threads or self.threads, is_unwanted=is_unwanted)

    def clock_ghz(self) -> float | None:
        """Measure the clock of a computing core, in GHz; None where that cannot be told.

        Raises:
            Cancelled: the crew was cancelled meanwhile.
        """
        from engine.plan.clock import clock_ghz

        return clock_ghz(self.crew)

    def resident_weight_bytes(self) -> int | None:
        """Bytes of the weights that are in memory now; None if the system does not tell.

        Any thread may call it.
        """
        return self._weights.resident_bytes()

    def refuse_changed_file(self) -> None:
        """Check that the file is unchanged; call it before reading the map, since a shortened file
        ends the process.

        Raises:
            ModelChangedError: the file was changed on disk since it was opened.
        """
        if self._checked.gguf.changed():
            raise ModelChangedError(
                f"{self.shown_name}: the file was changed since it was opened (open it again)"
            )

    @property
    def unwritten_bytes(self) -> int:
        """Memory of sessions and embedder that is not in use yet; the system counts it as
        available."""
        embedder: Embedder | None = self.__dict__.get("embedder")
        return sum(one.unwritten_bytes for one in list(self._sessions)) + (
            embedder.unwritten_bytes if embedder else 0
        )

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
        self.__dict__.pop("embedder", None)
        if self._crew is not None:
            self._crew.close()
        if "chat_template" in self.__dict__:
            self.chat_template.close()
        self._checked.gguf.close()

    def bring_weights_in(self, other_bytes: int = 0) -> None:
        """Read what stays in memory once, in order, if it is not cached yet; a part where not all
        of it fits.

        Args:
            other_bytes: what else has to fit, next to the program.
        """
        is_needed = self._weights.resident_share() < residency.RESIDENT_ENOUGH
        if is_needed:
            available_bytes = host.available_memory_bytes()
        else:
            available_bytes = None
        self._weights.fit_into(available_bytes, RESERVE_BYTES + other_bytes)
        if is_needed and (places := self._weights.places_to_read()):
            residency.read_in_order(places, self._report_bytes)

    def _report_bytes(self, done: int, total: int, to: ProgressCallback | None = None) -> None:
        report = to or self._progress
        if report is not None:
            report(Progress("load", self.shown_name, done, total))

    @property
    def huge_bytes(self) -> int:
        """Bytes of weights that the system actually backs with huge pages."""
        return self._weights.huge_bytes

    def _pipeline(
        self, kv_type: KVType, n_ctx: int, peer: Session | None = None, is_embedding: bool = False
    ) -> Pipeline:
        self.refuse_changed_file()
        try:
            from engine.pipeline import Pipeline

            budget_bytes = self._checkpoint_budget(host.available_memory_bytes())
            if self.rope_scaling == "yarn":
                config = with_yarn(self.config, n_ctx)
            else:
                config = self.config
            if peer is None:
                other = None
            else:
                other = peer.pipeline
            room = self.most_threads, budget_bytes
            return Pipeline(
                config, self._weights, kv_type, n_ctx, self.crew, *room, other, is_embedding
            )
        except ImportError as error:
            if address_space.limit_bytes() is not None:
                raise  # the limit on memory is the likelier cause than the processor
            raise UnsupportedCPUError(f"numba cannot run on this processor: {error}") from None

    def _needs(self, kv_type: KVType, available_bytes: int) -> MemoryNeeds:
        return memory_needs(self.config, kv_type, self._checkpoint_budget(available_bytes))

    def _checkpoint_budget(self, available_bytes: int) -> int:
        """Bytes for copies of states: the limit, or less where memory is short."""
        return min(
            self.checkpoint_bytes, max(0, available_bytes - RESERVE_BYTES) // CHECKPOINT_SHARE
        )

    def _roomy_type(self, n_ctx: int | None) -> KVType:
        """Return the most exact type of the cache with which memory has room for a context, or for
        the usual one."""
        if n_ctx is None:
            wanted = 2 * self._usual_context
        else:
            wanted = n_ctx
        found = kv_type_of(AUTO_TYPES[0], self.config)
        for name in AUTO_TYPES[:-1] if n_ctx is None else AUTO_TYPES:
            with suppress(MemoryPlanError):  # heads that do not suit it
                found = kv_type_of(name, self.config)
                available = host.available_memory_bytes()
                if wanted <= self._needs(found, available).largest_context(
                    available - RESERVE_BYTES
                ):
                    break
        return found

    @property
    def _usual_context(self) -> int:
        return min(self.config.context_length, DEFAULT_CONTEXT)

    def _refuse_stretching(self, n_ctx: int) -> None:
        trained = self.config.context_length
        if (
            self.rope_scaling == "yarn"
            and n_ctx > trained
            and (why := yarn_obstacle(self.config, self._weights))
        ):
            raise EngineError(
                f"{self.shown_name}: its context of {trained:,} tokens cannot be stretched by "
                f"YaRN: {why} "
                "(choose a smaller context, or rope_scaling file)"
            )

    def _notices_of(self, n_ctx: int, chosen: KVType | None) -> list[str]:
        """Return warnings about a session; ``chosen``: the type of its cache, where that was left
        to us."""
        found = []
        trained = self.config.context_length
        if chosen is not None and not chosen.is_exact:
            found.append(
                f"keys and values are kept in {chosen.name}, which is less exact: memory is "
                f"short for {n_ctx:,} tokens "
                "in f16 (a smaller context stays exact)"
            )
        if n_ctx > trained and self.rope_scaling != "yarn":
            may_stretch = not yarn_obstacle(self.config, self._weights)
            if may_stretch:
                way = "rope_scaling yarn helps"
            else:
                way = "a smaller context is better"
            found.append(
                f"the context of {n_ctx:,} tokens is longer than the {trained:,} that the "
                f"model was trained for: "
                f"beyond these it may write nonsense ({way})"
            )
        return found

    def _promised_bytes(self, peer: Session) -> int:
        """Memory that a session and its peers have a right to and did not write yet."""
        peers = [
            one
            for one in self._sessions
            if one is peer or (one.batch is not None and one.batch is peer.batch)
        ]
        return sum(one.unwritten_bytes for one in peers)

    def _context(self, n_ctx: int | None, kv_type: KVType, promised_bytes: int = 0) -> int:
        """Check the requested context against available memory, or choose one."""
        available = host.available_memory_bytes() - promised_bytes
        needs = self._needs(kv_type, available)
        most = needs.largest_context(available - RESERVE_BYTES)
        if n_ctx is None:
            n_ctx = min(self._usual_context, max(256, most // 2))
        if n_ctx < 1:
            raise MemoryPlanError(
                f"a context of {n_ctx} tokens is not possible: must be at least 1"
            )
        n_ctx = min(
            n_ctx, self.config.learned_positions or n_ctx
        )  # a model knows no positions after those
        if not most and needs.fixed_bytes > max(0, available - RESERVE_BYTES):
            raise MemoryPlanError(
                f"this model's recurrent layers need {shown_bytes(needs.fixed_bytes)} for "
                f"what they remember; "
                f"{shown_bytes(available)} are available, {shown_bytes(RESERVE_BYTES)} of "
                f"them for the program"
            )
        if not most:
            raise MemoryPlanError(
                f"the program needs about {shown_bytes(RESERVE_BYTES)} next to the model, but only "
                f"{shown_bytes(available)} of memory are available (end other programs, or "
                f"raise a container's limit)"
            )
        if n_ctx > most:
            wanted = shown_bytes(needs.bytes_for(n_ctx))
            trained = self.config.context_length
            raise MemoryPlanError(
                f"a context of {n_ctx:,} tokens needs {wanted} for its KV cache ({kv_type.name}); "
                f"{shown_bytes(available)} are available, {shown_bytes(RESERVE_BYTES)} of "
                f"them for the program: "
                f"the largest that fits is {most:,}"
                + (f" (the model was trained for {trained:,})" if trained < most else "")
            )
        return n_ctx


def _share_threads(crew: Crew, session: Session, peer: Session) -> None:
    """Put two sessions into one batch."""
    batch = peer.batch or Batch(crew)
    for member in (peer, session):
        batch.join(member.pipeline, member.cached.ids)
        member.forward.batch = batch


def _checked_threads(name: str, n: int) -> int:
    if not 1 <= n <= MOST_THREADS:
        raise EngineError(f"{name} is {n}: must be 1 to {MOST_THREADS}")
    return n
