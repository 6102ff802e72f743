"""Report card to share: its content, and that nothing on it is private."""

from __future__ import annotations

import getpass
import platform
import re
import time
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from app.cli.dispatch import main
from app.machine.sensors.daily_speeds import ReplyConditions
from app.machine.sensors.reply_history import (
    READ_GBPS,
    Basis,
    KnownAs,
    PastReply,
    ReplyHistory,
    Speeds,
    past_measurement,
    rates_key,
)
from app.models.library import report_card
from app.models.library.report_card import (
    as_svg,
    as_text,
    bound_line,
    card_of,
    guesses_line,
    history_rows,
    known_speeds,
    today_line,
    write_card,
)
from app.program import exit_codes, paths
from app.program.refusals import Refusal
from app.text.guesses import GuessFigures
from tests.app import chat_driver
from tests.app.chat_driver import chatting
from tests.app.fake_engine import Script
from tests.app.machine.sensors.views import SPENT
from tests.engine import tiny_gguf

SECRET = "quokka"
MODEL = KnownAs("m", "Q8_0", 10)
SPEEDS = Speeds(28.51, 95.2, basis=Basis.MEASURED, prefill_basis=Basis.MEASURED)


def private_words() -> set[str]:
    names = {getpass.getuser(), platform.node(), str(Path.home()), SECRET}
    return {name.lower() for name in names if len(name) > 2}


def private_words_in(text: str) -> list[str]:
    return [word for word in private_words() if word in text.lower()]


def test_the_card_of_a_chat_has_the_guesses_of_the_last_reply() -> None:
    guesses = (GuessFigures("conversation", 60, 45), GuessFigures("predictor", 8, 5))
    reply = replace(SPENT, guesses=guesses, guess_saved_s=3.21)
    card = replace(card_of("m", "Q8_0", (2, 2), SPEEDS), guesses=guesses_line(reply))
    shown = " ".join(as_text(card).split())
    assert "guesses last reply: 45 of 60 from this conversation, 5 of 8 from" in shown
    assert "multi-token prediction, saved 3.2 s" in shown
    assert guesses_line(None) == guesses_line(SPENT) == ""


def test_a_card_has_the_machine_the_model_and_the_speeds() -> None:
    card = card_of("Llama 3.2 1B", "Q4_K_M", (2, 4), SPEEDS)
    card_text = as_text(card)
    for phrase in (
        "Llama 3.2 1B · Q4_K_M",
        "28.5 tok/s",
        "95.2 tok/s",
        "2 write, 4 read",
        "core",
        "memory",
    ):
        assert phrase in card_text
    drawn = ElementTree.fromstring(as_svg(card))
    words = " ".join(drawn.itertext())
    assert "28.5 tok/s" in words
    assert "Llama 3.2 1B" in words


@pytest.mark.parametrize(
    "name", [f"/home/{SECRET}/llama", f"C:\\Users\\{SECRET}\\llama\\", "llama"]
)
def test_only_the_file_name_of_a_path_is_shown(name: str) -> None:
    card = card_of(name, "Q8_0", (2, 2), Speeds())
    assert card.model == "llama"
    assert private_words_in(as_text(card) + as_svg(card)) == []


def test_a_hostile_name_stays_text() -> None:
    card = card_of('<script>"\x1b[31m&', "Q8_0", (2, 2), Speeds())
    assert "\x1b" not in as_text(card)
    assert "<script>" not in as_svg(card)
    ElementTree.fromstring(as_svg(card))


def test_benchmarks_and_replies_are_in_one_store() -> None:
    history = ReplyHistory(paths.speeds_file())
    history.add(MODEL.key("mmap", 2), PastReply(time.time(), 90, 5.0, 50.0, 4.0))
    measured = [Basis.MEASURED, Basis.MEASURED]
    assert known_speeds("m", "Q8_0", 10) == Speeds(5.0, 50.0, 2, *measured)
    for tps in (7.0, 8.0, 4.0, 9.0):
        benched = past_measurement(96, tps, 384, 70.0, is_quiet=tps != 4.0)
        history.add(MODEL.key("mmap", 3), benched)
    assert known_speeds("m", "Q8_0", 10) == Speeds(8.0, 70.0, 3, *measured)
    assert known_speeds("m", "Q4_0", 10) == Speeds()


def test_the_last_reply_of_today_is_shown_with_usual_speed() -> None:
    history = ReplyHistory(paths.speeds_file())
    key = MODEL.key("mmap", 2)
    usual = Speeds(20.0, 0.0, 2, Basis.MEASURED)
    history.add(key, PastReply(time.time() - 86_400, 90, 20.0, 0, 0.1))
    assert today_line("m", "Q8_0", 10, usual) == ""
    history.add(key, PastReply(time.time(), 90, 8.0, 0, 0.1, is_quiet=False))
    today = today_line("m", "Q8_0", 10, usual)
    assert today == "8.0 tok/s (busy: 40 % of the usual speed)"
    card = card_of("m", "Q8_0", (2, 2), usual, today)
    assert re.search(
        rf"usually writes +20.0 tok/s \(measured\)\n +today +{re.escape(today)}", as_text(card)
    )
    assert today in " ".join(ElementTree.fromstring(as_svg(card)).itertext())
    history.add(
        MODEL.key("huge", 2),
        PastReply(time.time(), 90, 19.0, 0, 0.1),
    )
    assert today_line("m", "Q8_0", 10, usual) == "19.0 tok/s"


def test_the_replies_of_ninety_days_are_shown_with_marks() -> None:
    history = ReplyHistory(paths.speeds_file())
    assert history_rows("m", "Q8_0", 10) == ()
    for n_days_ago, tps in ((100, 1.0), (3, 10.0), (0, 20.0)):
        finished_s = time.time() - 86_400 * n_days_ago
        history.add_reply(
            MODEL, "mmap", PastReply(finished_s, 90, tps, 0, 0.1), ReplyConditions(2 + n_days_ago)
        )
    rows = history_rows("m", "Q8_0", 10)
    assert [label for label, _ in rows] == ["history", "90 days", "marks"]
    assert rows[0][1].startswith("▄──█ since ")
    assert rows[1][1] == "2 replies, 10.0 to 20.0 tok/s"
    card = card_of("m", "Q8_0", (2, 2), Speeds(20.0), history=rows)
    assert "history" in as_text(card)
    assert rows[0][1] in " ".join(ElementTree.fromstring(as_svg(card)).itertext())


@pytest.mark.parametrize(
    ("usual", "line"),
    [
        (SPEEDS, "bound by memory: 86 % of what this machine can read"),
        (Speeds(20.0, basis=Basis.MEASURED),
         "bound by the cores: they compute at 60 % of what memory delivers"),
        (Speeds(20.0, basis=Basis.BUSY), ""),
        (Speeds(), ""),
    ],
)  # fmt: skip
def test_the_bound_of_the_usual_speed_is_shown(usual: Speeds, line: str) -> None:
    usual = replace(usual, threads=2)
    assert bound_line(usual, 10**9) == ""
    history = ReplyHistory(paths.speeds_file())
    history.remember_rates(rates_key(2), {READ_GBPS: 33.3}, is_quiet=True)
    assert bound_line(usual, 10**9) == line
    card = card_of("m", "Q8_0", (2, 2), usual, bound=line)
    shown = " ".join(as_text(card).split())
    assert line in shown
    assert line.removeprefix("bound ").split(":")[0] in as_svg(card)


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    card = card_of("m", "Q8_0", (2, 2), Speeds())
    assert "written: " in write_card(card, str(tmp_path / "card.svg"))
    assert (tmp_path / "card.svg").read_text().startswith("<svg")
    with pytest.raises(Refusal, match=r"card\.svg exists already"):
        write_card(card, str(tmp_path / "card.svg"))
    with pytest.raises(Refusal, match="not written"):
        write_card(card, str(tmp_path / "none" / "card.txt"))


def test_the_command_prints_a_card_without_paths(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / SECRET
    folder.mkdir()
    model = tiny_gguf.write(folder / "m.gguf", "llama", "Q8_0")
    assert main(["report", str(model)]) == exit_codes.OK
    out = capfd.readouterr().out
    assert "Q8_0" in out
    assert "not measured yet" in out
    assert private_words_in(out) == []


async def test_the_chat_copies_a_card_without_conversation_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[str] = []
    original = chat_driver.options_for
    history = {"open_history": lambda: ReplyHistory(paths.speeds_file())}
    monkeypatch.setattr(
        chat_driver, "options_for", lambda script: replace(original(script), **history)
    )
    async with chatting(Script(replies=[[" word"] * 60])) as driver:
        monkeypatch.setattr(driver.app, "copy_to_clipboard", copied.append)
        await driver.ask(f"What is a {SECRET}?")
        await driver.say("/report")
        await driver.until(lambda: copied, "copied")
        assert "tok/s" in copied[0]
        assert "model" in copied[0]
        assert re.search(r"^ +today +[0-9.]+ tok/s", copied[0], re.MULTILINE)
        assert private_words_in(copied[0]) == []
        await driver.say(f"/report {tmp_path / 'card.svg'}")
        await driver.note("written: ")
        assert private_words_in((tmp_path / "card.svg").read_text()) == []
        # These speeds belong to another thread count: the card names the count that was measured.
        monkeypatch.setattr(report_card, "known_speeds", lambda *model: Speeds(50.0, 0.0, 7))
        await driver.say("/report")
        await driver.until(lambda: len(copied) > 1, "copied")
        assert re.search(r"threads +7$", copied[1], re.MULTILINE)
