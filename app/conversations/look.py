"""Listing and searching in a thread of its own, for a screen that looks at the result now and then."""

from __future__ import annotations

from functools import partial

from app.conversations.locks import StoreError
from app.conversations.store import Entry, Store
from app.program.background import in_background
from app.program.refusals import log_without_text
from app.text.record import record


@record
class Found:
    """The conversations with what was typed, the one used last first."""

    hits: tuple[Entry, ...] = ()
    is_done: bool = False
    trouble: str = ""
    """Why there is nothing, or nothing was deleted; "" if all is well."""


class Look:
    """One look at all conversations that have what was typed; the result is ``found``, at any time.

    ``deleted``: the id of one that is deleted before; that rewrites the index of words, which may take a second.
    """

    def __init__(self, store: Store, typed: str = "", deleted: str = "") -> None:
        self.found = Found()
        in_background(partial(self._look, store, typed, deleted), "conversations")

    def _look(self, store: Store, typed: str, deleted: str) -> None:
        trouble = ""
        try:
            try:
                if deleted:
                    store.delete(deleted)
            except StoreError as error:
                trouble = f"not deleted: {error}"
            self.found = Found(tuple(store.search(typed)), is_done=True, trouble=trouble)
        except StoreError as error:
            self.found = Found(is_done=True, trouble=str(error))
        except Exception as error:
            log_without_text(error)
            self.found = Found(is_done=True, trouble=f"internal error: {type(error).__name__}")
