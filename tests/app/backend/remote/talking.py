"""Conversation with a server, without a screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from app.backend.options import ChatOptions
from app.backend.remote.backend import RemoteBackend
from app.backend.remote.exchange import Exchange, Limits
from app.conversations.journal import ConversationStorage
from app.program.remote_model import RemoteModel
from app.session.events import Event, ModelLoaded, TextGenerated
from app.session.headless import HeadlessChat
from tests.app.fake_engine import Script

IMPATIENT = Limits(connecting_s=5, listing_s=5, silence_s=1.0, reply_s=60, linger_s=0.5)


@contextmanager
def talking(
    url: str,
    name: str = "",
    script: Script | None = None,
    storage: ConversationStorage | None = None,
    limits: Limits = Limits(),  # noqa: B008 - it does not change
    sampling: Mapping[str, float] = MappingProxyType({}),
    opened: Any = None,
) -> Iterator[HeadlessChat]:
    """Open a model of a server until the end of the block."""
    script = script or Script()

    def worker(link: Any, options: ChatOptions) -> RemoteBackend:
        return RemoteBackend(link, options, lambda model, key: Exchange(model, key, limits))

    options = ChatOptions(
        open_model=script.open_model,
        sampling=lambda chosen, model, mode: None,
        remote=worker,
    )
    talk = HeadlessChat(options, storage)
    try:
        events = list(talk.open(RemoteModel(url, name), opened))
        assert any(isinstance(event, ModelLoaded) for event in events), events
        talk.chat_session.change_options(sampling=sampling)
        yield talk
    finally:
        assert talk.close() == ""


def text_of(events: list[Event]) -> str:
    """Return the text of the answer."""
    return "".join(event.text for event in events if isinstance(event, TextGenerated))
