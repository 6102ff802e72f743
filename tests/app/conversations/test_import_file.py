import json
import zipfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from app.cli import sessions
from app.cli.sessions import import_files
from app.conversations import import_file as foreign
from app.conversations.conversation import Conversation, Ending, ReplyFigures, Role
from app.conversations.export import to_json
from app.conversations.import_file import ForeignConversation, read_conversations
from app.conversations.store import Store
from app.program.refusals import Refusal
from app.reply.thinking import Thinking


def read(values: Any) -> list[ForeignConversation]:
    return list(read_conversations(json.dumps(values).encode()))


def texts_of(imported: ForeignConversation) -> list[tuple[str, str]]:
    return [(message.role.value, message.text) for message in imported.conversation.messages]


def node(
    name: str, parent: str | None, role: str, *texts: Any, content_type: str = "text"
) -> dict[str, Any]:
    content = {"content_type": content_type, "parts": list(texts)}
    return {"id": name, "parent": parent, "message": {"author": {"role": role}, "content": content}}


def chatgpt(*nodes: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {
        "title": "Fans",
        "mapping": {message["id"]: message for message in nodes},
        "current_node": nodes[-1]["id"],
        **values,
    }


def test_an_exported_conversation_is_imported_with_its_figures() -> None:
    conversation = Conversation("Be brief.")
    conversation.add_user("why?")
    figures = ReplyFigures(3, 0.5, 12.0, 7, 0)
    conversation.add_reply("Because.", Ending.STOPPED, figures, Thinking("hm", 1, 0.1, True))
    [imported] = read_conversations(
        to_json(conversation, "m", datetime.now(timezone.utc), with_thinking=True).encode()
    )
    assert imported.conversation.system == "Be brief."
    assert texts_of(imported) == [("user", "why?"), ("assistant", "Because.")]
    reply = imported.conversation.messages[1]
    assert (reply.ending, reply.figures, reply.thinking) == (
        Ending.STOPPED,
        figures,
        Thinking("hm", 1, 0.1, True),
    )
    assert imported.left_out == {}


def test_title_and_model_of_an_export_are_imported(tmp_path: Path) -> None:
    conversation = Conversation()
    conversation.add_user("why?")
    conversation.add_reply("Because.", Ending.COMPLETE, None)
    file = tmp_path / "talk.json"
    now = datetime.now(timezone.utc)
    file.write_text(to_json(conversation, "tiny Q4_K_M", now, title="Reasons"))
    import_files([str(file)])
    [entry] = Store().entries()
    assert (entry.title, entry.model, entry.model_path) == ("Reasons", "tiny Q4_K_M", "")


def test_chatgpts_export_is_read_along_its_last_branch() -> None:
    nodes = [
        {"id": "root", "parent": None, "message": None},
        node("s", "root", "system", ""),
        node(
            "u",
            "s",
            "user",
            "What hums?\x1b[2J",
            {"content_type": "image_asset_pointer"},
            content_type="multimodal_text",
        ),
        node("other", "u", "assistant", "A bee."),
        node("t", "u", "assistant", "let me think", content_type="thoughts"),
        node("a", "t", "assistant", "A fan."),
        node("b", "a", "assistant", "It turns."),
    ]
    [imported] = read([chatgpt(*nodes, create_time=1_700_000_000.5)])
    assert imported.title == "Fans"
    assert texts_of(imported) == [("user", "What hums?␛[2J"), ("assistant", "A fan.\n\nIt turns.")]
    assert imported.began.startswith("2023-11-1")
    assert imported.left_out == {
        "message of another branch": 1,
        "part without text": 1,
        "message of another role": 1,
    }


def test_llama_servers_export_is_read_along_its_last_branch() -> None:
    messages = [
        {"id": "r", "type": "root", "role": "system", "content": "", "parent": None},
        {"id": "s", "role": "system", "content": "Be kind.", "parent": "r"},
        {"id": "u", "role": "user", "content": "hello", "parent": "s"},
        {"id": "x", "role": "assistant", "content": "no", "parent": "u"},
        {
            "id": "a",
            "role": "assistant",
            "content": "Hi.",
            "parent": "u",
            "reasoningContent": "polite",
        },
    ]
    exported = {
        "conv": {"id": "c", "name": "Greeting", "currNode": "a", "lastModified": 1.7e12},
        "messages": messages,
    }
    for values in (exported, [exported]):
        [imported] = read(values)
        assert (imported.title, imported.conversation.system) == ("Greeting", "Be kind.")
        assert texts_of(imported) == [("user", "hello"), ("assistant", "Hi.")]
        assert imported.conversation.messages[1].thinking == Thinking("polite", is_closed=True)
        assert imported.left_out == {"message of another branch": 1}


def test_lists_of_messages_are_read_and_other_parts_are_counted() -> None:
    messages = [
        {"role": "assistant", "content": "Welcome!"},
        {"role": "user", "content": "one"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "two"}, {"type": "image_url", "image_url": {}}],
        },
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "three", "thinking": "hm"},
        {"role": "user", "content": "four", "images": ["aGk="]},
    ]
    for values in (messages, {"model": "m", "messages": messages}):
        [imported] = read(values)
        assert texts_of(imported) == [
            ("user", "one\n\ntwo"),
            ("assistant", "three"),
            ("user", "four"),
        ]
        assert imported.left_out == {
            "message of another role": 2,
            "part without text": 2,
        }


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"\xff\xfe", "is not valid JSON"),
        (b"42", "has no conversation"),
        (b"[]", "has no conversation"),
        (b'{"messages": 1}', "has no conversation"),
        (b'[{"a": 1}, null]', "has no conversation"),
    ],
)
def test_a_file_that_is_not_an_export_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        list(read_conversations(raw))


FRUIT = [("user", "Which apples?"), ("assistant", "russets")]


def claude(*messages: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {
        "uuid": "u",
        "name": "Apples",
        "created_at": "2026-05-01T10:00:00.5Z",
        "chat_messages": messages,
        **values,
    }


EXPORTS: dict[str, Any] = {
    "Claude": [
        claude(
            {
                "sender": "human",
                "text": "Which apples?",
                "content": [{"type": "text", "text": "Which apples?"}],
            },
            {"sender": "assistant", "text": "russets", "content": []},
        )
    ],
    "Claude with branches": claude(
        {"uuid": "1", "sender": "human", "text": "Which apples?", "parent_message_uuid": "0"},
        {"uuid": "2", "sender": "assistant", "text": "none", "parent_message_uuid": "1"},
        {"uuid": "3", "sender": "assistant", "text": "russets", "parent_message_uuid": "1"},
        current_leaf_message_uuid="3",
    ),
    "Open WebUI": [
        {
            "title": "Apples",
            "created_at": 1_777_000_000,
            "chat": {
                "history": {
                    "currentId": "b",
                    "messages": {
                        "a": {
                            "id": "a",
                            "parentId": None,
                            "role": "user",
                            "content": "Which apples?",
                        },
                        "b": {
                            "id": "b",
                            "parentId": "a",
                            "role": "assistant",
                            "content": "russets",
                        },
                        "c": {"id": "c", "parentId": "a", "role": "assistant", "content": "none"},
                    },
                },
            },
        }
    ],
    "Open WebUI without a tree": {
        "chat": {
            "title": "Apples",
            "timestamp": 1_777_000_000_000,
            "messages": [{"role": role, "content": text} for role, text in FRUIT],
        }
    },
    "LM Studio": {
        "name": "Apples",
        "createdAt": 1_777_000_000_000,
        "messages": [
            {
                "versions": [
                    {
                        "type": "singleStep",
                        "role": "user",
                        "content": [{"type": "text", "text": "no"}],
                    },
                    {
                        "type": "singleStep",
                        "role": "user",
                        "content": [{"type": "text", "text": "Which apples?"}],
                    },
                ],
                "currentlySelected": 1,
            },
            {
                "versions": [
                    {
                        "type": "multiStep",
                        "role": "assistant",
                        "steps": [
                            {
                                "type": "contentBlock",
                                "style": {"type": "thinking"},
                                "content": [{"type": "text", "text": "hm"}],
                            },
                            {"type": "debugInfoBlock"},
                            {
                                "type": "contentBlock",
                                "content": [{"type": "text", "text": "russets"}],
                            },
                        ],
                    }
                ],
                "currentlySelected": 7,
            },
        ],
    },
    "a list in an object": {
        "conversations": [
            {
                "title": "Apples",
                "created": "1777000000",
                "messages": [{"role": role, "content": text} for role, text in FRUIT],
            }
        ]
    },
    "ShareGPT": {
        "title": "Apples",
        "created_at": 1_777_000_000,
        "conversations": [
            {"from": "human", "value": "Which apples?"},
            {"from": "gpt", "value": "russets"},
        ],
    },
}


@pytest.mark.parametrize("name", EXPORTS)
def test_exports_of_other_programs_are_read(name: str) -> None:
    [imported] = read(EXPORTS[name])
    assert texts_of(imported) == FRUIT
    assert imported.title == "Apples"
    assert imported.began[:5] == "2026-"
    branches = (
        {"message of another branch": 1} if name in ("Claude with branches", "Open WebUI") else {}
    )
    assert imported.left_out == branches
    thinking = Thinking("hm", is_closed=True) if name == "LM Studio" else None
    assert imported.conversation.messages[1].thinking == thinking


def test_thinking_and_files_of_an_export_are_separated() -> None:
    question = {
        "sender": "human",
        "text": "What is in it?",
        "attachments": [{"file_name": "a.txt", "extracted_content": "pears"}, 5],
        "files": [{"file_name": "b.png"}],
    }
    content = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "Pears."},
        {"type": "tool_use", "input": {}},
    ]
    [imported] = read(claude(question, {"sender": "assistant", "content": content}))
    assert texts_of(imported) == [
        ("user", "What is in it?\n\na.txt:\npears"),
        ("assistant", "Pears."),
    ]
    assert imported.left_out == {"part without text": 3}
    assert imported.conversation.messages[1].thinking == Thinking("hm", is_closed=True)
    reasoning = (
        '<details type="reasoning" done="true">\n<summary>Thought</summary>\n> hm\n</details>\n'
        "Pears."
    )
    chat = {
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": reasoning}]
    }
    [imported_chat] = read({"chat": chat})
    assert texts_of(imported_chat)[1] == ("assistant", "Pears.")
    assert imported_chat.conversation.messages[1].thinking == Thinking("> hm", is_closed=True)


@pytest.mark.parametrize("current", [None, "gone", 5])
def test_without_a_known_end_the_longest_branch_is_read(current: Any) -> None:
    nodes = [node("u", None, "user", "q"), node("x", "u", "assistant", "short")]
    nodes += [
        node("a", "u", "assistant", "one"),
        node("v", "a", "user", "more"),
        node("b", "v", "assistant", "two"),
    ]
    nodes += [node("y", "u", "assistant", "late")]
    [imported] = read([{**chatgpt(*nodes), "current_node": current}])
    assert [text for _, text in texts_of(imported)] == ["q", "one", "more", "two"]
    assert imported.left_out == {"message of another branch": 2}


def test_deep_and_wide_trees_are_read() -> None:
    deep = [node("0", None, "user", "q")]
    deep += [
        node(str(n), str(n - 1), ("user", "assistant")[n % 2], f"m{n}") for n in range(1, 30_000)
    ]
    [imported] = read([{**chatgpt(*deep), "current_node": None}])
    assert len(imported.conversation.messages) == 30_000
    assert imported.left_out == {}


def test_hidden_and_tool_messages_are_left_out() -> None:
    hidden = node("h", None, "user", "I am called Zed")
    hidden["message"]["metadata"] = {"is_visually_hidden_from_conversation": True}
    call = node("c", "u", "assistant", "search()", content_type="code")
    call["message"]["recipient"] = "browser"
    [imported] = read(
        [chatgpt(hidden, node("u", "h", "user", "q"), call, node("a", "c", "assistant", "yes"))]
    )
    assert texts_of(imported) == [("user", "q"), ("assistant", "yes")]
    assert imported.left_out == {"message of another role": 2}


def test_json_lines_hold_conversations_or_messages() -> None:
    messages = [{"role": role, "content": text} for role, text in FRUIT]
    talks = b"\n".join(json.dumps({"messages": messages}).encode() for _ in range(2))
    assert [texts_of(imported) for imported in read_conversations(talks)] == [FRUIT, FRUIT]
    [imported] = read_conversations(
        b"\r\n".join(json.dumps(message).encode() for message in messages) + b"\n"
    )
    assert texts_of(imported) == FRUIT
    tavern = [
        {"user_name": "You", "character_name": "C"},
        {"name": "You", "is_user": True, "mes": "Which apples?"},
    ]
    tavern.append({"name": "C", "is_user": False, "mes": "russets"})
    [imported] = read_conversations("\n".join(map(json.dumps, tavern)).encode())
    assert texts_of(imported) == FRUIT


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_any_unicode_encoding_is_read(encoding: str) -> None:
    [imported] = read_conversations(
        json.dumps([{"role": "user", "content": "Grüße"}], ensure_ascii=False).encode(encoding)
    )
    assert texts_of(imported) == [("user", "Grüße")]


def test_messages_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [{"role": ("user", "assistant")[n % 2], "content": f"m{n}"} for n in range(20_000)]
    [imported] = read(messages)
    assert (len(imported.conversation.messages), imported.left_out) == (20_000, {})
    monkeypatch.setattr(foreign, "MOST_MESSAGES", 10_000)
    [imported] = read(messages)
    assert imported.left_out == {"message beyond the first 10,000": 10_000}


@pytest.mark.parametrize("value", [None, 1, -1e400, 10**400, "x", [], {}, [[]], {"role": "user"}])
def test_any_value_in_any_field_is_tolerated(value: Any) -> None:
    turn = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Hi."}]
    jalopy_export = {
        "program": "jalopy",
        "system": value,
        "saved": value,
        "title": value,
        "model": value,
        "messages": [value, {"role": "user", "text": value}],
    }
    reply = {"role": "assistant", "text": "x", "ending": value, "figures": value, "thinking": value}
    reply |= {"others": value, "n_older": value}
    odd_node = {"id": "o", "parent": value, "message": {"author": value, "content": value}}
    files = [
        [*turn, value, {"role": value, "content": value}],
        {
            "title": value,
            "messages": [*turn, {"role": "assistant", "content": [value], "thinking": value}],
        },
        jalopy_export,
        {**jalopy_export, "messages": [{"role": "user", "text": "y"}, reply]},
        [
            chatgpt(
                node("u", value, "user", value),
                odd_node,
                title=value,
                create_time=value,
                current_node=value,
            )
        ],
        {
            "conv": {"currNode": value, "name": value, "lastModified": value},
            "messages": [value, *turn],
        },
        claude(
            value,
            {
                "sender": value,
                "text": value,
                "content": value,
                "attachments": value,
                "files": value,
            },
        ),
        claude({"uuid": value, "parent_message_uuid": value}, name=value, created_at=value),
        {
            "chat": {
                "history": {"messages": value, "currentId": value},
                "messages": value,
                "timestamp": value,
            }
        },
        {"chat": {"history": value, "messages": [value], "title": value, "system": value}},
        {
            "messages": [{"versions": value}, {"versions": [value], "currentlySelected": value}],
            "name": value,
        },
        {
            "messages": [
                {
                    "versions": [
                        {
                            "steps": [
                                value,
                                {"type": "contentBlock", "content": value, "style": value},
                            ]
                        }
                    ]
                }
            ]
        },
        {"conversations": [{"from": value, "value": value}, value], "system": value},
    ]
    for values in files:
        for imported in read_conversations(json.dumps(values).encode()):
            roles = [message.role for message in imported.conversation.messages]
            assert roles == [(Role.USER, Role.ASSISTANT)[index % 2] for index in range(len(roles))]


def test_cycles_and_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    circle = chatgpt(node("a", "b", "user", "x"), node("b", "a", "assistant", "y"))
    assert read([circle])[0].conversation.is_empty
    monkeypatch.setattr(foreign, "MOST_MESSAGES", 2)
    [imported] = read([{"role": role, "content": "x"} for role in ("user", "assistant", "user")])
    assert len(imported.conversation.messages) == 2
    assert imported.left_out == {"message beyond the first 2": 1}
    [imported] = read([{"role": role, "content": "x"} for role in ("user", "assistant") * 4])
    assert imported.left_out == {"message beyond the first 2": 6}
    monkeypatch.setattr(foreign, "MOST_CONVERSATIONS", 1)
    with pytest.raises(Refusal, match="has more than 1 conversations"):
        read([circle, circle])
    [imported] = read(
        [{"role": "user", "content": "\N{PISTOL}" * 400_000}, {"role": "assistant", "content": "y"}]
    )
    assert imported.left_out == {"text too long to be saved": 1}


def test_each_import_becomes_its_own_new_conversation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "conversations.json"
    first = chatgpt(
        node("u", None, "user", "What hums?"),
        node("a", "u", "assistant", "A fan."),
        create_time=1.7e9,
    )
    path.write_text(json.dumps([first, chatgpt(node("t", None, "tool", "x"))]))
    assert import_files([str(path)]) == import_files([str(path)]) == 0
    out, err = capsys.readouterr()
    assert out.count("conversations.json: 1 conversation imported") == 2
    assert "conversation 2 (Fans): left out 1 message of another role" in err
    store = Store()
    assert store.ids() == ["000001", "000002"]
    saved = store.read("000002")
    assert (saved.title, [message.text for message in saved.conversation.messages]) == (
        "Fans",
        ["What hums?", "A fan."],
    )
    assert saved.began.startswith("2023-11-1")
    assert "messages by neither side" not in err
    path.write_text("{}")
    with pytest.raises(Refusal, match=r"conversations\.json: has no conversation"):
        import_files([str(path)])


def test_imported_conversations_are_listed_by_their_time(tmp_path: Path) -> None:
    path = tmp_path / "conversations.json"
    nodes = node("u", None, "user", "What hums?"), node("a", "u", "assistant", "A fan.")
    times = [1.7e9, 1.72e9, 1.71e9]
    path.write_text(json.dumps([chatgpt(*nodes, create_time=time) for time in times]))
    import_files([str(path)])
    assert [entry.id for entry in Store().entries()] == ["000002", "000003", "000001"]


def test_archives_and_folders_are_imported_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        f"conversations-00{n}.json": json.dumps([chatgpt(node("u", None, "user", f"q{n}"))])
        for n in range(2)
    }
    files |= {
        "user.json": "{}",
        "chat.html": "<html>",
        "talks/a.jsonl": json.dumps({"role": "user", "content": "q"}),
    }
    archive = tmp_path / "export.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, text in files.items():
            zipped.writestr(name, text)
            path = tmp_path / "export" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for source in (archive, tmp_path / "export"):
        assert import_files([str(source)]) == 0
        out, err = capsys.readouterr()
        assert out.count(": 1 conversation imported") == 3
        assert f"{source}: skipped 1 file without conversations" in err
    assert len(Store().ids()) == 6


def test_unusable_archives_are_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "export.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr(
            "conversations.json", json.dumps([chatgpt(node("u", None, "user", "q" * 9000))])
        )
    raw = archive.read_bytes()
    archive.write_bytes(raw[:60] + bytes(20) + raw[80:])
    with pytest.raises(Refusal, match=r"export\.zip: cannot be unpacked: "):
        import_files([str(archive)])
    archive.write_bytes(raw)
    monkeypatch.setattr(sessions, "MAX_FILE_BYTES", 4096)
    with pytest.raises(Refusal, match=r"export\.zip: contains more than 0 MiB"):
        import_files([str(archive)])
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("user.json", "{}")
    with pytest.raises(Refusal, match=r"export\.zip: its only JSON file has no conversations"):
        import_files([str(archive)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(Refusal, match=r"has no JSON file with conversations"):
        import_files([str(tmp_path / "empty")])


def test_a_conversation_of_20_000_messages_is_imported_whole() -> None:
    [imported] = read([{"role": role, "content": "x"} for role in ("user", "assistant") * 10_000])
    assert len(imported.conversation.messages) == 20_000
    assert imported.left_out == {}


def test_many_messages_of_one_role_are_joined_at_once() -> None:
    [imported] = read([{"role": "user", "content": "word"}] * 20_000)
    [message] = imported.conversation.messages
    assert message.text.count("word") == 20_000


def test_omitted_messages_are_reported_with_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "MOST_MESSAGES", 2)
    messages = [{"role": role, "content": "x"} for role in ("user", "assistant") * 3] + [
        {"role": "tool", "content": "x"}
    ]
    (tmp_path / "said.json").write_text(
        json.dumps([{"messages": messages}, 3, 4]), encoding="utf-8"
    )
    import_files([str(tmp_path / "said.json")])
    output = capsys.readouterr().err
    assert "left out 4 messages beyond the first 2\n" in output
    assert "left out 1 message of another role\n" in output
    assert "left out 1 entry without a conversation\n" in output
