"""Steps that end the chat, in every way there is, and start it again; and the disks that fail under
it."""

from __future__ import annotations

import resource
import signal
from random import Random

from app.program import exit_codes
from tests.programs.soak import texts
from tests.programs.soak.ledger import Fate, PromptMessage, read_all
from tests.programs.soak.run import Run
from tests.programs.soak.talk import turn
from tests.programs.soak.view import letters

FULL_DISK = "full disk (a small file system)"
READ_ONLY_DISK = "read-only disk"
_FILE_LIMIT_BYTES = 64


def _begin_reply(run: Run, rng: Random) -> PromptMessage:
    sent = run.say(texts.short, rng)
    run.live.becomes(lambda: run.view.is_writing, rng.choice((0.0, 0.3, 1.5)))
    return sent


def _seen_before_end(run: Run, sent: PromptMessage) -> None:
    """A program that ends by itself saves what was painted until then."""
    view = run.view
    if view.is_free:
        run.note_reply(sent)
    elif (
        view.blocks
        and view.blocks[-1].who == "model"
        and any(sent.marker in block.text for block in view.blocks)
    ):
        sent.reply = letters(view.blocks[-1].text)
        sent.fate = Fate.ANSWERED


def _ended(
    run: Run,
    ending: str,
    codes: set[int],
    rng: Random,
    is_shells: bool = False,
    has_terminal: bool = True,
) -> None:
    run.note_ended(ending, codes, is_shells, has_terminal)
    run.start(rng)


SIGNALS: dict[str, tuple[str, signal.Signals, int]] = {
    "kill_child": ("child", signal.SIGKILL, exit_codes.NO_MEMORY),
    "kill_child_writing": ("child", signal.SIGKILL, exit_codes.NO_MEMORY),
    "kill_supervisor": ("supervisor", signal.SIGKILL, -signal.SIGKILL),
    "kill_supervisor_writing": ("supervisor", signal.SIGKILL, -signal.SIGKILL),
    "terminate": ("supervisor", signal.SIGTERM, exit_codes.TERMINATED),
    "terminate_child": ("child", signal.SIGTERM, exit_codes.TERMINATED),
    "terminate_writing": ("supervisor", signal.SIGTERM, exit_codes.TERMINATED),
    "hang_up_signal": ("supervisor", signal.SIGHUP, exit_codes.HANGUP),
    "hang_up_writing": ("supervisor", signal.SIGHUP, exit_codes.HANGUP),
    "interrupt_signal": ("supervisor", signal.SIGINT, exit_codes.INTERRUPTED),
}
"""Steps that end the chat by a signal, some in the middle of a reply: to whom, which one, and the
exit code."""


def end_by_signal(signal_name: str, run: Run, rng: Random) -> None:
    """Send a signal and see the end."""
    to, number, code = SIGNALS[signal_name]
    is_kill = number is signal.SIGKILL
    if signal_name.endswith("writing"):
        sent = _begin_reply(run, rng)
        if not is_kill:
            _seen_before_end(run, sent)
    run.signal(getattr(run.live, to), number)
    run.counts["kills"] += is_kill
    _ended(run, signal_name, {code}, rng, is_shells=is_kill and to == "supervisor")


def close_terminal(run: Run, rng: Random) -> None:
    """The terminal's window is closed, in the middle of a reply at times."""
    if rng.random() < 0.5:
        _begin_reply(run, rng)
    run.live.note_family()
    run.live.close_terminal()
    _ended(run, "close_terminal", {exit_codes.HANGUP}, rng, has_terminal=False)


def quit_chat(run: Run, rng: Random) -> None:
    """Leave by the key or by the command."""
    run.live.note_family()
    if rng.random() < 0.5:
        run.live.press(b"\x11")
    else:
        run.live.press("/quit")
        run.live.wait_for(lambda: "/quit" in run.view.prompt, "/quit in the prompt")
        run.live.press("\r")
    _ended(run, "quit", {exit_codes.OK}, rng)


def quit_writing(run: Run, rng: Random) -> None:
    """Leave in the middle of a reply."""
    _seen_before_end(run, _begin_reply(run, rng))
    run.live.note_family()
    run.live.press(b"\x11")
    _ended(run, "quit_writing", {exit_codes.OK}, rng)


def interrupt_twice(run: Run, rng: Random) -> None:
    """Ctrl+C twice leaves; where the first was seen too late, twice again."""
    run.live.note_family()
    for _ in range(20):
        run.live.press(b"\x03\x03")
        if run.live.becomes(lambda: run.live.exit_code is not None, 5.0):
            break
    _ended(run, "interrupt_twice", {exit_codes.OK}, rng)


# ---- disks


def file_limit(run: Run, rng: Random) -> None:
    """Forbid files to grow for a while: messages of that time are saved afterwards, once."""
    child = run.live.child.pid
    _, most = resource.prlimit(child, resource.RLIMIT_FSIZE)
    resource.prlimit(child, resource.RLIMIT_FSIZE, (_FILE_LIMIT_BYTES, most))
    try:
        _talk_unsaved(run, rng)
    finally:
        resource.prlimit(child, resource.RLIMIT_FSIZE, (most, most))
    run.counts["file size limits"] += 1
    _wait_for_saving(run)


def full_disk(run: Run, rng: Random) -> None:
    """The disk is full for a while: what is said meanwhile is saved afterwards, once."""
    if not run.home.has_disk:
        run.skipped.add(FULL_DISK)
        return turn(run, rng)
    run.home.fill_disk()
    try:
        _talk_unsaved(run, rng)
    finally:
        run.home.free_disk()
    run.counts["full disks"] += 1
    return _wait_for_saving(run)


def _talk_unsaved(run: Run, rng: Random) -> None:
    for _ in range(rng.randint(1, 2)):
        run.finish(run.say(texts.long, rng))


def _wait_for_saving(run: Run) -> None:
    """Messages sent while nothing could be saved must reach the disk by themselves, once there is
    room."""
    run.live.wait_for(
        lambda: not run.ledger.check(read_all(run.home.store)),
        "the saving of what was said meanwhile",
    )


def read_only_disk(run: Run, rng: Random) -> None:
    """A start on a disk that takes nothing: the chat talks and says so; what is said then is not
    promised."""
    run.live.note_family()
    run.live.press(b"\x11")
    run.note_ended("quit", {exit_codes.OK})
    if not (run.home.has_disk and run.home.make_read_only()):
        run.skipped.add(READ_ONLY_DISK)
        return run.start(rng)
    try:
        run.start(rng)
        sent = run.say(texts.short, rng)
        sent.give_up("said on a read-only disk")
        run.live.wait_for(
            lambda: any("conversation not saved" in row for row in run.view.rows),
            "the word that nothing is saved",
        )
        run.finish(None)
        run.live.press(b"\x11")
        run.live.note_family()
        run.note_ended("quit from a read-only disk", {exit_codes.OK, exit_codes.IO_ERROR})
    finally:
        run.home.free_disk()
    run.counts["read-only disks"] += 1
    return run.start(rng)
