"""An opened model file: memory-mapped weights, threads, and the sessions that share both."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.assistant import open_assistant
from engine.batch import Batch
from engine.cache.kv_cache import AUTO, AUTO_TYPES, kv_type_of, memory_needs
from engine.cache.kv_types import KVType
from engine.cache.rotation import with_yarn, yarn_obstacle
from engine.cache.states import CHECKPOINT_BYTES
from engine.config import CAUSAL
from engine.errors import (
    EngineError,
    MemoryPlanError,
    ModelChangedError,
    UnsupportedCPUError,
)
from engine.gguf.title import model_title
from engine.loader import validate
from engine.machine import address_space, host, residency
from engine.machine.memory import shown_bytes
from engine.models import expected_tensors, predictor_problem
from engine.plan.buffers import MAX_BLOCK_TOKENS
from engine.plan.compilation import Progress, ProgressCallback
from engine.plan.crew import MOST_THREADS
from engine.sampling.advice import refused_keys
from engine.sampling.guessing import ALL_KINDS, GuessKind
from engine.session import Session
from engine.vision.known import KnownPictures
from engine.weights.modes import MMAP, RESERVE_BYTES, WEIGHT_MODES, BothCopies, WeightModes
from engine.weights.weights import multiplied

if TYPE_CHECKING:
    from engine.adapters import Adapters
    from engine.cache.layer_memory import MemoryNeeds
    from engine.config import ModelConfig
    from engine.embedding import Embedder
    from engine.pipeline import Pipeline
    from engine.plan.crew import Crew
    from engine.prompt.chat_prompt import ChatPrompt
    from engine.prompt.chat_template import ChatTemplate
    from engine.weights.weights import Tensor, Weights

DEFAULT_CONTEXT = 8192
ROOMY_CONTEXT = 1 << 15
"""Context in which the first request of a program that works on code fits, in tokens."""
"""Limit on the default context in tokens. A larger one costs memory that few conversations use."""
CHECKPOINT_SHARE = 4
"""Copies of recurrent states take at most this fraction, 1 / 4, of the available memory."""
ROPE_SCALINGS = "file", "yarn"


class Model:
    """A model file with its weights mapped into memory, and the threads that compute with them.

    Make one with ``Model.open`` and end it with ``close``. One thread at a time may use it and its
    sessions, except where a method says "any thread".

    Attributes:
        path: path of the file; the first one of a model in several files.
        config: hyperparameters of the file.
        tokenizer: tokenizer of the file's vocabulary.
        name: title of the model, unsanitised.
        quantization: name of the mix of weight types, such as ``"Q4_K_M"``.
        threads: threads of a decode step, 1 to ``MOST_THREADS``.
        prefill_threads: threads of a prefill block, 1 to ``MOST_THREADS``.
        weights_mode: weights mode in use, one of ``WEIGHT_MODES``.
        weights_bytes: bytes of all tensors that are loaded into memory.
        bytes_per_token: bytes of weights that one decode step reads.
        rope_scaling: one of ``ROPE_SCALINGS``, for positions beyond the trained context in later
            sessions: those of the file, or stretched by YaRN.
        checkpoint_bytes: limit on the checkpoints of recurrent states in a later session.
        pictures: pictures that prompts may contain.
        guess_kinds: kinds of guesses in a later session.
        assistant: small model that guesses the next tokens, if there is one.
    """

    def __init__(
        self,
        path: Path,
        threads: int,
        prefill_threads: int,
        weights: str,
        progress: ProgressCallback | None,
        has_predictor: bool,
        assistant: str | os.PathLike[str] | None,
    ) -> None:
        self._file = validate(path)
        self._weights = self._file.weights
        self.path = path
        self.config = self._file.config
        if not has_predictor:
            self.config = replace(self.config, predictor=None)
        self.tokenizer = self._file.tokenizer
        self.weights_bytes = self._file.weights.memory_bytes
        self.quantization = self._file.weights.quantization_label()
        self.threads = threads
        self.prefill_threads = prefill_threads
        self.weights_mode = MMAP
        self.checkpoint_bytes = CHECKPOINT_BYTES
        self.rope_scaling = ROPE_SCALINGS[0]
        row_width = self.config.dim * (1 + self.config.n_deepstack)
        self.pictures = KnownPictures(self.tokenizer, row_width)
        self.guess_kinds: Collection[GuessKind] = ALL_KINDS
        self._adapters: Adapters | None = None
        self.assistant = open_assistant(assistant, self.config)
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
        has_predictor: bool = True,
        mmproj: str | os.PathLike[str] | None = None,
        assistant: str | os.PathLike[str] | None = None,
        progress: ProgressCallback | None = None,
    ) -> Model:
        """Open and check a GGUF file. Kernels are compiled when the first session is made.

        Args:
            path: path of a .gguf file; the first one of a model in several files.
            threads: threads of decode, 1 to ``MOST_THREADS``; None for one per physical core that
                this process may use.
            weights: ``"mmap"`` reads weights from the file's map; ``"huge"`` copies them once into
                memory advised for huge pages.
            prefill_threads: threads of prefill, 1 to ``MOST_THREADS``; None for as many as decode.
            pinned: bind every thread but the caller's to one logical CPU, physical cores first.
            has_predictor: guess tokens by the model's own block, if the file has one; this takes
                memory, and a few per cent more time for prompts.
            mmproj: path of the file of the model's encoder for pictures, "auto" for one in the
                model's folder that fits, if there is one; None for none.
            assistant: path of a small model that guesses the next tokens of this one; None for
                none. If it cannot be used, the model opens without, and ``notices`` say why.
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
        model = cls(Path(path), decode, prefill, weights, progress, has_predictor, assistant)
        model.set_pinned(pinned)
        if mmproj is not None:
            try:
                _open_encoder(model, mmproj)
            except BaseException:
                model.close()
                raise
        return model

    @property
    def shown_name(self) -> str:
        """Name of the file, escaped for a one-line message."""
        return self._file.gguf.shown_name

    @property
    def name(self) -> str:
        """Title of the model (``model_title``), unsanitised."""
        return model_title(self._file.gguf.metadata, self.path)

    @property
    def weights(self) -> Weights:
        """Tensors of the model in their present place."""
        return self._weights

    @property
    def file_bytes(self) -> int:
        """Bytes of all files of the model."""
        return self._file.gguf.file_bytes

    @property
    def bytes_per_token(self) -> int:
        """Bytes of weights that one decode step reads: one row of the embedding table, and all of
        every other matrix."""
        if self._adapters is None:
            return self._file_bytes_per_token
        return self._file_bytes_per_token + self._adapters.bytes_per_token

    @cached_property
    def _file_bytes_per_token(self) -> int:
        tensors = self._weights.tensors
        specs = multiplied(tensors, expected_tensors(self.config))
        return sum(specs[name].bytes_read(tensor.size_bytes) for name, tensor in tensors.items())

    @property
    def fingerprint(self) -> str:
        """Hash of the file's metadata, of samples of its weights, and of the adapters, 64
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
        return fingerprint_of(self._file.gguf)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """Chat template of the file, or ChatML if it has no usable one."""
        from engine.prompt.chat_template import ChatTemplate

        tokenizer = self.tokenizer
        bos = tokenizer.token_text(tokenizer.bos_id)
        eos = tokenizer.token_text(tokenizer.eos_id)
        return ChatTemplate.from_metadata(self._file.gguf.metadata, self.shown_name, bos, eos)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata of the file, unsanitised."""
        return self._file.gguf.metadata

    @property
    def notices(self) -> list[str]:
        """Warnings about this model on this machine, one line each; complete once a session exists.

        A replaced chat template is reported only after ``chat`` was called.
        """
        notices = list(self.tokenizer.notices)
        if "chat_template" in self.__dict__ and self.chat_template.notice:
            notices.append(self.chat_template.notice)
        if self._adapters is not None:
            notices += self._adapters.notices
        if problem := predictor_problem(self._file.gguf):
            notices.append(f"{problem}: the block for guesses is not used")
        if self.assistant.problem:
            notices.append(self.assistant.problem)
        if refused := refused_keys(self.metadata):
            notices.append(
                f"{self.shown_name}: no use is made of {', '.join(refused)} (no such value is "
                f"allowed)"
            )
        notices += dict.fromkeys(line for session in self._sessions for line in session.notices)
        jit = sys.modules.get("engine.jit")  # None if nothing was compiled
        if jit is not None and jit.CACHE_DIRECTORY is None:
            notices.append(
                "no private cache directory: kernels are compiled at every start "
                "(set JALOPY_CACHE_DIR to a directory of your own)"
            )
        return notices

    @property
    def crew(self) -> Any:
        """Threads that run the plans; they start when the first plan runs."""
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
        """Embedder of texts, with its own memory.

        Raises:
            EngineError: the errors of ``session``.
        """
        from engine.embedding import Embedder, answer_ids_of

        kv_type = kv_type_of("f16", self.config)
        n_ctx = self._context(None, kv_type)
        self.bring_weights_in()
        pipeline = self._pipeline(kv_type, n_ctx, is_embedding=True)
        pipeline.compile(self._progress)
        needs = self._needs(kv_type, host.available_memory_bytes())
        answer_ids = answer_ids_of(self.tokenizer, self.metadata, self.config.pooling)
        return Embedder(
            pipeline,
            n_ctx,
            needs,
            self.shown_name,
            answer_ids,
            lambda: self.prefill_threads,
            lambda: self._use_threads(pipeline),
        )

    def pair_ids(self, query: str, document: str) -> list[int]:
        """Return the tokens of a query and a document for ``embedder.rank``."""
        from engine.embedding import pair_ids

        return pair_ids(self.tokenizer, self.metadata, query, document, self.config.pooling)

    @contextmanager
    def _use_threads(self, pipeline: Pipeline) -> Iterator[None]:
        """Hold the threads inside the ``with`` block, while no session computes."""
        self.refuse_changed_file()
        batch = next(
            (session.batch for session in self._sessions if session.batch is not None), None
        )
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
        default_limit: int = DEFAULT_CONTEXT,
    ) -> Session:
        """Allocate a KV cache and compile the kernels.

        Args:
            n_ctx: size of the context in tokens, at least 1. None for the trained context, limited
                by ``default_limit`` and by half of the context that fits into memory.
            kv: type of the KV cache, a key of ``engine.KV_TYPES``; or "auto" for f16, or a smaller
                type if memory is short for the context.
            progress: called during slow work instead of the model's own callback; its exceptions
                pass through.
            peer: session whose context and KV type this one copies, instead of ``n_ctx`` and
                ``kv``. Different threads may then use the two sessions, and their replies are
                computed together (``engine.batch``).
            default_limit: limit on the context that is chosen if ``n_ctx`` is None. Beyond
                ``ROOMY_CONTEXT`` it is a quarter of what fits, which leaves memory for three peers.

        Raises:
            MemoryPlanError: the cache does not fit into memory (the message names the largest
                context that does), ``kv`` is unknown, or the model's heads do not suit it.
            EngineError: the context is longer than the trained one and YaRN cannot stretch this
                model's ropes, or the model writes no text.
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
            kv_type = self._kv_type_that_fits(n_ctx)
        else:
            kv_type = kv_type_of(kv, self.config)
        promised_bytes = 0 if peer is None else self._promised_bytes(peer)
        n_ctx = self._context(n_ctx, kv_type, promised_bytes, default_limit)
        _check_yarn(self, n_ctx)
        self.bring_weights_in(self._needs(kv_type, host.available_memory_bytes()).bytes_for(n_ctx))
        pipeline = self._pipeline(kv_type, n_ctx, peer)
        pipeline.compile(progress or self._progress)
        notices = _session_notices(self, n_ctx, kv_type, is_automatic=kv == AUTO)
        session = Session(self, pipeline, n_ctx, notices)
        session.guess_kinds = self.guess_kinds
        if peer is not None:
            _share_threads(self.crew, session, peer)
        self._sessions.append(session)
        return session

    def describe_plan(self) -> list[dict[str, Any]]:
        """Return the operations of a decode step in order, each with phase, op, weights, type,
        shape, bytes and threads."""
        plan = self._pipeline(kv_type_of("f16", self.config), 256).plans["decode"]
        return [{**row, "threads": self.threads} for row in plan.describe()]

    def sample_tensors(self) -> list[Tensor]:
        """Return one matrix of every weight type in the file."""
        matrices = [tensor for tensor in self._weights.tensors.values() if tensor.n_rows > 1]
        return list({tensor.quant: tensor for tensor in matrices}.values())

    def set_threads(self, decode: int, prefill: int | None = None) -> None:
        """Change the thread counts, starting with the next step.

        An earlier session keeps its own limit, the ``most_threads`` at the time it was made.

        Args:
            decode: threads of a decode step, 1 to ``MOST_THREADS``.
            prefill: threads of a prefill block, 1 to ``MOST_THREADS``; None for as many as decode.

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
        """Limit on the threads of a new session: the number of logical CPUs, or the counts in use
        if these are higher."""
        return max(self.threads, self.prefill_threads, min(MOST_THREADS, host.cores().most_threads))

    @property
    def can_pin(self) -> bool:
        """Whether this system can bind threads to CPUs (Linux)."""
        return hasattr(os, "sched_setaffinity")

    def set_pinned(self, pinned: bool) -> None:
        """Bind the threads to CPUs, or let the system place them, starting with the next step."""
        self._pinned = pinned
        if self._crew is not None:
            self._crew.set_pinned(pinned)

    def use_weights(
        self, mode: str, progress: ProgressCallback | None = None, keep_copy: bool = False
    ) -> None:
        """Switch all sessions to another place of the weights, starting with their next step. Their
        contents stay.

        Args:
            mode: one of ``WEIGHT_MODES``. ``"huge"`` first copies the weights into huge pages if
                there is no copy yet.
            progress: called while copying, instead of the model's own callback. Its exceptions end
                the copying, and nothing changes.
            keep_copy: keep the copy in huge pages while the map is in use, for a quick switch back.

        Raises:
            MemoryPlanError: the copy does not fit into memory; nothing has changed.
            ModelChangedError: the model file was changed on disk.
        """
        if mode != self.weights_mode:
            self.refuse_changed_file()
        report = partial(self._report_bytes, to=progress)
        weights = self._modes.in_mode(mode, report)
        for session in self._sessions:
            session.pipeline.use_weights(weights, keep_copy)
        self.__dict__.pop("embedder", None)  # its plans point to the old place
        self._weights = weights
        self.weights_mode = mode
        if mode == MMAP and not keep_copy:
            self._modes.let_copy_go()
            if self._sessions:
                self.bring_weights_in()

    def use_adapters(self, chosen: Sequence[tuple[str | os.PathLike[str], float]]) -> None:
        """Change the weights of all sessions by low-rank adapters, which replace earlier ones.

        All tokens of the sessions are dropped, since other weights computed them.

        Args:
            chosen: (path, scale) of each adapter. Adapters add up; an empty list removes all.

        Raises:
            EngineError: the errors of ``load_adapters``; nothing has changed.
        """
        from engine.adapters import load_adapters

        earlier = self._weights.low_ranks
        done: list[Session] = []
        adapters = None
        if chosen:
            adapters = load_adapters(chosen, self.config, self._weights)
        self._modes.adapt({} if adapters is None else adapters.low_ranks)
        try:
            for session in self._sessions:
                session.reset()
                done.append(session)
        except BaseException:
            self._modes.adapt(earlier)
            for session in done:
                session.reset()
            raise
        self._adapters = adapters
        self.__dict__.pop("embedder", None)

    def room_for_both_modes(self) -> BothCopies:
        """Return the memory that the weights need in the map and in huge pages at once, and the
        available memory."""
        return self._modes.room_for_both()

    def read_bandwidth_gbps(
        self, threads: int | None = None, is_unwanted: Callable[[], bool] = lambda: False
    ) -> float:
        """Measure this machine's read-only memory bandwidth, in GB/s (10^9 bytes per second).

        Args:
            threads: number of reading threads; None for those of decode.
            is_unwanted: called every few milliseconds; returns True to end the measurement.

        Raises:
            Cancelled: ``is_unwanted`` returned True, or the threads were cancelled.
            MemoryPlanError: the buffer does not fit into memory.
        """
        from engine.plan.profile import read_bandwidth_gbps

        return read_bandwidth_gbps(self.crew, threads or self.threads, is_unwanted=is_unwanted)

    def clock_ghz(self) -> float | None:
        """Measure the clock of a computing core, in GHz; None if that is not possible.

        Raises:
            Cancelled: the threads were cancelled.
        """
        from engine.plan.clock import clock_ghz

        return clock_ghz(self.crew)

    def resident_weight_bytes(self) -> int | None:
        """Return the bytes of the weights that are in memory now; None if the system does not say.

        Any thread may call it.
        """
        return self._weights.resident_bytes()

    def refuse_changed_file(self) -> None:
        """Check that the file is unchanged. Call it before reading the map, since reading a
        shortened file ends the process.

        Raises:
            ModelChangedError: the file was changed on disk since it was opened.
        """
        if self._file.gguf.changed():
            raise ModelChangedError(
                f"{self.shown_name}: the file was changed since it was opened (open it again)"
            )
        if self.assistant.assistant is not None:
            self.assistant.assistant.refuse_changed_file()

    @property
    def unwritten_bytes(self) -> int:
        """Memory of sessions, embedder and encoder that is not in use yet, which the system counts
        as available."""
        n_bytes = sum(session.unwritten_bytes for session in list(self._sessions))
        n_bytes += self.pictures.unused_bytes
        embedder: Embedder | None = self.__dict__.get("embedder")
        if embedder is not None:
            n_bytes += embedder.unwritten_bytes
        return n_bytes

    def forget(self, session: Session) -> None:
        """Remove a closed session."""
        if session in self._sessions:
            self._sessions.remove(session)

    def close(self) -> None:
        """End the threads and unmap the file. Closing twice is harmless."""
        if self._mapping is not None:
            self._mapping.stop()
        for session in list(self._sessions):
            session.close()
        self.__dict__.pop("embedder", None)
        self.pictures.close()
        if self._crew is not None:
            self._crew.close()
        if "chat_template" in self.__dict__:
            self.chat_template.close()
        self.assistant.close()
        self._file.gguf.close()

    def bring_weights_in(self, other_bytes: int = 0) -> None:
        """Load the weights into memory in order, if they are not there yet, or as many as fit.

        Args:
            other_bytes: bytes of memory that are needed next to the weights and the program.
        """
        is_needed = self._weights.resident_share() < residency.RESIDENT_ENOUGH
        available_bytes = host.available_memory_bytes() if is_needed else None
        other_bytes += RESERVE_BYTES + self.pictures.unused_bytes
        self._weights.fit_into(available_bytes, other_bytes)
        if is_needed and (places := self._weights.places_to_read()):
            residency.read_in_order(places, self._report_bytes)
        if self.assistant.assistant is not None:
            self.assistant.assistant.bring_weights_in()

    def _report_bytes(self, done: int, total: int, to: ProgressCallback | None = None) -> None:
        report = to or self._progress
        if report is not None:
            report(Progress("load", self.shown_name, done, total))

    @property
    def huge_bytes(self) -> int:
        """Bytes of the weights that are in huge pages now."""
        return self._weights.huge_bytes

    def _pipeline(
        self, kv_type: KVType, n_ctx: int, peer: Session | None = None, is_embedding: bool = False
    ) -> Pipeline:
        self.refuse_changed_file()
        try:
            from engine.pipeline import Pipeline

            config = self.config
            if self.rope_scaling == "yarn":
                config = with_yarn(config, n_ctx)
            return Pipeline(
                config,
                self._weights,
                kv_type,
                n_ctx,
                self.crew,
                self.most_threads,
                self._checkpoint_budget(host.available_memory_bytes()),
                None if peer is None else peer.pipeline,
                is_embedding,
                None if is_embedding else self.assistant.assistant,
            )
        except ImportError as error:
            if address_space.limit_bytes() is not None:
                raise  # the limit on memory is a more likely cause than the processor
            raise UnsupportedCPUError(f"numba cannot run on this processor: {error}") from None

    def _needs(self, kv_type: KVType, available_bytes: int) -> MemoryNeeds:
        return memory_needs(self.config, kv_type, self._checkpoint_budget(available_bytes))

    def _checkpoint_budget(self, available_bytes: int) -> int:
        """Return the bytes for checkpoints: the limit, or less if memory is short."""
        return min(
            self.checkpoint_bytes, max(0, available_bytes - RESERVE_BYTES) // CHECKPOINT_SHARE
        )

    def _kv_type_that_fits(self, n_ctx: int | None) -> KVType:
        """Return the most exact KV type with which a context fits into memory.

        Args:
            n_ctx: requested context; None for the default one.
        """
        if n_ctx is None:
            n_tokens = 2 * _default_context(self.config)
            names = AUTO_TYPES[:-1]
        else:
            n_tokens = n_ctx
            names = AUTO_TYPES
        kv_type = kv_type_of(AUTO_TYPES[0], self.config)
        for name in names:
            with suppress(MemoryPlanError):  # the type does not suit the model's heads
                kv_type = kv_type_of(name, self.config)
                available = host.available_memory_bytes() - self.pictures.unused_bytes
                if n_tokens <= self._needs(kv_type, available).largest_context(
                    available - RESERVE_BYTES
                ):
                    break
        return kv_type

    def _promised_bytes(self, peer: Session) -> int:
        """Return the bytes of memory that a session and its peers may still start to use."""
        peers = [
            session
            for session in self._sessions
            if session is peer or (session.batch is not None and session.batch is peer.batch)
        ]
        return sum(session.unwritten_bytes for session in peers)

    def _context(
        self,
        n_ctx: int | None,
        kv_type: KVType,
        promised_bytes: int = 0,
        default_limit: int = DEFAULT_CONTEXT,
    ) -> int:
        """Check a requested context against the available memory, or choose one."""
        available = host.available_memory_bytes() - promised_bytes - self.pictures.unused_bytes
        needs = self._needs(kv_type, available)
        largest = needs.largest_context(available - RESERVE_BYTES)
        if n_ctx is None:
            roomy = max(min(largest // 2, ROOMY_CONTEXT), largest // 4)
            n_ctx = min(self.config.context_length, default_limit, max(256, roomy))
        if n_ctx < 1:
            raise MemoryPlanError(
                f"a context of {n_ctx} tokens is not possible: must be at least 1"
            )
        if self.config.learned_positions:
            n_ctx = min(n_ctx, self.config.learned_positions)
        if not largest and needs.fixed_bytes > max(0, available - RESERVE_BYTES):
            raise MemoryPlanError(
                f"this model's recurrent layers need {shown_bytes(needs.fixed_bytes)} for "
                f"what they remember; "
                f"{shown_bytes(available)} are available, {shown_bytes(RESERVE_BYTES)} of "
                f"them for the program"
            )
        if not largest:
            raise MemoryPlanError(
                f"the program needs about {shown_bytes(RESERVE_BYTES)} next to the model, but only "
                f"{shown_bytes(available)} of memory are available (end other programs, or "
                f"raise a container's limit)"
            )
        if n_ctx > largest:
            needed = shown_bytes(needs.bytes_for(n_ctx))
            problem = (
                f"a context of {n_ctx:,} tokens needs {needed} for its KV cache ({kv_type.name}); "
                f"{shown_bytes(available)} are available, {shown_bytes(RESERVE_BYTES)} of "
                f"them for the program: the largest that fits is {largest:,}"
            )
            trained = self.config.context_length
            if trained < largest:
                problem += f" (the model was trained for {trained:,})"
            raise MemoryPlanError(problem)
        return n_ctx


def _open_encoder(model: Model, path: str | os.PathLike[str]) -> None:
    """Open the encoder of a model, before its first session; ``AUTO`` looks for one.

    Layers in which rows of a picture see each other need larger blocks and rings.
    """
    from engine.vision.encoder import PictureEncoder
    from engine.vision.finding import find_mmproj

    if path == AUTO:
        near = find_mmproj(model.path, model.config)
        if near is None:
            return
        path = near
    encoder = PictureEncoder.open(path, model.crew, model.prefill_threads)
    model.pictures.encoder = encoder
    encoder.check_fits(model.config, model.shown_name)
    if encoder.visibility != CAUSAL:
        model.config = replace(
            model.config,
            layers=tuple(
                replace(layer, picture_rows=MAX_BLOCK_TOKENS) for layer in model.config.layers
            ),
        )


def _share_threads(crew: Crew, session: Session, peer: Session) -> None:
    """Put two sessions into one batch."""
    batch = peer.batch or Batch(crew)
    for member in (peer, session):
        batch.join(member.pipeline, member.cached)
        member.forward.batch = batch


def _default_context(config: ModelConfig) -> int:
    """Return the context that is chosen if memory allows, in tokens."""
    return min(config.context_length, DEFAULT_CONTEXT)


def _check_yarn(model: Model, n_ctx: int) -> None:
    trained = model.config.context_length
    if (
        model.rope_scaling == "yarn"
        and n_ctx > trained
        and (why := yarn_obstacle(model.config, model.weights))
    ):
        raise EngineError(
            f"{model.shown_name}: its context of {trained:,} tokens cannot be stretched by "
            f"YaRN: {why} "
            "(choose a smaller context, or rope_scaling file)"
        )


def _session_notices(model: Model, n_ctx: int, kv_type: KVType, is_automatic: bool) -> list[str]:
    """Return warnings about a session; ``is_automatic``: whether the user left the KV type to
    the engine."""
    notices = []
    trained = model.config.context_length
    if is_automatic and not kv_type.is_exact:
        notices.append(
            f"keys and values are kept in {kv_type.name}, which is less exact: memory is "
            f"short for {n_ctx:,} tokens in f16 (a smaller context stays exact)"
        )
    if n_ctx > trained and model.rope_scaling != "yarn":
        advice = "rope_scaling yarn helps"
        if yarn_obstacle(model.config, model.weights):
            advice = "a smaller context is better"
        notices.append(
            f"the context of {n_ctx:,} tokens is longer than the {trained:,} that the model "
            f"was trained for: beyond these it may write nonsense ({advice})"
        )
    return notices


def _checked_threads(name: str, n: int) -> int:
    if not 1 <= n <= MOST_THREADS:
        raise EngineError(f"{name} is {n}: must be 1 to {MOST_THREADS}")
    return n
