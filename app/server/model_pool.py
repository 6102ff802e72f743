"""The models that are served: the one that was named, or those of this machine, each opened when a
request names it.

All of it is done in the event loop; searches, openings and ends have threads of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

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
from app.server.reply_writer import Answering
from app.server.served_engine import ServedEngine, ending, error_of, writes_no_text
from engine.errors import MemoryPlanError
from engine.measure import fit as fitting

LISTED_S = 5.0
"""How old the list of models may be, for one who asks for it or for a name that is not in it."""
LOOK_S = 1.0
"""Seconds between two looks at what is idle."""
ROOM_LOOK_S = 0.2
ROOM_PATIENCE_S = 120.0
"""How long a model waits until others, which answer now, leave it memory."""
CLOSE_PATIENCE_S = 30.0
"""How long the end of an engine is waited for before its memory is needed."""

MakeEngine = Callable[[Path], ServedEngine]


class OpenModel:
    """A model that is opened or open.

    Attributes:
        opening: done when it is open.
        used_s: when it was last used, of the monotonic clock.
        n_wanted: requests that wait until it is open, or are about to ask.
        unloads: whether it is closed as soon as no one uses it.
    """

    opening: asyncio.Task[None]

    def __init__(self, name: str, path: Path, header: ModelHeader, make_engine: MakeEngine) -> None:
        self.name = name
        self.header = header
        self._make_engine = partial(make_engine, path)
        self.engine = self._make_engine()
        self.used_s = time.monotonic()
        self.n_wanted = 0
        self.unloads = False

    @property
    def served(self) -> Answering:
        """How it answers, once it is open. Raises ApiError: it writes no text."""
        if self.engine.served is None:
            raise writes_no_text()
        return self.engine.served

    @property
    def n_ctx(self) -> int:
        """Tokens of a context; 0 while it is not open, or where it writes no text."""
        served = self.engine.served
        if served is not None:
            return served.local.session.n_ctx
        return 0

    @property
    def is_idle(self) -> bool:
        """Whether it is open and no one uses it."""
        return self.opening.done() and not self.n_wanted and not self.engine.is_busy

    async def open(self) -> None:
        """Open it. Raises whatever its engine raises; it can be tried again then."""
        self.engine.start()
        try:
            await asyncio.wrap_future(self.engine.opened)
        except Exception:
            self.engine.close(0.0)
            self.engine = self._make_engine()
            raise


class Models:
    """Finds, opens and closes them.

    Args:
        path: the model that is served, or the one for requests that name none; None for none.
        only: the name of the one model, which answers to any; "" where requests choose among those
            of this machine.
        idle_s: after how long without a request a model is closed; 0 for never.
        on_opened: called for each that was opened.

    Attributes:
        opened: those that are opened or open, by their names.
    """

    def __init__(
        self,
        settings: Settings,
        make_engine: MakeEngine,
        path: Path | None,
        only: str,
        idle_s: float,
        on_opened: Callable[[OpenModel], object],
    ) -> None:
        self.settings = settings
        self._make_engine = make_engine
        self._path = path
        self.only = only
        self._idle_s = idle_s
        self._on_opened = on_opened
        self.opened: dict[str, OpenModel] = {}
        self._changing = asyncio.Lock()
        self._searching = asyncio.Lock()
        """Held while memory is made free and taken, and while models are searched for."""
        self._listed: Mapping[str, tuple[StoredModel, ModelHeader]] = {}
        self._listed_s = -LISTED_S

    @property
    def last_used(self) -> OpenModel | None:
        """The one of those that are open that was used last."""
        is_open = [one for one in self.opened.values() if one.engine.model is not None]
        return max(is_open, key=lambda one: one.used_s, default=None)

    def start(self) -> asyncio.Task[None]:
        """Open the one model, or begin to close what is idle; the task ends with an exception of
        the opening."""
        if not self.only:
            return asyncio.ensure_future(self._watch())
        assert self._path is not None
        return self._begin(self.only, self._path, ModelHeader()).opening

    def close(self, patience_s: float) -> None:
        """End what runs and what waits."""
        for model in self.opened.values():
            model.opening.cancel()
            model.engine.close(0.0)
        for model in self.opened.values():
            model.engine.close(patience_s)

    async def listed(self) -> Mapping[str, tuple[StoredModel, ModelHeader]]:
        """Return the models that requests may name."""
        async with self._searching:
            if time.monotonic() - self._listed_s >= LISTED_S:
                self._listed = await asyncio.wrap_future(in_background(self._find, "models"))
                self._listed_s = time.monotonic()
        return self._listed

    async def meant(self, wanted: str) -> str:
        """Return the name that lists show of the model that a request names; "" is the last one
        used, or the usual one.

        Raises:
            ApiError: there is none, or there are several.
        """
        if self.only:
            return self.only
        if not wanted and self.last_used is not None:
            return self.last_used.name
        for listed in (self._listed, await self.listed()):
            if wanted:
                name = _named(wanted, listed)
            else:
                name = self._usual(listed)
            if name:
                return name
        n_more = max(0, len(listed) - 10)
        if listed:
            names = f"{', '.join(list(listed)[:10])}{f' and {n_more} more' if n_more else ''}"
        else:
            names = "none"
        raise ApiError(
            f'there is no model "{wanted[:60]}" here (served: {names})',
            404,
            "model",
            "model_not_found",
        )

    async def open(self, wanted: str, unloads: bool = False) -> OpenModel:
        """Return a model when it is open. It stays so until the event loop goes on, and as long as
        its engine is busy.

        Raises:
            ApiError: there is none of that name, it cannot be opened, or memory is short.
        """
        if self.only:
            only = self.opened.get(self.only)
            if only is None or only.engine.model is None:
                raise unavailable("the model is being opened (try again later)", "model_loading")
            return only
        name = await self.meant(wanted)
        model = self.opened.get(name) or self._begin(
            name, self._listed[name][0].path, self._listed[name][1]
        )
        model.n_wanted = model.n_wanted + 1
        model.unloads = unloads
        try:
            await asyncio.shield(model.opening)
        except asyncio.CancelledError:
            raise ending() if model.opening.cancelled() else asyncio.CancelledError from None
        except Exception as error:
            raise error_of(error) from None
        finally:
            model.n_wanted -= 1
            model.used_s = time.monotonic()
        return model

    async def unload(self, wanted: str) -> str:
        """Close a model that requests chose when no one uses it; return its name.

        Raises ApiError: there is none.
        """
        name = await self.meant(wanted)
        if name in self.opened:
            self.opened[name].unloads = True
        return name

    def left_s(self, model: OpenModel) -> float | None:
        """Return how long a model stays open if no one uses it, in seconds; None for as long as the
        server runs."""
        if self.only or not (self._idle_s or model.unloads):
            return None
        if model.unloads:
            return 0.0
        return max(0.0, self._idle_s - (time.monotonic() - model.used_s))

    def _find(self) -> Mapping[str, tuple[StoredModel, ModelHeader]]:
        if self._path is not None:
            usual = file_at(self._path, "")
        else:
            usual = None
        if self.only:
            file = usual or StoredModel(Path(self.only), self.only, 0, 0, "")
            return {self.only: (file, HeaderCache().header(file) if usual else ModelHeader())}
        files = find_files(places(self.settings.model_directories))
        if usual is not None and not any(
            file.path.resolve() == usual.path.resolve() for file in files
        ):
            files.insert(0, usual)
        return models_by_name(files)

    def _usual(self, listed: Mapping[str, tuple[StoredModel, ModelHeader]]) -> str:
        if self._path is not None:
            usual = self._path.resolve()
        else:
            usual = None
        return next(
            (name for name, (file, _) in listed.items() if file.path.resolve() == usual), ""
        )

    def _begin(self, name: str, path: Path, header: ModelHeader) -> OpenModel:
        model = self.opened[name] = OpenModel(name, path, header, self._make_engine)
        model.opening = asyncio.ensure_future(self._bring_in(model))
        return model

    async def _bring_in(self, model: OpenModel) -> None:
        """Open a model, in place of others where memory is short."""
        try:
            async with self._changing:
                await self._make_room(model)
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

    async def _make_room(self, model: OpenModel) -> None:
        """Close others until there is memory. Raises ApiError: those that answer now leave none."""
        until_s = time.monotonic() + ROOM_PATIENCE_S
        while not self._has_room(model.header):
            if await self._close_oldest():
                continue
            if not any(one.engine.model is not None for one in self.opened.values()):
                return  # its engine says what it lacks, or does with less
            if time.monotonic() > until_s:
                raise unavailable(
                    f"{model.name}: other models answer now and need the memory", "no_memory"
                )
            await asyncio.sleep(ROOM_LOOK_S)

    def _has_room(self, header: ModelHeader) -> bool:
        if header.needs is None:
            return True
        claimed = sum(one.engine.claimed_bytes for one in self.opened.values())
        memory = fitting.machine_memory()
        n_ctx = self.settings.context_size or None
        needed = fitting.fit(header.needs, memory, fitting.MachineRates(), n_ctx).needed_bytes
        return needed <= memory.available_bytes - claimed

    async def _close_oldest(self) -> bool:
        """Close the one that was used longest ago; False where none is idle."""
        oldest = min(
            (one for one in self.opened.values() if one.is_idle),
            key=lambda one: one.used_s,
            default=None,
        )
        if oldest is not None:
            await self._close(oldest, "its memory is needed")
        return oldest is not None

    async def _close(self, model: OpenModel, why: str) -> None:
        del self.opened[model.name]
        await asyncio.wrap_future(
            in_background(partial(model.engine.close, CLOSE_PATIENCE_S), "closing")
        )
        model.engine.forget()
        await asyncio.wrap_future(in_background(_free, "closing"))
        log(f"{model.name}: closed ({why})")

    async def _watch(self) -> None:
        """Close what was idle for long."""
        while True:
            await asyncio.sleep(LOOK_S)
            for model in list(self.opened.values()):
                if not model.is_idle:
                    model.used_s = time.monotonic()
                elif self.left_s(model) == 0:
                    async with self._changing:
                        if model.is_idle and self.opened.get(model.name) is model:
                            await self._close(model, "as asked" if model.unloads else "idle")


def _free() -> None:
    """Give back the memory of what was closed: its parts point to each other."""
    garbage.take_apart()
    give_back_memory()


def _named(wanted: str, listed: Mapping[str, tuple[StoredModel, ModelHeader]]) -> str:
    """Return the listed name that a name means, in full or as far as it is the only one; "" for
    none."""
    exact = {name.lower(): name for name in listed}
    short = wanted.lower().removesuffix(LATEST)
    for one in (wanted.lower(), short + LATEST, short):
        if one in exact:
            return exact[one]
    if not short.strip():
        return ""
    names = {file.path: name for name, (file, _) in listed.items()}
    try:
        found = called(short, [file for file, _ in listed.values()], lambda file: names[file.path])
    except Refusal as refusal:
        raise ApiError(str(refusal), 404, "model", "model_not_found") from None
    if found is not None:
        return names[found.path]
    return ""
