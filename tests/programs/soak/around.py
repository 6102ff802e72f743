"""Steps around what is said: other conversations, models and threads, screens, sizes, stops of the
process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from random import Random

from tests.programs.soak import texts
from tests.programs.soak.chat import ESCAPE
from tests.programs.soak.home import SIZES
from tests.programs.soak.ledger import read_all
from tests.programs.soak.run import BACKSPACE, Run
from tests.programs.soak.talk import turn

_SCREENS = {
    "F1": b"\x1bOP",
    "F2": b"\x1bOQ",
    "F3": b"\x1bOR",
    "F4": b"\x1bOS",
    "F5": b"\x1b[15~",
    "F8": b"\x1b[19~",
}
_MOVES = (b"\x1b[A", b"\x1b[B", b"\x1b[5~", b"\x1b[6~", b"\x1b[H", b"\x1b[F")
_CONVERSATIONS = b"\x1b[19~"
_SHOWN_S = 60.0
"""Patience with a screen that is imported when it is first shown, on a busy machine."""
_SEARCHED = ("capital", "river", "mk0000", "Norway", "zzzz", "sky blue")
_DOCUMENT_WORDS = (
    "fan",
    "dust",
    "screw",
    "größe",
    "river",
    "bearing",
    "oil",
    "manual",
    "page",
    "table",
    "seven",
)
_THEMES = tuple(
    sorted(path.stem for path in (Path(__file__).resolve().parents[3] / "themes").glob("*.toml"))
)


def new(run: Run, rng: Random) -> None:
    """Begin another conversation, with a system prompt at times."""
    if rng.random() < 0.3:
        run.command(
            f"/system You answer in {rng.choice(('one word', 'short sentences'))}.",
            "system prompt:",
        )
    else:
        run.command("/new", "New conversation")
    run.counts["new conversations"] += 1
    run.go_home()
    turn(run, rng)


def _list(run: Run, rng: Random) -> tuple[str, str] | None:
    """Show the list, narrowed to one conversation by a marker; return that with the marker, or None
    without any."""
    saved_now = read_all(run.home.store)
    ids = [
        conversation_id
        for conversation_id, saved in saved_now.saved.items()
        if saved.conversation.messages
    ]
    if not ids:
        return None
    chosen = rng.choice(ids)
    marker = saved_now.saved[chosen].conversation.messages[0].text.split()[0]
    run.live.press(_CONVERSATIONS)
    run.live.wait_for(lambda: "Conversations" in run.view.rows[0], "the list of conversations")
    run.live.press(marker)
    run.live.wait_for(
        lambda: (
            f"filter: {marker}" in run.view.rows[0]
            and any(marker in row for row in run.view.rows[2:])
        ),
        f"the conversation with {marker}",
    )
    return chosen, marker


def older(run: Run, rng: Random) -> None:
    """Open an earlier conversation from the list and say something there."""
    if _list(run, rng) is None:
        return
    run.live.press("\r")
    run.live.wait_for(lambda: run.view.is_chat, "the opened conversation")
    run.counts["older conversations opened"] += 1
    run.go_home()
    turn(run, rng)


def search(run: Run, rng: Random) -> None:
    """Look for words in all conversations, narrow the list letter by letter, and leave it."""
    run.live.press(_CONVERSATIONS)
    run.live.wait_for(lambda: "Conversations" in run.view.rows[0], "the list of conversations")
    for _ in range(rng.randint(1, 3)):
        words = rng.choice(_SEARCHED)
        run.live.press(words)
        run.live.wait_for(
            lambda words=words: words in run.view.rows[0], f"the search for {words!r}"
        )
        run.live.press(rng.choice(_MOVES[:4]))
        run.live.settle()
        run.live.press(BACKSPACE * len(words))
        run.live.wait_for(lambda words=words: words not in run.view.rows[0], "the whole list")
    run.counts["searches"] += 1
    _leave(run)


def open_document(run: Run, rng: Random) -> None:
    """Attach a longer document, or several, and ask about it."""
    names = []
    for number in range(rng.randint(1, 2)):
        path = (
            run.home.work
            / f"document-{rng.randint(0, 9)}-{number}.{rng.choice(('txt', 'md', 'html'))}"
        )
        lines = (" ".join(rng.choices(_DOCUMENT_WORDS, k=9)) for _ in range(rng.randint(30, 400)))
        path.write_text("\n\n".join(lines), encoding="utf-8")
        names.append(path.name)
    run.command(f"/read {' '.join(names)}")
    marker = run.next_marker()
    run.type_text(f"{marker} what?")
    run.live.wait_for(
        # Of what the context cannot hold passages go with the question, which a line says.
        lambda: (
            marker in run.view.prompt
            and (
                "[" in run.view.prompt.partition(marker)[0]
                or any("passages" in row for row in run.view.rows)
            )
        ),
        f"{marker} after the attached documents in the prompt",
    )
    run.live.press("\r")
    run.counts["documents opened"] += len(names)
    run.counts["turns"] += 1
    run.finish(None)
    run.go_home()


def title(run: Run, rng: Random) -> None:
    """Give the conversation a title."""
    run.command(f"/title Title {rng.randint(0, 99999)}", "title:", "gets a title")


def delete(run: Run, rng: Random) -> None:
    """Delete a conversation; the chat's own is refused."""
    saved_then = read_all(run.home.store)
    if len(saved_then.saved) < 2:
        return
    if _list(run, rng) is None:
        return
    run.live.press(b"\x04")
    run.live.wait_for(
        lambda: any("deletes it for good" in row for row in run.view.rows), "the question"
    )
    run.live.press("y")
    run.live.wait_for(
        lambda: not any("deletes it for good" in row for row in run.view.rows), "the answer"
    )
    run.go_home()
    saved_now = read_all(run.home.store)
    gone = saved_then.saved.keys() - saved_now.saved.keys()
    if len(gone) != 1:
        run.fail(f"{len(gone)} conversations are gone after one was deleted")
    run.ledger.forget_deleted(gone.pop(), saved_then, saved_now)
    run.counts["conversations deleted"] += 1


def switch_model(run: Run, rng: Random) -> None:
    """Open the other model, and go on, begin again, think better of it, or stop the opening."""
    model = rng.choice(run.home.models())
    is_empty = not run.export()
    answer = rng.choice((b"y", b"y", b"n", ESCAPE))
    run.command(f"/model {model}", "loading", "Another model", "weights")
    if not is_empty:
        run.live.wait_for(
            lambda: any("Another model" in row for row in run.view.rows), "the question"
        )
        run.live.settle()
        run.live.press(answer)
    if answer != ESCAPE and rng.random() < 0.2:
        run.live.becomes(lambda: "loading" in run.view.status or "reading" in run.view.status, 1.0)
        run.live.press(ESCAPE)
    run.counts["model switches"] += 1
    run.finish(None)
    run.go_home()
    turn(run, rng)


def threads(run: Run, rng: Random) -> None:
    """Compute with other threads, in the middle of a reply at times."""
    n_cores = len(os.sched_getaffinity(0))
    sent = run.say(texts.short, rng) if rng.random() < 0.5 else None
    run.command(f"/threads {rng.randint(1, n_cores)} {rng.randint(1, n_cores)}")
    run.counts["thread changes"] += 1
    run.finish(sent)


def read_file(run: Run, rng: Random) -> None:
    """Attach a file to a message."""
    path = run.home.work / "notes.txt"
    path.write_text(
        "\n".join(rng.choices(("fan", "dust", "screw", "größe"), k=rng.randint(5, 60))),
        encoding="utf-8",
    )
    run.command(f"/read {path.name}")
    marker = run.next_marker()
    run.type_text(marker)  # at once: what is typed after the command comes after the file
    run.live.wait_for(
        lambda: "[file" in run.view.prompt.partition(marker)[0] and marker in run.view.prompt,
        f"{marker} after the attached file in the prompt",
    )
    run.live.press("\r")
    run.live.wait_for(lambda: run.view.has_empty_prompt, "an empty prompt")
    run.counts["turns"] += 1
    run.finish(None)


def copy(run: Run, rng: Random) -> None:
    """Copy the last reply."""
    run.command("/copy")
    run.live.settle()


def screens(run: Run, rng: Random) -> None:
    """Look at some screens, move on each, and come back; while a reply is written at times."""
    sent = run.say(texts.short, rng) if rng.random() < 0.4 else None
    for _ in range(rng.randint(1, 4)):
        name = rng.choice(list(_SCREENS))
        run.live.press(_SCREENS[name])
        run.live.becomes(lambda: not run.view.is_chat, _SHOWN_S)
        for _ in range(rng.randint(0, 4)):
            run.live.press(rng.choice(_MOVES))
        run.live.settle()
        run.counts["screens shown"] += 1
        _leave(run)
    run.finish(sent)


def _leave(run: Run) -> None:
    """Press Esc until the chat is back: the threads' screen stops measuring first."""
    for _ in range(60):
        if run.view.is_chat:
            return
        run.live.press(ESCAPE)
        run.live.becomes(lambda: run.view.is_chat, 2.0)
    run.fail("Esc does not lead back to the chat")


def palette(run: Run, rng: Random) -> None:
    """Search in the palette and leave it."""
    run.live.press(b"\x10")
    run.live.settle(0.3)
    run.live.press(rng.choice(("the", "copy", "zzzz", "mod")))
    for _ in range(rng.randint(0, 4)):
        run.live.press(rng.choice(_MOVES[:2]))
    run.live.settle(0.3)
    run.live.press(ESCAPE)
    run.counts["screens shown"] += 1


def theme(run: Run, rng: Random) -> None:
    """Choose other colours, by name or from the list, which is left at times."""
    if rng.random() < 0.6:
        name = rng.choice(_THEMES)
        run.command(f"/theme {name}", f"theme: {name}")
    else:
        run.command("/theme")
        run.live.settle(0.3)
        for _ in range(rng.randint(1, 5)):
            run.live.press(_MOVES[1])
        run.live.settle(0.3)
        run.live.press(rng.choice((ESCAPE, b"\r")))
    run.counts["themes"] += 1


def scroll(run: Run, rng: Random) -> None:
    """Go through the conversation by pages and by messages, fold and unfold, show and hide the
    strip."""
    keys = (b"\x1b[5~", b"\x1b[5~", b"\x1b[6~", b"\x1b[1;5A", b"\x1b[1;5A", b"\x1b[1;5B", b"\x0f")
    run.live.press(b"\x14")
    for _ in range(rng.randint(3, 12)):
        run.live.press(rng.choice(keys))
        run.live.settle(0.05, 0.5)
    # next to the strip, or below it, messages could not be told from figures
    run.live.press(b"\x14")
    run.live.settle()
    run.live.press(ESCAPE)
    run.go_home()


def resize(run: Run, rng: Random) -> None:
    """Go through sizes that no one has, and type at one of them; while a reply is written at
    times."""
    sent = run.say(texts.short, rng) if rng.random() < 0.5 else None
    for _ in range(rng.randint(2, 8)):
        corner = rng.random()
        columns = 1 if corner < 0.1 else 300 if corner > 0.9 else rng.randint(1, 300)
        rows = 1 if corner < 0.1 else 100 if corner > 0.9 else rng.randint(1, 100)
        run.live.resize(columns, rows)
        run.live.settle(0.05, 0.5)
        if rng.random() < 0.2:
            run.live.press("abc")
        run.counts["resizes"] += 1
    run.live.resize(*rng.choice(SIZES))
    run.live.wait_for(lambda: run.view.is_chat, "the chat at a readable size")
    run.finish(None)
    run.go_home()
    if sent is not None:
        run.note_reply(sent)


def suspend(run: Run, rng: Random) -> None:
    """Stop the process and let it go on, while a reply is written at times."""
    sent = run.say(texts.short, rng) if rng.random() < 0.5 else None
    n_stopped = run.live.count("stopped")
    run.signal(run.live.supervisor, signal.SIGTSTP)
    run.live.wait_for(lambda: run.live.count("stopped") > n_stopped, "the stop of the process")
    if undone := run.live.leaves_undone():
        run.fail(f"the terminal of the stopped program: {', '.join(undone)}")
    run.live.screen.resize(run.live.screen.columns, run.live.screen.n_rows)
    os.killpg(run.live.supervisor.pid, signal.SIGCONT)
    run.live.wait_for(lambda: run.view.is_chat, "the chat after the process went on")
    run.counts["suspensions"] += 1
    run.finish(sent)
