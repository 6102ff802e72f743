"""Texts of earlier conversations for guessing tokens: private, limited, checked when read, and
deleted with their conversation."""

import os
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from app.backend.local import earlier_texts
from app.backend.local.earlier_texts import EarlierTexts
from app.conversations.store import Store
from app.program import paths
from app.program.settings import built_in_settings
from tests.app.chat_driver import chatting
from tests.app.conversations.talk import saved_talk

TOKENS = list(range(10, 40))


def texts(
    name: str = "000001", tokens: list[int] | None = None, waits: bool = False, **changed: str
) -> EarlierTexts:
    """Return the earlier texts of a session that holds a conversation."""
    location = SimpleNamespace(state_path=Path(name) if name else None, state_trouble="")
    session = SimpleNamespace(tokens=TOKENS if tokens is None else tokens, earlier_text=None)
    tokenizer = SimpleNamespace(vocab_size=1000, fingerprint="v" * 32)
    earlier_texts = EarlierTexts(
        location, replace(built_in_settings(), **changed), tokenizer, session, lambda: waits
    )
    return earlier_texts


def guessed_tokens(earlier_texts: EarlierTexts, tokens: list[int]) -> list[int]:
    earlier_texts.give()
    suffix_index = earlier_texts._session.earlier_text
    return suffix_index.following(tokens, 3)[1] if suffix_index is not None else []


def saved_files() -> list[Path]:
    root = paths.guesses_dir()
    assert root is not None
    return sorted(path for path in root.rglob("*") if not path.is_dir())


def test_a_later_start_uses_texts_of_other_conversations() -> None:
    texts().save()
    assert guessed_tokens(texts("000002"), TOKENS[5:9]) == TOKENS[9:12]
    assert guessed_tokens(texts(""), TOKENS[:3]) == TOKENS[3:6]
    (file,) = saved_files()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert all(
        stat.S_IMODE(directory.stat().st_mode) == 0o700 for directory in list(file.parents)[:2]
    )


def test_texts_of_other_conversations_are_used_at_once() -> None:
    earlier = texts()
    assert guessed_tokens(earlier, TOKENS[:3]) == []
    earlier.save()
    assert guessed_tokens(earlier, TOKENS[:3]) == []  # the current conversation is searched anyway
    earlier._location.state_path = Path("000002")
    assert guessed_tokens(earlier, TOKENS[:3]) == TOKENS[3:6]


def test_a_conversation_without_a_location_is_not_saved() -> None:
    texts("").save()
    assert saved_files() == []


def test_texts_are_not_indexed_while_work_waits() -> None:
    texts().save()
    assert guessed_tokens(texts("000002", waits=True), TOKENS[:3]) == []


def test_only_the_most_recent_texts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_texts, "MOST_TOKENS", 50)
    for n, start in enumerate((100, 200, 300)):
        texts(f"00000{n}", list(range(start, start + 20))).save()
        os.utime(saved_files()[-1], (n, n))
    earlier = texts("000009")
    assert guessed_tokens(earlier, [100, 101, 102]) == []
    assert guessed_tokens(earlier, [200, 201, 202]) == [203, 204, 205]
    assert guessed_tokens(earlier, [300, 301, 302]) == [303, 304, 305]
    assert [file.name for file in saved_files()] == ["000001", "000002"]


def test_only_the_end_of_a_long_conversation_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_texts, "MOST_TOKENS", 10)
    texts().save()
    assert guessed_tokens(texts("000002"), TOKENS[-6:-3]) == TOKENS[-3:]
    assert saved_files()[0].stat().st_size == 40


@pytest.mark.parametrize(
    "changed",
    [
        {"guess_ahead": "conversation"},
        {"guess_ahead": "predictor"},
        {"guess_ahead": "off"},
        {"save_conversations": "off"},
    ],
)
def test_switched_off_it_saves_nothing_and_deletes_old_files(changed: dict[str, str]) -> None:
    texts().save()
    earlier = texts("000002", **changed)
    earlier.save()
    assert [file.name for file in saved_files()] == ["000001"]
    assert guessed_tokens(earlier, TOKENS[:3]) == []
    assert saved_files() == []


def test_hostile_files_are_ignored() -> None:
    texts().save()
    (file,) = saved_files()
    wrong = np.array([*TOKENS[:3], 1000, -1, 1 << 30, 2**31 - 1, -(2**31)], "<i4").tobytes()
    file.with_name("000003").write_bytes(wrong + b"xyz")
    file.with_name("000004").mkdir()
    os.mkfifo(file.with_name("000005"))
    file.with_name("000006").symlink_to("/etc/passwd")
    file.with_name("000007").write_bytes(b"")
    os.utime(file.with_name("000003"), (1, 1))
    assert guessed_tokens(texts("000002"), TOKENS[:3]) == TOKENS[3:6]
    assert guessed_tokens(texts("000002"), [1 << 30, 2**31 - 1, -(2**31)]) == []


def test_a_full_disk_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_disk_full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(earlier_texts, "replace_file", raise_disk_full)
    texts().save()
    assert saved_files() == []


def test_deleting_a_conversation_deletes_its_tokens(tmp_path: Path) -> None:
    saved_talk(tmp_path)
    texts("000001").save()
    texts("000002").save()
    Store(tmp_path).delete("000001")
    assert [file.name for file in saved_files()] == ["000002"]


@pytest.mark.slow
async def test_the_chat_saves_its_texts_and_uses_them() -> None:
    async with chatting() as driver:
        await driver.ask("hello")
        journal = driver.chat.core.chat_session.journal
        await driver.until(lambda: journal.id, "the conversation has a number")
        await driver.ask("again")
        session = driver.script.opened[0].sessions[0]
        await driver.until(
            lambda: [f.stat().st_size for f in saved_files()] == [4 * len(session.tokens)],
            "both turns are saved",
        )
        tokens = list(session.tokens)
    (file,) = saved_files()
    assert np.frombuffer(file.read_bytes(), "<i4").tolist() == tokens
    async with chatting() as driver:
        await driver.ask("hello")
        earlier = driver.script.opened[0].sessions[0].earlier_text
    assert earlier.following(tokens[:4], 2) == (4, tokens[4:6])
