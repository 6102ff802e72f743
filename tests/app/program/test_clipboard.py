import threading

import pyperclip
import pytest

from app.program import clipboard


@pytest.mark.parametrize(
    ("environ", "reaches"),
    [
        ({"DISPLAY": ":0"}, True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, True),
        ({"DISPLAY": ":10", "SSH_CONNECTION": "a b c d"}, False),
        ({"TERM": "xterm"}, False),
    ],
)
def test_only_the_local_desktop_is_reached(environ, reaches):
    assert clipboard.has_desktop(environ) is reaches


async def test_a_native_program_is_tried_first(monkeypatch: pytest.MonkeyPatch):
    copied = []
    sent = []
    monkeypatch.setattr(pyperclip, "copy", copied.append)
    monkeypatch.setattr(pyperclip, "paste", lambda: "text\r\n")
    monkeypatch.setattr(clipboard, "NATIVE_PATIENCE_S", 60.0)
    assert await clipboard.copy("text", sent.append, {"DISPLAY": ":0"}) == "copied"
    assert (copied, sent) == (["text"], [])


async def test_a_failed_copy_uses_the_terminal_and_claims_nothing(monkeypatch: pytest.MonkeyPatch):
    def fail(text: str) -> None:
        raise pyperclip.PyperclipException("no program")

    sent: list[str] = []
    monkeypatch.setattr(pyperclip, "copy", fail)
    words = await clipboard.copy("text", sent.append, {"DISPLAY": ":0", "TERM": "xterm"})
    assert sent == ["text"]
    assert words.startswith("sent to the terminal's clipboard (if pasting does not work")


async def test_a_program_that_fails_silently_has_copied_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    sent: list[str] = []
    monkeypatch.setattr(pyperclip, "copy", lambda text: None)
    monkeypatch.setattr(pyperclip, "paste", lambda: "what was there before")
    monkeypatch.setattr(clipboard, "NATIVE_PATIENCE_S", 60.0)
    words = await clipboard.copy("text", sent.append, {"DISPLAY": ":0", "TERM": "xterm"})
    assert sent == ["text"]
    assert words.startswith("sent to the terminal")


async def test_a_program_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch):
    release = threading.Event()
    monkeypatch.setattr(pyperclip, "copy", lambda text: release.wait(60))
    monkeypatch.setattr(clipboard, "NATIVE_PATIENCE_S", 0.05)
    sent: list[str] = []
    words = await clipboard.copy("text", sent.append, {"DISPLAY": ":0"})
    release.set()
    assert sent == ["text"]
    assert words.startswith("sent")


async def test_on_a_console_the_text_is_written_to_a_private_file():
    words = await clipboard.copy("text", lambda text: None, {"TERM": "linux"})
    assert words.startswith("this console has no clipboard: written to ")
    path = clipboard.paths.state_dir() / "copied.txt"
    assert path.read_text(encoding="utf-8") == "text"
    assert path.stat().st_mode & 0o777 == 0o600
