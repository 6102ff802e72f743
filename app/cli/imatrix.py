"""``jalopy imatrix``: which columns of a model's matrices a text needs most, for
``jalopy quantize``. No Textual."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.backend.local import opening as engine_access
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


@record
class ImatrixOptions:
    """Arguments of ``imatrix`` that are no settings."""

    model: str
    files: Sequence[str] = ()
    conversations: bool = False
    out: str = ""
    n_chunk: int = 512
    most_chunks: int = 0
    """Limit on the chunks that are read; 0 for none."""


def imatrix(
    options: ImatrixOptions, settings: Settings, clock: Callable[[], float] = time.monotonic
) -> int:
    """Read, and write the file; Ctrl-C writes what is known.

    Raises:
        EngineError: the model cannot be used, or the file cannot be written.
        Refusal: there is no text, too little, or a file that has the name.
    """
    out = Path(options.out or f"{Path(options.model).stem}.imatrix.gguf")
    if bool(options.files) == options.conversations:
        raise Refusal(
            "jalopy imatrix: name files of text, or give --conversations for your own saved ones"
        )
    inputs = [Path(name) for name in (options.model, *options.files)]
    check_output("jalopy imatrix", out, inputs, "exists (choose another name: -o FILE)")
    texts = [read_text_file(Path(name)) for name in options.files]
    reading = ChunkReading["Imatrix"](clock)
    found = reading.run(partial(_collect, options, settings, texts))
    if found is None:
        return exit_codes.INTERRUPTED
    found.write(
        out,
        [_CONVERSATIONS] if options.conversations else [Path(name).name for name in options.files],
    )
    what = f"inputs of {counted(len(found.sums), 'tensor')}, {counted(found.n_chunks, 'chunk')} of"
    shown = clean_line(str(out), 200)
    print(f"{reading.stopped_words}{shown}: {what} {count(options.n_chunk)} tokens", flush=True)
    if reading.is_whole:
        return exit_codes.OK
    return exit_codes.INTERRUPTED


def _collect(
    options: ImatrixOptions,
    settings: Settings,
    texts: Sequence[str],
    reading: ChunkReading[Imatrix],
) -> Iterator[Imatrix]:
    """Open the model and read chunk after chunk."""
    from engine.measure.importance import collect
    from engine.measure.perplexity import chunks_of

    opened = engine_access.open_model(settings, options.model, reading.progress.show_opening)
    with closing(opened) as model, closing(model.session(options.n_chunk, _KV)) as session:
        reading.sessions.append(session)
        ids = [one for text in texts for one in model.tokenizer.encode(text, special=False)]
        if options.conversations:
            ids += _of_conversations(model, session, settings)
        else:
            ids += ()
        chunks = chunks_of(ids, options.n_chunk, model.tokenizer)[: options.most_chunks or None]
        if not chunks:
            why = (
                f"{counted(len(ids), 'token')} are fewer than one chunk of {count(options.n_chunk)}"
            )
            raise Refusal(f"jalopy imatrix: {why} (give more text, or a smaller --ctx)")
        yield from reading.follow(collect(session, chunks), len(chunks))


def _of_conversations(model: Model, session: Session, settings: Settings) -> Iterator[int]:
    """Yield the tokens of all saved conversations, as the model is given them."""
    from app.backend.local.model import LocalModel
    from app.conversations.conversation import ASSISTANT
    from app.conversations.store import Store
    from engine.errors import EngineError

    store = Store()
    n_left_out = 0
    for one in store.ids():
        said = store.read(one).conversation.prompt_messages()
        local = LocalModel(model, session, model.chat(), settings)
        if said and said[-1].role == ASSISTANT:
            reply = said[-1].text
        else:
            reply = ""
        try:
            local.hold(said[:-1] if reply else said)
            yield from local.chat.prompt_ids()
        except EngineError:  # its template refuses the order of what was said
            n_left_out += 1
            continue
        yield from model.tokenizer.encode(reply, bos=False, special=False)
    if n_left_out:
        say(
            f"jalopy imatrix: left out {counted(n_left_out, 'conversation')} that the model's "
            "template refuses"
        )
