"""What guesses know of other conversations: kept privately and within bounds, hostile until read,
gone when deleted."""

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

SAID = list(range(10, 40))


def texts(
    name: str = "000001", tokens: list[int] | None = None, waits: bool = False, **changed: str
) -> EarlierTexts:
    """Those of a session in which a conversation was had."""
    place = SimpleNamespace(state_path=Path(name) if name else None, state_trouble="")
    session = SimpleNamespace(tokens=SAID if tokens is None else tokens, earlier_text=None)
    tokenizer = SimpleNamespace(vocab_size=1000, fingerprint="v" * 32)
    one = EarlierTexts(
        place, replace(built_in_settings(), **changed), tokenizer, session, lambda: waits
    )
    return one


def known(one: EarlierTexts, tokens: list[int]) -> list[int]:
    one.give()
    earlier = one._session.earlier_text
    return earlier.following(tokens, 3)[1] if earlier is not None else []


def kept() -> list[Path]:
    root = paths.guesses_dir()
    assert root is not None
    return sorted(one for one in root.rglob("*") if not one.is_dir())


def test_another_conversation_of_a_later_start_knows_it() -> None:
    texts().save()
    assert known(texts("000002"), SAID[5:9]) == SAID[9:12]
    assert known(texts(""), SAID[:3]) == SAID[3:6]
    (file,) = kept()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert all(stat.S_IMODE(one.stat().st_mode) == 0o700 for one in list(file.parents)[:2])


def test_what_another_conversation_said_is_known_at_once() -> None:
    one = texts()
    assert known(one, SAID[:3]) == []
    one.save()
    assert known(one, SAID[:3]) == []  # it is the live one, in which guesses are found anyway
    one._location.state_path = Path("000002")
    assert known(one, SAID[:3]) == SAID[3:6]


def test_a_conversation_without_a_place_is_not_kept() -> None:
    texts("").save()
    assert kept() == []


def test_nothing_is_sorted_while_work_waits() -> None:
    texts().save()
    assert known(texts("000002", waits=True), SAID[:3]) == []


def test_those_used_last_stay_and_the_others_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_texts, "MOST_TOKENS", 50)
    for n, start in enumerate((100, 200, 300)):
        texts(f"00000{n}", list(range(start, start + 20))).save()
        os.utime(kept()[-1], (n, n))
    one = texts("000009")
    assert known(one, [100, 101, 102]) == []
    assert known(one, [200, 201, 202]) == [203, 204, 205]
    assert known(one, [300, 301, 302]) == [303, 304, 305]
    assert [file.name for file in kept()] == ["000001", "000002"]


def test_a_long_conversation_keeps_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_texts, "MOST_TOKENS", 10)
    texts().save()
    assert known(texts("000002"), SAID[-6:-3]) == SAID[-3:]
    assert kept()[0].stat().st_size == 40


@pytest.mark.parametrize(
    "changed",
    [{"guess_ahead": "conversation"}, {"guess_ahead": "off"}, {"save_conversations": "off"}],
)
def test_where_it_is_off_nothing_is_kept_or_stays(changed: dict[str, str]) -> None:
    texts().save()
    one = texts("000002", **changed)
    one.save()
    assert [file.name for file in kept()] == ["000001"]
    assert known(one, SAID[:3]) == []
    assert kept() == []


def test_hostile_files_are_left_out() -> None:
    texts().save()
    (file,) = kept()
    wrong = np.array([*SAID[:3], 1000, -1, 1 << 30, 2**31 - 1, -(2**31)], "<i4").tobytes()
    file.with_name("000003").write_bytes(wrong + b"xyz")
    file.with_name("000004").mkdir()
    os.mkfifo(file.with_name("000005"))
    file.with_name("000006").symlink_to("/etc/passwd")
    file.with_name("000007").write_bytes(b"")
    os.utime(file.with_name("000003"), (1, 1))
    assert known(texts("000002"), SAID[:3]) == SAID[3:6]
    assert known(texts("000002"), [1 << 30, 2**31 - 1, -(2**31)]) == []


def test_a_disk_that_takes_nothing_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(earlier_texts, "replace_file", full)
    texts().save()
    assert kept() == []


def test_a_deleted_conversation_takes_its_tokens_along(tmp_path: Path) -> None:
    saved_talk(tmp_path)
    texts("000001").save()
    texts("000002").save()
    Store(tmp_path).delete("000001")
    assert [file.name for file in kept()] == ["000002"]


@pytest.mark.slow
async def test_the_chat_keeps_what_was_said_and_uses_it() -> None:
    async with chatting() as driver:
        await driver.ask("hello")
        await driver.ask("again")
        session = driver.script.opened[0].sessions[0]
        said = list(session.tokens)
    (file,) = kept()
    assert np.frombuffer(file.read_bytes(), "<i4").tolist() == said
    async with chatting() as driver:
        await driver.ask("hello")
        earlier = driver.script.opened[0].sessions[0].earlier_text
    assert earlier.following(said[:4], 2) == (4, said[4:6])
