"""States of a scripted engine's cache: files of token ids, below a directory named after the
model's file."""

import hashlib
import json
from types import SimpleNamespace

from app.backend.local.saved_states import StateFiles
from engine import common_prefix
from tests.app.fake_engine import Script


class FakeWriter:
    """Writes the session's tokens at once: a file each time, named as a segment is."""

    def __init__(self, session, place, on_segment):
        self.session = session
        self.place = place
        self.on_segment = on_segment
        self.problem = None
        self.is_closed = False

    def notify(self):
        tokens = self.session.tokens
        if tokens:
            key = hashlib.md5(repr(tokens).encode()).hexdigest()
            name = f"{'0' * 32}-{len(tokens)}-{key}.kv"
            try:
                self.on_segment(name)
                (self.place / name).write_text(json.dumps(tokens))
            except OSError as error:
                self.problem = error.strerror

    @property
    def saved_tokens(self):
        return self.session.length

    def flush(self, timeout_s):
        self.notify()
        return True

    def close(self):
        self.is_closed = True


def saved_in(place):
    """Segments saved in a directory, longest first."""
    return sorted(
        (json.loads(path.read_text()) for path in place.glob("*.kv")), key=len, reverse=True
    )


def best_of(place, wanted):
    return max(saved_in(place), key=lambda tokens: common_prefix(tokens, wanted), default=[])


def restore(session, place, wanted):
    assert session.length == 0
    tokens = best_of(place, wanted)
    session.tokens += tokens[: common_prefix(tokens, wanted)]
    return SimpleNamespace(tokens=session.length, seconds=0.25)


def restorable(session, place, wanted):
    return common_prefix(best_of(place, wanted), wanted)


def names(session, place, wanted):
    return [
        path.name
        for path in place.glob("*.kv")
        if (one := json.loads(path.read_text())) == wanted[: len(one)]
    ]


def files(reads_ahead=False):
    return StateFiles(
        restore=restore,
        restorable=restorable,
        names=names,
        writer=FakeWriter,
        may_read_prefix=lambda: reads_ahead,
    )


def with_one_vocabulary(script=None):
    """A script whose models all have the first one's tokens."""
    script = script or Script()
    real_open = script.open_model

    def open_with_one_vocabulary(*arguments, **options):
        model = real_open(*arguments, **options)
        first = script.opened[0].tokenizer
        model.tokenizer._pieces = first._pieces
        model.tokenizer._ids = first._ids
        return model

    script.open_model = open_with_one_vocabulary
    return script
