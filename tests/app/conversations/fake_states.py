"""Saved states of a scripted engine's cache: files of token ids in a directory named after the
model file."""

import hashlib
import json
from types import SimpleNamespace

from app.backend.local.saved_states import StateFiles
from engine import common_prefix
from tests.app.fake_engine import END, EOS, Script


class FakeWriter:
    """Writer that saves the session's tokens at once, in a file named like a segment."""

    def __init__(self, session, directory, on_segment):
        self.session = session
        self.directory = directory
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
                (self.directory / name).write_text(json.dumps(tokens))
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


def saved_in(directory):
    """Return the segments saved in a directory, longest first."""
    return sorted(
        (json.loads(path.read_text()) for path in directory.glob("*.kv")), key=len, reverse=True
    )


def longest_match(directory, prompt_tokens):
    return max(
        saved_in(directory),
        key=lambda saved_tokens: common_prefix(saved_tokens, prompt_tokens),
        default=[],
    )


def restore(session, directory, prompt_tokens):
    assert session.length == 0
    tokens = longest_match(directory, prompt_tokens)
    session.tokens += tokens[: common_prefix(tokens, prompt_tokens)]
    return SimpleNamespace(tokens=session.length, seconds=0.25)


def restorable(session, directory, prompt_tokens):
    return common_prefix(longest_match(directory, prompt_tokens), prompt_tokens)


def names(session, directory, prompt_tokens):
    return [
        path.name
        for path in directory.glob("*.kv")
        if (tokens := json.loads(path.read_text())) == prompt_tokens[: len(tokens)]
    ]


def tokens_after(session, directory, prompt_tokens):
    n_prompt = len(prompt_tokens)
    for tokens in saved_in(directory):
        if len(tokens) > n_prompt and tokens[:n_prompt] == prompt_tokens:
            ends = [n for n in range(n_prompt, len(tokens)) if tokens[n] in (EOS, END)]
            yield tokens[n_prompt : min(ends, default=len(tokens))]


def files(reads_ahead=False):
    """Return functions that save every conversation: the scripted engine reads in no time."""
    return StateFiles(
        restore=restore,
        restorable=restorable,
        names=names,
        tokens_after=tokens_after,
        writer=FakeWriter,
        may_read_prefix=lambda: reads_ahead,
        least_tokens=0,
        least_read_s=0.0,
    )


def with_one_vocabulary(script=None):
    """Return a script whose models all have the tokens of the first model."""
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
