"""Steps that say something: turns of all kinds, stops, edits, other replies, copies."""

from __future__ import annotations

from random import Random

from tests.programs.soak import texts
from tests.programs.soak.chat import ESCAPE
from tests.programs.soak.ledger import Fate, PromptMessage
from tests.programs.soak.run import Run
from tests.programs.soak.view import is_seen_in, letters

_LOOKS = 3
"""Times that the live conversation is compared with the disk before a difference counts."""


def turn(run: Run, rng: Random) -> None:
    """Say something short."""
    run.finish(run.say(texts.short, rng))


def long_turn(run: Run, rng: Random) -> None:
    """Type some lines."""
    run.finish(run.say(texts.long, rng))


def markdown_turn(run: Run, rng: Random) -> None:
    """Paste Markdown and odd characters."""
    run.finish(run.say(texts.markdown, rng, is_pasted=True))


def paste(run: Run, rng: Random) -> None:
    """Type a little and paste much, which is folded; it may be more than the context holds."""
    marker = run.next_marker()
    pasted = texts.pasted(rng)
    run.type_text(f"{marker} look: ")
    run.paste(pasted)
    run.live.wait_for(lambda: "[pasted" in run.view.prompt, "the folded paste")
    run.counts["turns"] += 1
    sent = run.send(marker, f"{marker} look: {pasted}")
    run.finish(sent)
    if (
        any("Not sent: this message" in row for row in run.view.rows)
        or not run.view.has_empty_prompt
    ):
        sent.give_up("not sent, too long for the context")
        run.counts["messages too long for the context"] += 1


def stop(run: Run, rng: Random) -> None:
    """Stop a reply at some moment, with the cursor in the prompt or in the middle of the next
    message."""
    sent = run.say(texts.short, rng)
    _let_it_write(run, rng)
    run.live.press(rng.choice((ESCAPE, ESCAPE, b"\x1b")))
    run.live.becomes(lambda: run.view.is_free, 1.0)
    run.counts["stops"] += 1
    run.finish(sent)


def _let_it_write(run: Run, rng: Random) -> None:
    run.live.becomes(lambda: run.view.is_writing or run.view.is_free, 5.0)
    run.live.becomes(lambda: run.view.is_free, rng.choice((0.0, 0.1, 0.4, 1.0)))


def queue(run: Run, rng: Random) -> None:
    """Send more while a reply is written; take one back at times."""
    waiting: list[PromptMessage] = [run.say(texts.short, rng)]
    for _ in range(rng.randint(1, 3)):
        marker = run.next_marker()
        text = texts.short(marker, rng)
        run.type_text(text)
        waiting.append(run.send(marker, text, Fate.WAITS))
        run.counts["turns"] += 1
    run.finish(None)
    for sent in waiting:
        sent.fate = Fate.SENT  # all were sent by now
    run.note_reply(waiting[-1])


def last_said(run: Run) -> PromptMessage | None:
    """Return the last message of the user's, if the conversation has one of this run's."""
    markers = run.markers(run.export())
    return run.ledger.said[markers[-1]] if markers and markers[-1] else None


def regenerate(run: Run, rng: Random) -> None:
    """Answer again, and stop that at times."""
    _again(run, rng, "/regen")
    run.counts["replies again"] += 1


def go_on(run: Run, rng: Random) -> None:
    """Continue the last reply, where it was stopped; refused where it is complete."""
    _again(run, rng, "/continue")
    run.counts["continued"] += 1


def _again(run: Run, rng: Random, command: str) -> None:
    sent = last_said(run)
    if sent is not None:
        sent.reply = ""  # another may take its place
    run.command(command)
    run.live.becomes(lambda: run.view.is_writing, 0.5)
    if rng.random() < 0.3:
        _let_it_write(run, rng)
        run.live.press(ESCAPE)
        run.counts["stops"] += 1
    run.finish(None)
    _note_from_chat(run, sent)


def _note_from_chat(run: Run, sent: PromptMessage | None) -> None:
    """Note what the chat itself has now: the reply from before may still be painted."""
    run.go_home()
    messages = run.export()
    if sent is None or not messages:
        return
    is_answered = messages[-1]["role"] == "assistant"
    sent.fate = Fate.ANSWERED if is_answered else Fate.SENT
    sent.reply = letters(messages[-1]["text"]) if is_answered else ""
    run.counts["replies"] += is_answered


def edit(run: Run, rng: Random) -> None:
    """Say something else in place of an earlier message; leave it as it was at times."""
    markers = run.markers(run.export())
    if not markers:
        return turn(run, rng)
    number = rng.randint(max(1, len(markers) - 4), len(markers))
    answer = run.command(f"/edit {number}", "asks again", "no longer sees this message")
    if "asks again" not in answer:
        return None
    run.live.wait_for(lambda: "asks again" in run.view.edge, "the message to edit")
    if rng.random() < 0.25:
        return run.live.press(ESCAPE)
    marker = run.next_marker()
    text = texts.short(marker, rng)
    run.empty_prompt()
    run.type_text(text)
    run.ledger.replace(marker_name for marker_name in markers[number - 1 :] if marker_name)
    sent = run.send(marker, text, Fate.REPLACED)  # it may be stopped, and everything is as it was
    run.counts["turns"] += 1
    run.counts["edits"] += 1
    if rng.random() < 0.3:
        _let_it_write(run, rng)
        run.live.press(ESCAPE)
    run.finish(sent)
    if sent.fate is not Fate.ANSWERED:
        sent.give_up("edits without a reply, taken back into the prompt")
    return None


def edit_reply(run: Run, rng: Random) -> None:
    """Write another beginning of the last reply and let the model go on from it."""
    messages = run.export()
    if not messages or messages[-1]["role"] != "assistant":
        return turn(run, rng)
    sent = last_said(run)
    run.command("/edit reply", "Enter send")
    run.live.wait_for(lambda: "Enter send" in run.view.edge, "the reply to edit")
    run.empty_prompt()
    beginning = f"Edited {rng.randint(0, 999)} words"
    run.type_text(beginning)
    run.live.wait_for(lambda: beginning in run.view.prompt, "the edited reply in the prompt")
    if sent is not None:
        sent.reply = ""
    run.live.press("\r")
    run.live.wait_for(lambda: "Enter send" not in run.view.edge, "the edited reply to be sent")
    run.counts["edits"] += 1
    run.finish(None)
    _note_from_chat(run, sent)
    return None


def fork(run: Run, rng: Random) -> None:
    """Go on with a copy that ends at one of the last messages."""
    if not run.export():
        return
    for _ in range(rng.randint(1, 4)):
        run.live.press(b"\x1b[1;5A")
    run.live.wait_for(lambda: run.view.has_focus_on_message, "the focus on a message")
    run.command_key("f", "a copy of the first", "is not part of the conversation")
    run.counts["forks"] += 1
    run.go_home()
    turn(run, rng)


def _on_disk(run: Run) -> list[list[tuple[str, str]]]:
    read = [
        run.home.store.read(conversation_id).conversation.messages
        for conversation_id in run.home.store.ids()
    ]
    return [[(message.role.value, message.text) for message in messages] for messages in read]


def compare(run: Run, rng: Random) -> None:
    """Compare the live conversation with what is on disk and with what is painted."""
    for _ in range(
        _LOOKS
    ):  # a reply may have begun since: the screen says so once the engine has made room for it
        messages = run.export()
        if not messages:
            return
        live = [(message["role"], message["text"]) for message in messages]
        if live in _on_disk(run):
            break
        run.finish(None)
    else:
        run.fail("the live conversation is not on the disk as it is in the chat")
    reply = run.view.last_reply
    if (
        reply is not None
        and reply.n_tokens is not None
        and not is_seen_in(reply.reply_letters, messages[-1]["text"])
    ):
        run.fail(f"what is painted is not what was said: {reply.reply_letters[-200:]!r}")
    run.counts["comparisons of screen, chat and disk"] += 1
