import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from app.cli.sessions import import_files
from app.conversations import foreign
from app.conversations.conversation import Conversation, Ending, ReplyFigures, Role
from app.conversations.export import to_json
from app.conversations.foreign import Foreign, foreign_conversations
from app.conversations.store import Store
from app.conversations.thinking import Thinking
from app.program.refusals import Refusal


def read(values: Any) -> list[Foreign]:
    return list(foreign_conversations(json.dumps(values).encode()))


def said(one: Foreign) -> list[tuple[str, str]]:
    return [(message.role.value, message.text) for message in one.conversation.messages]


def node(name: str, parent: str | None, role: str, *parts: Any, kind: str = "text") -> dict[str, Any]:
    content = {"content_type": kind, "parts": list(parts)}
    return {"id": name, "parent": parent, "message": {"author": {"role": role}, "content": content}}


def chatgpt(*nodes: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {"title": "Fans", "mapping": {one["id"]: one for one in nodes}, "current_node": nodes[-1]["id"], **values}


def test_what_was_exported_comes_back_with_its_figures() -> None:
    before = Conversation("Be brief.")
    before.add_user("why?")
    figures = ReplyFigures(3, 0.5, 12.0, 7, 0)
    before.add_reply("Because.", Ending.STOPPED, figures, Thinking("hm", 1, 0.1, True))
    [after] = foreign_conversations(to_json(before, "m", datetime.now(timezone.utc), with_thinking=True).encode())
    assert after.conversation.system == "Be brief."
    assert said(after) == [("user", "why?"), ("assistant", "Because.")]
    reply = after.conversation.messages[1]
    assert (reply.ending, reply.figures, reply.thinking) == (Ending.STOPPED, figures, Thinking("hm", 1, 0.1, True))
    assert after.left_out == {}


def test_chatgpts_export_is_read_along_its_last_branch() -> None:
    nodes = [
        {"id": "root", "parent": None, "message": None},
        node("s", "root", "system", ""),
        node("u", "s", "user", "What hums?\x1b[2J", {"content_type": "image_asset_pointer"}, kind="multimodal_text"),
        node("other", "u", "assistant", "A bee."),
        node("t", "u", "assistant", "let me think", kind="thoughts"),
        node("a", "t", "assistant", "A fan."),
        node("b", "a", "assistant", "It turns."),
    ]
    [one] = read([chatgpt(*nodes, create_time=1_700_000_000.5)])
    assert one.title == "Fans"
    assert said(one) == [("user", "What hums?␛[2J"), ("assistant", "A fan.\n\nIt turns.")]
    assert one.began.startswith("2023-11-1")
    assert one.left_out == {
        "message of another branch": 1,
        "part that is no text": 1,
        "message that is neither question nor answer": 1,
    }


def test_llama_servers_export_is_read_along_its_last_branch() -> None:
    messages = [
        {"id": "r", "type": "root", "role": "system", "content": "", "parent": None},
        {"id": "s", "role": "system", "content": "Be kind.", "parent": "r"},
        {"id": "u", "role": "user", "content": "hello", "parent": "s"},
        {"id": "x", "role": "assistant", "content": "no", "parent": "u"},
        {"id": "a", "role": "assistant", "content": "Hi.", "parent": "u", "reasoningContent": "polite"},
    ]
    exported = {"conv": {"id": "c", "name": "Greeting", "currNode": "a", "lastModified": 1.7e12}, "messages": messages}
    for values in (exported, [exported]):
        [one] = read(values)
        assert (one.title, one.conversation.system) == ("Greeting", "Be kind.")
        assert said(one) == [("user", "hello"), ("assistant", "Hi.")]
        assert one.conversation.messages[1].thinking == Thinking("polite", is_closed=True)
        assert one.left_out == {"message of another branch": 1}


def test_lists_of_messages_are_read_and_other_parts_are_counted() -> None:
    messages = [
        {"role": "assistant", "content": "Welcome!"},
        {"role": "user", "content": "one"},
        {"role": "user", "content": [{"type": "text", "text": "two"}, {"type": "image_url", "image_url": {}}]},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "three", "thinking": "hm"},
        {"role": "user", "content": "four", "images": ["aGk="]},
    ]
    for values in (messages, {"model": "m", "messages": messages}):
        [one] = read(values)
        assert said(one) == [("user", "one\n\ntwo"), ("assistant", "three"), ("user", "four")]
        assert one.left_out == {"message that is neither question nor answer": 2, "part that is no text": 2}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "is no sound JSON"),
        (b"[" * 100_000, "is no sound JSON"),
        (b"\xff\xfe", "is no sound JSON"),
        (b"42", "holds no conversation"),
        (b"[]", "holds no conversation"),
        (b'{"messages": 1}', "holds no conversation"),
        (b'[{"a": 1}, null]', "holds no conversation"),
    ],
)
def test_what_is_no_export_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        list(foreign_conversations(raw))


@pytest.mark.parametrize("value", [None, 1, -1e400, "x", [], {}, [[]], {"role": "user"}])
def test_any_value_anywhere_is_borne(value: Any) -> None:
    turn = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Hi."}]
    own = {"program": "jalopy", "system": value, "saved": value, "messages": [value, {"role": "user", "text": value}]}
    reply = {"role": "assistant", "text": "x", "ending": value, "figures": value, "thinking": value}
    odd_node = {"id": "o", "parent": value, "message": {"author": value, "content": value}}
    files = [
        [*turn, value, {"role": value, "content": value}],
        {"title": value, "messages": [*turn, {"role": "assistant", "content": [value], "thinking": value}]},
        own,
        {**own, "messages": [{"role": "user", "text": "y"}, reply]},
        [chatgpt(node("u", value, "user", value), odd_node, title=value, create_time=value, current_node=value)],
        {"conv": {"currNode": value, "name": value, "lastModified": value}, "messages": [value, *turn]},
    ]
    for values in files:
        for one in foreign_conversations(json.dumps(values).encode()):
            roles = [message.role for message in one.conversation.messages]
            assert roles == [(Role.USER, Role.ASSISTANT)[place % 2] for place in range(len(roles))]


def test_circles_and_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    circle = chatgpt(node("a", "b", "user", "x"), node("b", "a", "assistant", "y"))
    assert read([circle])[0].conversation.is_empty
    monkeypatch.setattr(foreign, "MOST_MESSAGES", 2)
    [one] = read([{"role": role, "content": "x"} for role in ("user", "assistant", "user")])
    assert len(one.conversation.messages) == 2
    assert one.left_out == {"message beyond the first 2": 1}
    [one] = read([{"role": role, "content": "x"} for role in ("user", "assistant") * 4])
    assert one.left_out == {"message beyond the first 2": 6}
    monkeypatch.setattr(foreign, "MOST_CONVERSATIONS", 1)
    with pytest.raises(Refusal, match="has more than 1 conversations"):
        read([circle, circle])
    [one] = read([{"role": "user", "content": "\N{PISTOL}" * 400_000}, {"role": "assistant", "content": "y"}])
    assert one.left_out == {"text that is too long to be saved": 1}


def test_each_import_becomes_its_own_new_conversation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "conversations.json"
    first = chatgpt(node("u", None, "user", "What hums?"), node("a", "u", "assistant", "A fan."), create_time=1.7e9)
    path.write_text(json.dumps([first, chatgpt(node("t", None, "tool", "x"))]))
    assert import_files([str(path)]) == import_files([str(path)]) == 0
    out, err = capsys.readouterr()
    assert out.count("conversations.json: 1 conversation imported") == 2
    assert "conversation 2 (Fans): left out 1 message that is neither question nor answer" in err
    store = Store()
    assert store.ids() == ["000001", "000002"]
    saved = store.read("000002")
    assert (saved.title, [message.text for message in saved.conversation.messages]) == (
        "Fans",
        ["What hums?", "A fan."],
    )
    assert saved.began.startswith("2023-11-1")
    path.write_text("{}")
    with pytest.raises(Refusal, match=r"conversations\.json: holds no conversation"):
        import_files([str(path)])


def test_a_conversation_of_20_000_messages_is_taken_whole() -> None:
    [one] = read([{"role": role, "content": "x"} for role in ("user", "assistant") * 10_000])
    assert len(one.conversation.messages) == 20_000
    assert one.left_out == {}


def test_many_messages_of_one_side_are_joined_in_one_go() -> None:
    [one] = read([{"role": "user", "content": "word"}] * 20_000)
    [message] = one.conversation.messages
    assert message.text.count("word") == 20_000


def test_what_is_left_out_is_counted_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "MOST_MESSAGES", 2)
    messages = [{"role": role, "content": "x"} for role in ("user", "assistant") * 3] + [
        {"role": "tool", "content": "x"}
    ]
    (tmp_path / "said.json").write_text(json.dumps([{"messages": messages}, 3, 4]), encoding="utf-8")
    import_files([str(tmp_path / "said.json")])
    told = capsys.readouterr().err
    assert "left out 4 messages beyond the first 2\n" in told
    assert "left out 1 message that is neither question nor answer\n" in told
    assert "left out 1 entry that is no conversation\n" in told
