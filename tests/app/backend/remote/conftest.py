"""Fixtures: conversations with a scripted server."""

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
    """Return a function that sends a question to a server with a scripted answer.

    It returns the last event, in whose text the server is ``host``, and the reply. All questions
    share one conversation.
    """
    with answering() as api, talking(api.url, limits=IMPATIENT) as talk:

        def ask_server(answer: bytes) -> tuple[Event, ChatMessage]:
            api.answers.append(answer)
            list(talk.begin(None))
            *_, last = talk.ask("Why?")
            reason = getattr(last, "reason", "")
            assert not reason or (
                reason.startswith(RemoteModel(api.url).host) and "\n" not in reason
            )
            assert not api.answers
            return last, talk.chat_session.conversation.messages[-1]

        yield ask_server
