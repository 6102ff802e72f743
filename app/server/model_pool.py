"""The served models: a single one, or those of this machine, each opened when a request names it.

Everything happens in the event loop; searches, and opening and closing models, have threads of
their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from app.models.library.encoders import encoder_bytes_of
from app.models.library.find_by_name import called, models_by_name
from app.models.library.header import HeaderCache, ModelHeader
from app.models.library.model_files import StoredModel, file_at, find_files, places
from app.program import garbage
from app.program.background import in_background
from app.program.garbage import give_back_memory
from app.program.refusals import Refusal
from app.program.settings import Settings
from app.server.api_error import ApiError, unavailable
from app.server.completion_request import LATEST
from app.server.log import log
from app.server.reply_writer import ReplyWriter
from app.server.served_engine import ServedEngine, api_error_of, shutting_down, writes_no_text
from engine.errors import MemoryPlanError
from engine.measure import fit as fitting

LIST_AGE_S = 5.0
"""Age from which the list of files is read again, for a client that lists models or names an
unknown one."""
IDLE_CHECK_PERIOD_S = 1.0
MEMORY_CHECK_PERIOD_S = 0.2
MEMORY_PATIENCE_S = 120.0
"""Time that a model waits for memory of other models that are busy."""
CLOSE_PATIENCE_S = 30.0
"""Time to wait for an engine to end before its memory is needed."""

MakeEngine = Callable[[Path], ServedEngine]
Files = Mapping[str, tuple[StoredModel, ModelHeader]]
"""Files of models and their headers, by the names that lists show."""


class OpenModel:
    """A model that is open or being opened.

    Attributes:
        name: Name that lists show.
        path: Path of the file.
        header: Header of the file.
        engine: The engine.
        opening: Task that is done when the model is open.
        last_used_s: Time of the last use, on the monotonic clock.
        n_waiting: Number of requests that wait for the model, or are about to be submitted.
        closes_when_idle: Whether the model is closed as soon as it is idle.
    """

    opening: asyncio.Task[None]

    def __init__(self, name: str, path: Path, header: ModelHeader, make_engine: MakeEngine) -> None:
        self.name = name
        self.path = path
        self.header = header
        self._make_engine = partial(make_engine, path)
        self.engine = self._make_engine()
        self.last_used_s = time.monotonic()
        self.n_waiting = 0
        self.closes_when_idle = False

    @property
    def writer(self) -> ReplyWriter:
        """Writer of replies, once the model is open.

        Raises:
            ApiError: The model writes no text.
        """
        if self.engine.writer is None:
            raise writes_no_text()
        return self.engine.writer

    @property
    def n_ctx(self) -> int:
        """Tokens of the context; 0 if the model is not open or writes no text."""
        writer = self.engine.writer
        if writer is None:
            return 0
        return writer.local.session.n_ctx

    @property
    def is_idle(self) -> bool:
        """Whether the model is open and unused."""
        return self.opening.done() and not self.n_waiting and not self.engine.is_busy

    async def open(self) -> None:
        """Open the model.

        Raises:
            Exception: Any error of the engine. The model can be opened again.
        """
        self.engine.start()
        try:
            await asyncio.wrap_future(self.engine.opened)
        except Exception:
            self.engine.close(0.0)
            self.engine = self._make_engine()
            raise


class ModelPool:
    """Finds, opens and closes models.

    Args:
        settings: Settings of the program.
        make_engine: Makes the engine for a file.
        path: The only model, or the default model for requests that name none. None for no model.
        served_model: Name of the only model, which answers to every name. "" if requests choose
            among the models of this machine.
        idle_s: Time after which an idle model is closed; 0 for never.
        on_opened: Called with each opened model.

    Attributes:
        opened: Models that are open or being opened, by name.
    """

    def __init__(
        self,
        settings: Settings,
        make_engine: MakeEngine,
        path: Path | None,
        served_model: str,
        idle_s: float,
        on_opened: Callable[[OpenModel], object],
    ) -> None:
        self.settings = settings
        self._make_engine = make_engine
        self._path = path
        self.served_model = served_model
        self._idle_s = idle_s
        self._on_opened = on_opened
        self.opened: dict[str, OpenModel] = {}
        self._opening = asyncio.Lock()
        """Held while memory is freed and used for a model."""
        self._listing = asyncio.Lock()
        """Held while files are searched for."""
        self._files: Files = {}
        self._listed_s = -LIST_AGE_S

    @property
    def last_used(self) -> OpenModel | None:
        """The open model that was used last; None if none is open."""
        open_models = [model for model in self.opened.values() if model.engine.model is not None]
        return max(open_models, key=lambda model: model.last_used_s, default=None)

    def start(self) -> asyncio.Task[None]:
        """Open the only model, or start to close idle models.

        Returns:
            A task, which ends with an exception if the only model cannot be opened.
        """
        if not self.served_model:
            return asyncio.ensure_future(self._close_idle_models())
        assert self._path is not None
        return self._begin_to_open(self.served_model, self._path, ModelHeader()).opening

    def close(self, patience_s: float) -> None:
        """End everything that runs or waits."""
        for model in self.opened.values():
            model.opening.cancel()
            model.engine.close(0.0)
        for model in self.opened.values():
            model.engine.close(patience_s)

    async def list_files(self) -> Files:
        """Return the models that requests may name."""
        async with self._listing:
            if time.monotonic() - self._listed_s >= LIST_AGE_S:
                self._files = await asyncio.wrap_future(in_background(self._find_files, "models"))
                self._listed_s = time.monotonic()
        return self._files

    async def default_first(self) -> list[str]:
        """Return the names that requests may use, first the one for requests that name none."""
        names = list(await self.list_files())
        with suppress(ApiError):
            default_name = await self.resolve("")
            names.sort(key=lambda name: name != default_name)
        return names

    async def resolve(self, requested_name: str) -> str:
        """Return the name of a model as lists show it.

        Args:
            requested_name: Name or unique beginning of a name. "" for the last used model, or else
                the default model.

        Raises:
            ApiError: No model or several models match.
        """
        if self.served_model:
            return self.served_model
        if not requested_name and self.last_used is not None:
            return self.last_used.name

        for files in (self._files, await self.list_files()):
            if requested_name:
                name = _match(requested_name, files)
            else:
                name = self._default_name(files)
            if name:
                return name

        names = ", ".join(list(files)[:10]) or "none"
        if len(files) > 10:
            names += f" and {len(files) - 10} more"
        raise ApiError(
            f'there is no model "{requested_name[:60]}" here (served: {names})',
            404,
            "model",
            "model_not_found",
        )

    async def open(self, requested_name: str, closes_when_idle: bool = False) -> OpenModel:
        """Open a model and return it.

        The model stays open until the caller awaits something, and as long as its engine is busy.

        Raises:
            ApiError: No model has the name, it cannot be opened, or memory is short.
        """
        if self.served_model:
            only_model = self.opened.get(self.served_model)
            if only_model is None or only_model.engine.model is None:
                raise unavailable("the model is being opened (try again later)", "model_loading")
            return only_model

        name = await self.resolve(requested_name)
        model = self.opened.get(name)
        if model is None:
            file, header = self._files[name]
            model = self._begin_to_open(name, file.path, header)
        model.closes_when_idle = closes_when_idle
        model.n_waiting += 1
        try:
            await asyncio.shield(model.opening)
        except asyncio.CancelledError:
            if model.opening.cancelled():
                raise shutting_down() from None
            raise asyncio.CancelledError from None
        except Exception as error:
            raise api_error_of(error) from None
        finally:
            model.n_waiting -= 1
            model.last_used_s = time.monotonic()
        return model

    async def unload(self, requested_name: str) -> str:
        """Close a model as soon as it is idle, and return its name.

        Raises:
            ApiError: No model has the name.
        """
        name = await self.resolve(requested_name)
        if name in self.opened:
            self.opened[name].closes_when_idle = True
        return name

    def remaining_idle_s(self, model: OpenModel) -> float | None:
        """Return how long an unused model stays open; None if it is never closed."""
        if self.served_model:
            return None
        if model.closes_when_idle:
            return 0.0
        if not self._idle_s:
            return None
        return max(0.0, self._idle_s - (time.monotonic() - model.last_used_s))

    def _find_files(self) -> Files:
        default_file: StoredModel | None = None
        if self._path is not None:
            default_file = file_at(self._path, "")

        if self.served_model:
            if default_file is None:
                file = StoredModel(Path(self.served_model), self.served_model, 0, 0, "")
                return {self.served_model: (file, ModelHeader())}
            return {self.served_model: (default_file, HeaderCache().header(default_file))}

        files = find_files(places(self.settings.model_directories))
        if default_file is not None:
            default_path = default_file.path.resolve()
            if not any(file.path.resolve() == default_path for file in files):
                files.insert(0, default_file)
        return models_by_name(files)

    def _default_name(self, files: Files) -> str:
        if self._path is None:
            return ""
        default_path = self._path.resolve()
        return next(
            (name for name, (file, _) in files.items() if file.path.resolve() == default_path), ""
        )

    def _begin_to_open(self, name: str, path: Path, header: ModelHeader) -> OpenModel:
        model = self.opened[name] = OpenModel(name, path, header, self._make_engine)
        model.opening = asyncio.ensure_future(self._open(model))
        return model

    async def _open(self, model: OpenModel) -> None:
        """Open a model, and close others if memory is short."""
        try:
            async with self._opening:
                await self._free_memory_for(model)
                while True:
                    try:
                        await model.open()
                        break
                    except MemoryPlanError:
                        if not await self._close_oldest():
                            raise
        except Exception:
            del self.opened[model.name]
            raise
        self._on_opened(model)

    async def _free_memory_for(self, model: OpenModel) -> None:
        """Close other models until memory suffices.

        Raises:
            ApiError: Busy models need the memory.
        """
        needs = model.header.needs
        if needs is None:
            return
        find_bytes = partial(encoder_bytes_of, model.path, self.settings.pictures.mmproj)
        encoder_bytes = await asyncio.wrap_future(in_background(find_bytes, "mmproj"))
        needs = replace(needs, encoder_bytes=encoder_bytes)
        until_s = time.monotonic() + MEMORY_PATIENCE_S
        while not self._has_memory_for(needs):
            if await self._close_oldest():
                continue
            if not any(other.engine.model is not None for other in self.opened.values()):
                return  # The engine reports what it lacks, or needs less.
            if time.monotonic() > until_s:
                raise unavailable(
                    f"{model.name}: other models are busy and need the memory", "no_memory"
                )
            await asyncio.sleep(MEMORY_CHECK_PERIOD_S)

    def _has_memory_for(self, needs: fitting.ModelNeeds) -> bool:
        claimed_bytes = sum(model.engine.claimed_bytes for model in self.opened.values())
        memory = fitting.machine_memory()
        n_ctx = self.settings.context_size or None
        needed_bytes = fitting.fit(needs, memory, fitting.MachineRates(), n_ctx).needed_bytes
        return needed_bytes <= memory.available_bytes - claimed_bytes

    async def _close_oldest(self) -> bool:
        """Close the idle model that was used longest ago.

        Returns:
            Whether there was an idle model.
        """
        idle_models = [model for model in self.opened.values() if model.is_idle]
        if not idle_models:
            return False
        oldest = min(idle_models, key=lambda model: model.last_used_s)
        await self._close(oldest, "its memory is needed")
        return True

    async def _close(self, model: OpenModel, reason: str) -> None:
        del self.opened[model.name]
        await asyncio.wrap_future(
            in_background(partial(model.engine.close, CLOSE_PATIENCE_S), "closing")
        )
        model.engine.forget()
        await asyncio.wrap_future(in_background(_free_memory, "closing"))
        log(f"{model.name}: closed ({reason})")

    async def _close_idle_models(self) -> None:
        while True:
            await asyncio.sleep(IDLE_CHECK_PERIOD_S)
            for model in list(self.opened.values()):
                if not model.is_idle:
                    model.last_used_s = time.monotonic()
                elif self.remaining_idle_s(model) == 0:
                    await self._close_if_idle(model)

    async def _close_if_idle(self, model: OpenModel) -> None:
        async with self._opening:
            if model.is_idle and self.opened.get(model.name) is model:
                await self._close(model, "requested" if model.closes_when_idle else "idle")


def _free_memory() -> None:
    """Free the memory of a closed model, whose objects refer to each other."""
    garbage.take_apart()
    give_back_memory()


def _match(requested_name: str, files: Files) -> str:
    """Return the listed name that a name means: in full, or as a unique beginning. "" for none."""
    lower_name = requested_name.lower()
    short_name = lower_name.removesuffix(LATEST)
    listed_names = {name.lower(): name for name in files}
    for name in (lower_name, short_name + LATEST, short_name):
        if name in listed_names:
            return listed_names[name]
    if not short_name.strip():
        return ""

    names_by_path = {file.path: name for name, (file, _) in files.items()}
    try:
        file = called(
            short_name, [file for file, _ in files.values()], lambda file: names_by_path[file.path]
        )
    except Refusal as refusal:
        raise ApiError(str(refusal), 404, "model", "model_not_found") from None
    if file is None:
        return ""
    return names_by_path[file.path]
