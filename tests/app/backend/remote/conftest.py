"""One conversation after the other with a server of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from app.conversations.conversation import ChatMessage
from app.program.remote_model import RemoteModel
from app.session.events import Event
from tests.app.backend.remote.raw_api import answering
from tests.app.backend.remote.talking import IMPATIENT, talking

Ask = Callable[[bytes], tuple[Event, ChatMessage]]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Asks a server that answers so; returns the last event, in whose lines the server is ``host``,
    and the reply.

    Each asks after the others: none of these answers spoils the next.
    """
    with answering() as api, talking(api.url, limits=IMPATIENT) as talk:

        def asked(answer: bytes) -> tuple[Event, ChatMessage]:
            api.answers.append(answer)
            list(talk.begin(None))
            *_, last = talk.ask("Why?")
            reason = getattr(last, "reason", "")
            assert not reason or (
                reason.startswith(RemoteModel(api.url).host) and "\n" not in reason
            )
            assert not api.answers
            return last, talk.chat_session.conversation.messages[-1]

        yield asked
