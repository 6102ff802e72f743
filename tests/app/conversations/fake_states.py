"""States of a scripted engine's cache: files of token ids, named after the model's file."""

import json
from types import SimpleNamespace

from app.chat.saved_states import StateFiles
from app.conversations.store import Store
from engine import common_prefix
from engine.errors import EngineError


class FakeWriter:
    """Writes the session's tokens at once."""

    def __init__(self, session, path):
        self.session, self.path, self.problem, self.is_closed = session, path, None, False

    def note(self):
        try:
            self.path.write_text(json.dumps(self.session.tokens))
        except OSError as error:
            self.problem = error.strerror

    def flush(self, timeout_s):
        self.note()
        return True

    def close(self):
        self.is_closed = True


def restore(session, path, wanted):
    assert session.length == 0
    tokens = json.loads(path.read_text())
    if tokens == "other":
        raise EngineError("kv.state: saved with another model")
    session.tokens += tokens[: common_prefix(tokens, wanted)]
    return SimpleNamespace(tokens=session.length, seconds=0.25)


def restorable(session, path, wanted):
    tokens = json.loads(path.read_text())
    return len(wanted) if tokens == "other" else common_prefix(tokens, wanted)


def files(prefixes=None):
    return StateFiles(
        restore=restore,
        restorable=restorable,
        writer=FakeWriter,
        fingerprint=lambda model: f"{model.name:f<64}",
        prefixes=prefixes,
        may_read_prefix=lambda: True,
        kept=lambda kind: Store().states_of_kind(kind),
    )
