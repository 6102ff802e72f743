"""``jalopy imatrix``: which columns of a model's matrices a text needs most, for ``jalopy quantize``. No Textual."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from app.chat import opening as engine_access
from app.chat.host import engine_host
from app.cli.output import ProgressLine
from app.documents.text_file import read_text_file
from app.program import exit_codes
from app.program.refusals import Refusal, say
from app.program.settings import Settings
from app.text.clean_text import clean_line
from app.text.figures import count, counted, whole_seconds
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


def imatrix(options: ImatrixOptions, settings: Settings, clock: Callable[[], float] = time.monotonic) -> int:
    """Read, and write the file; Ctrl-C writes what is known.

    Raises:
        EngineError: the model cannot be used, or the file cannot be written.
        Refusal: there is no text, too little, or a file that has the name.
    """
    out = Path(options.out or f"{Path(options.model).stem}.imatrix.gguf")
    if bool(options.files) == options.conversations:
        raise Refusal("jalopy imatrix: name files of text, or give --conversations for your own saved ones")
    if out.exists():
        raise Refusal(f"jalopy imatrix: {clean_line(str(out), 200)}: exists (choose another name: -o FILE)")
    texts = [read_text_file(Path(name)) for name in options.files]
    engine, progress, collecting = engine_host(), ProgressLine(), _Collecting(options, settings, clock)
    try:
        engine.run(lambda: collecting.run(texts, progress), collecting.stop)
    finally:
        progress.clear()
    found = collecting.found
    if found is None:
        return exit_codes.INTERRUPTED
    found.write(out, [_CONVERSATIONS] if options.conversations else [Path(name).name for name in options.files])
    is_whole = found.n_chunks == collecting.n_chunks
    stopped = "" if is_whole else f"stopped after {count(found.n_chunks)} of {count(collecting.n_chunks)} chunks: "
    how = f"{counted(found.n_chunks, 'chunk')} of {count(options.n_chunk)} tokens"
    print(f"{stopped}{clean_line(str(out), 200)}: inputs of {counted(len(found.sums), 'tensor')}, {how}", flush=True)
    return exit_codes.OK if is_whole else exit_codes.INTERRUPTED


class _Collecting:
    """The work in the engine's thread, which any thread may stop."""

    def __init__(self, options: ImatrixOptions, settings: Settings, clock: Callable[[], float]) -> None:
        self._options, self._settings, self._clock = options, settings, clock
        self._session: Session | None = None
        self._is_stopped = threading.Event()
        self.found: Imatrix | None = None
        """After the last chunk that is done; None before the first."""
        self.n_chunks = 0

    def stop(self) -> None:
        """End it; what is known stays. Raises KeyboardInterrupt: nothing is."""
        if self._session is None:
            raise KeyboardInterrupt
        self._is_stopped.set()
        self._session.cancel()

    def run(self, texts: Sequence[str], progress: ProgressLine) -> None:
        """Open the model and read chunk after chunk."""
        from engine.errors import Cancelled
        from engine.measure.importance import collect
        from engine.measure.perplexity import chunks_of

        options = self._options
        with ExitStack() as opened:
            model = opened.enter_context(
                closing(engine_access.open_model(self._settings, options.model, progress.show_opening))
            )
            self._session = opened.enter_context(closing(model.session(options.n_chunk, _KV)))
            ids = [one for text in texts for one in model.tokenizer.encode(text, special=False)]
            ids += self._of_conversations(model) if options.conversations else ()
            chunks = chunks_of(ids, options.n_chunk, model.tokenizer)[: options.most_chunks or None]
            self.n_chunks, started_s = len(chunks), self._clock()
            if not chunks:
                why = f"{counted(len(ids), 'token')} are fewer than one chunk of {count(options.n_chunk)}"
                raise Refusal(f"jalopy imatrix: {why} (give more text, or a smaller --ctx)")
            try:
                for found in collect(self._session, chunks):
                    self.found = found
                    self._show(progress, found.n_chunks, self._clock() - started_s)
                    if self._is_stopped.is_set():
                        return
            except Cancelled:
                return

    def _of_conversations(self, model: Model) -> Iterator[int]:
        """Yield the tokens of all saved conversations, as the model is given them."""
        from app.chat.local_model import LocalModel
        from app.conversations.conversation import ASSISTANT
        from app.conversations.store import Store
        from engine.errors import EngineError

        assert self._session is not None
        store, n_left_out = Store(), 0
        for one in store.ids():
            said = store.read(one).conversation.said()
            local = LocalModel(model, self._session, model.chat(), self._settings)
            reply = said[-1].text if said and said[-1].role == ASSISTANT else ""
            try:
                local.hold(said[:-1] if reply else said)
                yield from local.chat.prompt_ids()
            except EngineError:  # its template refuses the order of what was said
                n_left_out += 1
                continue
            yield from model.tokenizer.encode(reply, bos=False, special=False)
        if n_left_out:
            say(f"jalopy imatrix: left out {counted(n_left_out, 'conversation')} that the model's template refuses")

    def _show(self, progress: ProgressLine, done: int, seconds: float) -> None:
        left = f", about {whole_seconds(seconds * (self.n_chunks - done) / done)} left" if done < self.n_chunks else ""
        progress.show(f"chunk {count(min(done + 1, self.n_chunks))} of {count(self.n_chunks)}{left}")
