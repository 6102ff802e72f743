"""``jalopy imatrix``: measure which columns of a model's matrices matter most for a text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.backend.local import engine_access
from app.cli.chunks import ChunkReading
from app.cli.output_file import check_output
from app.documents.text_file import read_text_file
from app.program import exit_codes
from app.program.refusals import Refusal, say
from app.program.settings import Settings
from app.text.clean_text import clean_line
from app.text.figures import count, counted
from app.text.record import record

if TYPE_CHECKING:
    from engine import Imatrix, Model, Session

_KV = "f32"
_CONVERSATIONS = "conversations"
"""Name of the source in the output file for ``--conversations``."""


@record
class ImatrixOptions:
    """Arguments of ``imatrix`` that are not settings."""

    model: str
    files: Sequence[str] = ()
    conversations: bool = False
    out: str = ""
    n_chunk: int = 512
    max_chunks: int = 0
    """Limit on the number of chunks; 0 for no limit."""


def imatrix(
    options: ImatrixOptions, settings: Settings, clock: Callable[[], float] = time.monotonic
) -> int:
    """Read the texts and write the importance matrix; Ctrl-C writes the result so far.

    Raises:
        EngineError: the model cannot be used, or the file cannot be written.
        Refusal: the text is missing or too short, or the output file exists.
    """
    out = Path(options.out or f"{Path(options.model).stem}.imatrix.gguf")
    if bool(options.files) == options.conversations:
        raise Refusal(
            "jalopy imatrix: give either text files or --conversations (your saved conversations)"
        )
    inputs = [Path(name) for name in (options.model, *options.files)]
    check_output("jalopy imatrix", out, inputs, "already exists (-o FILE names another file)")
    texts = [read_text_file(Path(name)) for name in options.files]
    reading = ChunkReading["Imatrix"](clock)
    imatrix = reading.run(partial(_collect, options, settings, texts))
    if imatrix is None:
        return exit_codes.INTERRUPTED
    if options.conversations:
        sources = [_CONVERSATIONS]
    else:
        sources = [Path(name).name for name in options.files]
    imatrix.write(out, sources)
    tensors = counted(len(imatrix.sums), "tensor")
    chunks = counted(imatrix.n_chunks, "chunk")
    print(
        f"{reading.stopped_words}{clean_line(str(out), 200)}: importance of {tensors} from "
        f"{chunks} of {count(options.n_chunk)} tokens",
        flush=True,
    )
    if reading.is_complete:
        return exit_codes.OK
    return exit_codes.INTERRUPTED


def _collect(
    options: ImatrixOptions,
    settings: Settings,
    texts: Sequence[str],
    reading: ChunkReading[Imatrix],
) -> Iterator[Imatrix]:
    """Open the model and yield the importance matrix after each chunk."""
    from engine.measure.importance import collect
    from engine.measure.perplexity import chunks_of

    opened = engine_access.open_model(settings, options.model, reading.progress.show_opening)
    with closing(opened) as model, closing(model.session(options.n_chunk, _KV)) as session:
        reading.sessions.append(session)
        ids = []
        for text in texts:
            ids += model.tokenizer.encode(text, special=False)
        if options.conversations:
            ids += _conversation_tokens(model, session, settings)
        chunks = chunks_of(ids, options.n_chunk, model.tokenizer)[: options.max_chunks or None]
        if not chunks:
            raise Refusal(
                f"jalopy imatrix: the text has {counted(len(ids), 'token')}, less than one chunk "
                f"of {count(options.n_chunk)} (give more text, or a smaller --ctx)"
            )
        yield from reading.follow(collect(session, chunks), len(chunks))


def _conversation_tokens(model: Model, session: Session, settings: Settings) -> Iterator[int]:
    """Yield the tokens of all saved conversations in the form of the model's chat template."""
    from app.backend.local.model import LocalModel
    from app.conversations.conversation import ASSISTANT
    from app.conversations.store import Store
    from engine.errors import EngineError

    store = Store()
    n_skipped = 0
    for conversation_id in store.ids():
        messages = store.read(conversation_id).conversation.prompt_messages()
        reply = ""
        if messages and messages[-1].role == ASSISTANT:
            reply = messages[-1].text
        if reply:
            messages = messages[:-1]
        local = LocalModel(model, session, model.chat(), settings)
        try:
            local.set_messages(messages)
            yield from local.chat.prompt_ids()
        except EngineError:  # the template refuses the order of the messages
            n_skipped += 1
            continue
        yield from model.tokenizer.encode(reply, bos=False, special=False)
    if n_skipped:
        say(
            f"jalopy imatrix: skipped {counted(n_skipped, 'conversation')} that the model's "
            "chat template refuses"
        )
