"""Long run of the chat: the open program, what was seen of it, and the way back to an empty
prompt."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import NoReturn

import psutil

from app.text.clean_text import clean_text
from tests.programs.soak.chat import ESCAPE, PATIENCE_S, START_PATIENCE_S, Chat, Failed
from tests.programs.soak.home import Home
from tests.programs.soak.ledger import Fate, Ledger, PromptMessage, read_all
from tests.programs.soak.samples import Sample, growth, sample
from tests.programs.soak.texts import marker_of
from tests.programs.soak.view import View, letters

_NOT_SENT = "Not sent: this message"
SELECT_ALL = b"\x1ba"
BACKSPACE = b"\x7f"


class Run:
    """Everything that steps share.

    Attributes:
        counts: what was done, for the table.
        lives: samples of each process, the present one last.
        record: file for each look at the process; None for none.
        skipped: parts that cannot be done here, by name.
    """

    def __init__(self, home: Home, log: Path) -> None:
        self.counts = Counter[str]()
        self.home = home
        self.ledger = Ledger()
        self.lives: list[list[Sample]] = []
        self.skipped: set[str] = set()
        self.step = 0
        self._before = ""
        """Letters of the last reply on the screen when a message was sent."""
        self._n_said = 0
        self._log = log.open("a", encoding="utf-8")
        self.chat: Chat | None = None
        self.record: Path | None = None

    def write(self, line: str) -> None:
        """Add a line to the run's log."""
        self._log.write(f"{time.strftime('%H:%M:%S')} {line}\n")
        self._log.flush()

    @property
    def live(self) -> Chat:
        """The chat that is open."""
        assert self.chat is not None
        return self.chat

    @property
    def view(self) -> View:
        """The painted screen."""
        return View(self.live.screen.rows())

    # ---- start, idle, end

    def start(self, rng: Random) -> None:
        """Start the program and wait until it can be typed into."""
        self.chat = self.home.start(rng)
        self.lives.append([])
        self.go_home(START_PATIENCE_S)
        self.chat.note_family()

    def go_home(self, patience_s: float = PATIENCE_S) -> None:
        """Leave whatever is shown, until an empty prompt has the cursor and the engine is idle."""
        give_up_s = time.monotonic() + patience_s
        while True:
            if self.live.becomes(lambda: self.view.is_home, 0.5):
                self.live.settle()
                if self.view.is_home and self._has_read_all_keys():
                    return
            view = self.view
            if (
                view.is_chat
                and view.is_free
                and not view.has_empty_prompt
                and "Enter sends" in view.edge
            ):
                self.live.press(SELECT_ALL + BACKSPACE)
            elif not (view.is_chat and not view.is_free) and self._may_leave(view):
                self.live.press(ESCAPE)
            self.live.wait_for(lambda: True, "")
            self.live.look_for_errors()
            if self.live.exit_code is not None:
                raise Failed(
                    f"the program ended with {self.live.exit_code} on the way to the prompt"
                )
            if time.monotonic() > give_up_s:
                raise Failed("the way back to an empty prompt of an idle chat was not found")

    def _has_read_all_keys(self) -> bool:
        """Whether a letter typed now comes into the prompt: on a slow machine, keys before it may
        still wait."""
        self.live.press("~")
        if not self.live.becomes(lambda: self.view.prompt.strip() == "~", 5.0):
            return False
        self.live.settle()
        self.live.press(BACKSPACE)
        return self.live.becomes(lambda: self.view.is_home, 5.0)

    def _may_leave(self, view: View) -> bool:
        """Whether Esc is wanted: in an idle chat with the cursor in its empty prompt a note may
        hide the edge."""
        return "loading" not in view.status and "compiling" not in view.status and bool(view.status)

    def take_sample(self) -> None:
        """Look at what the idle chat holds."""
        try:
            look = sample(self.live.child, self.step)
        except psutil.NoSuchProcess:
            raise Failed("the chat's process is gone") from None
        self.lives[-1].append(look)
        if self.record is not None:
            line = json.dumps(
                {"life": len(self.lives), "turns": self.counts["turns"], **asdict(look)}
            )
            with self.record.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        self.live.note_family()

    def note_ended(
        self, ending: str, expected: set[int], is_shells: bool = False, has_terminal: bool = True
    ) -> None:
        """The program was told to end: it must, with one of these exit codes, and leave nothing."""
        chat = self.live
        code = chat.wait_for_end()
        processes = chat.wait_for_family_end()
        chat.look_for_errors()
        if processes:
            raise Failed(f"after {ending} there are still processes: {[p.pid for p in processes]}")
        if code not in expected:
            raise Failed(f"the exit code after {ending} was {code}, not {sorted(expected)}")
        undone = chat.leaves_undone(is_shells) if has_terminal else []
        if undone:
            raise Failed(f"the terminal after {ending}: {', '.join(undone)}")
        chat.close()
        self.chat = None
        self.counts["endings"] += 1
        self.check_disk()
        self.check_growth()

    def check_disk(self) -> None:
        """Compare what was seen with what is saved, while nothing writes."""
        if self.home.log.exists():
            log_text = self.home.log.read_text(encoding="utf-8", errors="replace")
            raise Failed(f"a bug was logged: {log_text[-3000:]}")
        troubles = self.ledger.check(read_all(self.home.store))
        if troubles:
            raise Failed("the saved conversations: " + "; ".join(troubles[:10]))
        self.counts["checks of all that is saved"] += 1

    def check_growth(self) -> None:
        """Compare what the last process held in its life."""
        troubles = growth(self.lives[-1])
        if troubles:
            raise Failed(f"the process of {len(self.lives[-1])} steps: {'; '.join(troubles)}")

    # ---- saying something

    def next_marker(self) -> str:
        """Return a word that was not said yet."""
        self._n_said += 1
        return marker_of(self._n_said)

    def empty_prompt(self) -> None:
        """Delete what stands in the prompt."""
        self.live.press(SELECT_ALL + BACKSPACE)
        self.live.wait_for(lambda: self.view.has_empty_prompt, "an empty prompt")

    def type_text(self, text: str) -> None:
        """Type a message; its line breaks are keys."""
        self.live.press(text.replace("\n", "\x0a"))

    def paste(self, text: str) -> None:
        """Paste, in brackets."""
        self.live.press(b"\x1b[200~" + text.encode().replace(b"\n", b"\r") + b"\x1b[201~")

    def command(self, line: str, *answers: str) -> str:
        """Carry out a slash command, wait for one of these answers, and return what was painted
        since."""
        self.live.press(line)
        self.live.wait_for(
            lambda: line[:20] in self.view.prompt, f"the command {line!r} in the prompt"
        )
        painted = self._mark_painted()
        self.live.press("\r")
        if answers:
            self.live.wait_for(
                lambda: any(answer in painted() for answer in answers),
                f"one of {answers} after {line!r}",
            )
        return painted()

    def send(self, marker: str, text: str, fate: Fate = Fate.SENT) -> PromptMessage:
        """Send what stands in the prompt and wait until it is seen among the messages."""
        end = letters(text)[-6:]
        self.live.wait_for(
            lambda: marker in self.view.prompt or end in letters(self.view.prompt),
            f"{marker} in the prompt",
        )
        painted = self._mark_painted()
        self._before = self._last_letters()
        self.live.press("\r")
        self.live.wait_for(lambda: self._is_sent(marker, painted()), f"{marker} among the messages")
        return self.ledger.note(marker, clean_text(text.strip()), fate)

    def _is_sent(self, marker: str, painted: str) -> bool:
        """Whether a message left the prompt and stands among the messages, or was followed by its
        reply already."""
        view = self.view
        if marker in view.prompt:
            return _NOT_SENT in painted
        is_new_reply = self._last_letters() not in ("", self._before)
        return view.is_chat and (view.shows(marker) or view.is_writing or is_new_reply)

    def _last_letters(self) -> str:
        reply = self.view.last_reply
        return reply.reply_letters if reply is not None else ""

    def say(
        self, text_of: Callable[[str, Random], str], rng: Random, is_pasted: bool = False
    ) -> PromptMessage:
        """Type or paste a new message and send it."""
        marker = self.next_marker()
        text = text_of(marker, rng)
        if is_pasted:
            first, _, remaining = text.partition(" ")
            self.type_text(f"{first} ")
            self.paste(remaining)
        else:
            self.type_text(text)
        self.counts["turns"] += 1
        return self.send(marker, text)

    def finish(self, sent: PromptMessage | None) -> None:
        """Wait until the turn is over, and note what of the reply is seen."""
        self.live.wait_for(lambda: self.view.is_free, "the end of the turn")
        self.live.settle()
        self.live.wait_for(lambda: self.view.is_free, "the end of the turn")
        if sent is not None:
            self.note_reply(sent)

    def note_reply(self, sent: PromptMessage) -> None:
        """Note the reply at the end of the screen as one that is finished, if it stands there below
        its question."""
        view = self.view
        reply = view.last_reply
        blocks = view.blocks
        if (
            reply is None
            or reply.n_tokens is None
            or sent.fate not in (Fate.SENT, Fate.ANSWERED, Fate.REPLACED)
        ):
            return
        if len(blocks) < 2 or sent.marker not in blocks[-2].text:
            # The turn came to nothing, and this is the reply from before; or its question is out of
            # sight, and whether it is this one's cannot be seen.
            return
        sent.fate = Fate.ANSWERED
        sent.reply = reply.reply_letters
        self.counts["replies"] += 1
        self.counts["tokens"] += reply.n_tokens

    def command_key(self, key: str, *answers: str) -> None:
        """Press one key and wait for one of its answers."""
        painted = self._mark_painted()
        self.live.press(key)
        self.live.wait_for(
            lambda: any(answer in painted() for answer in answers), f"{answers} after {key!r}"
        )

    def fail(self, reason: str) -> NoReturn:
        """End the run."""
        raise Failed(reason)

    def export(self) -> list[dict[str, str]]:
        """Return the live conversation as the chat saves it; nothing where it is empty."""
        path = self.home.work / f"live-{self.step}-{time.monotonic_ns()}.json"
        painted = self._mark_painted()
        self.live.press(f"/save {path.name}\r")
        self.live.wait_for(
            lambda: path.exists() or "nothing to save" in painted(), "the saved conversation"
        )
        self.go_home()
        if not path.exists():
            return []
        messages: list[dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))["messages"]
        path.unlink()
        return messages

    def markers(self, messages: list[dict[str, str]]) -> list[str | None]:
        """Return the markers of the user's messages, in order."""
        return [
            self.ledger.marker_in(message["text"])
            for message in messages
            if message["role"] == "user"
        ]

    def _mark_painted(self) -> Callable[[], str]:
        self.live.settle()
        self.live.screen.painted = ""
        return lambda: self.live.screen.painted

    def signal(self, process: psutil.Process, number: signal.Signals) -> None:
        """Send a signal."""
        self.live.note_family()
        process.send_signal(number)
