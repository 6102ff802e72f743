"""``jalopy report``: a card with machine, model and speeds, to show to others. Opens no model. No Textual."""

from __future__ import annotations

from pathlib import Path

from app.library.choose_model import choose_model
from app.library.header import ModelHeader, read_header
from app.library.report_card import as_text, card_of, known_speeds, write_card
from app.program import exit_codes
from app.program.refusals import Refusal, say
from app.program.settings import Settings


def report(settings: Settings, model: str | None = None, out: str = "") -> int:
    """Print the card, or write it into a file.

    Raises:
        EngineError: the model cannot be used.
        Refusal: the file is not written.
    """
    path = choose_model(model, settings)
    header = read_header(Path(path)) if path else ModelHeader()
    if header.reason:
        raise Refusal(f"jalopy report: {header.reason}", exit_codes.BAD_DATA)
    weights_bytes = header.needs.weights_bytes if header.needs is not None else 0
    speeds, threads = known_speeds(header.name, header.quantization, weights_bytes)
    card = card_of(header.name, header.quantization, (threads, 0), speeds)
    if out:
        say(write_card(card, out))
    else:
        print(as_text(card), end="", flush=True)
    return exit_codes.OK
