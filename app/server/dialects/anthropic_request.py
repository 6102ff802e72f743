"""Requests of Anthropic's dialect: ``/v1/messages`` and ``/v1/messages/count_tokens``.

Source: the reference of Anthropic's API, and its package for Python.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.conversations.conversation import ASSISTANT, SYSTEM, TOOL, USER, PromptMessage
from app.conversations.pictures import MARK, Picture
from app.server.api_error import unsupported
from app.server.completion_request import (
    MAX_TOKENS,
    SILENTLY_IGNORED,
    CompletionRequest,
    read_effort,
    read_limit,
    read_model_name,
    read_stop_strings,
)
from app.server.fields import Fields, describe, replace_surrogates
from app.server.form_fields import read_form
from app.server.message_fields import MAX_MESSAGES, read_call, read_id, read_text, read_tools
from app.server.message_order import arrange_messages
from app.server.picture_fields import read_image_part
from app.server.sampling_fields import read_sampling
from engine.prompt.thinking import MAX_BUDGET_TOKENS
from engine.prompt.tools.calls import CallResult, ToolCall

MAX_BLOCKS = 10_000
"""Limit on the blocks of a message."""
STAMP = "x-anthropic-billing-header"
"""Beginning of a line at the head of the system text that differs in each conversation.

It is left out, because all text after it would be read again.
"""
_IGNORED = ("betas", "anthropic_version", "anthropic_beta", "cache_control", "inference_geo")
"""Fields about a provider's service."""
_BLOCKS = "a string or a list of blocks"
_THOUGHTS = ("thinking", "redacted_thinking")
"""Blocks of earlier thoughts, which the session has as tokens."""
_PARAGRAPHS = "\n\n"
"""Text between two blocks."""


def read_message_request(fields: Fields, served_model: str) -> CompletionRequest:
    """Read a request for ``/v1/messages`` or ``/v1/messages/count_tokens``.

    Args:
        fields: Fields of the request.
        served_model: See ``read_model_name``.

    Raises:
        ApiError: A field is wrong.
    """
    for name in (*SILENTLY_IGNORED, *_IGNORED):
        fields.mark_read(name)
    messages, reply_prefix = arrange_messages(
        [*_read_system(fields), *_read_messages(fields)],
        "messages",
        "a block of type tool_result",
    )
    request = CompletionRequest(
        model=read_model_name(fields, served_model),
        messages=messages,
        reply_prefix=reply_prefix,
        tools=read_tools(fields),
        sampling=read_sampling(fields),
        max_tokens=read_limit(fields, "max_tokens"),
        stop_strings=read_stop_strings(fields, "stop_sequences"),
        thinking=_read_thinking(fields),
        form=read_form(fields),
        is_streamed=fields.flag("stream"),
    )
    fields.ignore_rest()
    return request


def _read_system(fields: Fields) -> Iterator[PromptMessage]:
    """Yield the system message if there is one, without the stamp at its head."""
    if not fields.has("system"):
        return
    texts = [_read_text_block(block) for block in _read_blocks(fields, "system")]
    if texts and texts[0].startswith(STAMP):
        texts[0] = texts[0].partition("\n")[2]
    text = _PARAGRAPHS.join(text for text in texts if text)
    if text:
        yield PromptMessage(SYSTEM, text)


def _read_messages(fields: Fields) -> Iterator[PromptMessage]:
    items = fields.array("messages", MAX_MESSAGES)
    if not items:
        raise fields.missing_value("messages", "a list of messages that ends with the user's")
    for index, item in enumerate(items):
        yield from _read_message(fields.array_item(item, f"messages[{index}]"))


def _read_message(message: Fields) -> Iterator[PromptMessage]:
    """Yield a message; results of tools in it become messages of their own."""
    role = message.choice("role", USER, ASSISTANT, SYSTEM)
    role = message.required(role, "role", f"one of {USER}, {ASSISTANT}, {SYSTEM}")
    texts: list[str] = []
    calls: list[ToolCall] = []
    pictures: list[Picture] = []
    for block in _read_blocks(message, "content"):
        block_type = block.text("type") or "text"
        if role == ASSISTANT and block_type == "tool_use":
            calls.append(_read_call(block))
        elif role == USER and block_type == "tool_result":
            yield _read_result(block)
        elif role == USER and block_type == "image":
            read_image_part(block, pictures)
            texts.append(MARK)
        elif block_type not in _THOUGHTS:
            texts.append(_read_text_block(block))
    message.ignore_rest()

    if role == ASSISTANT:
        # As it was written: blocks of a reply are pieces of one text.
        yield PromptMessage(ASSISTANT, "".join(texts), tuple(calls))
    elif texts:
        text = _PARAGRAPHS.join(text for text in texts if text)
        yield PromptMessage(role, text, pictures=tuple(pictures))


def _read_blocks(fields: Fields, name: str) -> Iterator[Fields]:
    """Yield the blocks of a text, which may be a string."""
    value = fields.value(name)
    if value is None:
        raise fields.missing_value(name, _BLOCKS)
    if isinstance(value, str):
        value = [{"type": "text", "text": value}]
    if not isinstance(value, list) or len(value) > MAX_BLOCKS:
        raise fields.wrong_value(name, f"{_BLOCKS}, at most {MAX_BLOCKS}")
    for index, item in enumerate(value):
        block = fields.array_item(item, f"{fields.path(name)}[{index}]")
        block.mark_read("cache_control")
        yield block


def _read_text_block(block: Fields) -> str:
    """Return the text of a block.

    Raises:
        ApiError: The block has no text.
    """
    block_type = block.text("type") or "text"
    if block_type == "text":
        text = block.value("text")
        if not isinstance(text, str):
            raise block.wrong_value("text", "a string")
        block.mark_read("citations")
        block.ignore_rest()
        return replace_surrogates(text)
    if block_type == "document":
        return _read_document(block)
    if block_type == "search_result":
        return _titled(block, _joined_blocks(block, "content"))
    raise unsupported(
        block.path("type"),
        f"is {describe(block_type)}: only text is supported, and images of a user",
    )


def _read_document(block: Fields) -> str:
    source = block.required(block.nested("source"), "source", "an object with a text")
    source_type = source.text("type")
    if source_type == "text":
        text = replace_surrogates(str(source.value("data") or ""))
    elif source_type == "content":
        text = _joined_blocks(source, "content")
    else:
        raise unsupported(
            source.path("type"),
            f"is {describe(source_type)}: only text is supported (send the document's text)",
        )
    return _titled(block, text)


def _joined_blocks(fields: Fields, name: str) -> str:
    return _PARAGRAPHS.join(_read_text_block(block) for block in _read_blocks(fields, name))


def _titled(block: Fields, text: str) -> str:
    """Return the text of a document or of a search result after its title."""
    parts = [block.text(name) or "" for name in ("title", "context")]
    block.mark_read("citations")
    block.mark_read("source")
    block.ignore_rest()
    return _PARAGRAPHS.join(part for part in (*parts, text) if part)


def _read_call(block: Fields) -> ToolCall:
    values = {"name": block.value("name"), "arguments": block.value("input")}
    call = read_call(block.array_item(values, block.object_path), read_id(block, "id"))
    block.mark_read("caller")
    block.ignore_rest()
    return call


def _read_result(block: Fields) -> PromptMessage:
    text = read_text(block, "content", is_result=True)
    if block.flag("is_error") and "error" not in text.lower():
        # Templates have no other mark for it.
        text = f"Error: {text}"
    result = CallResult("", "", read_id(block, "tool_use_id"))
    block.ignore_rest()
    return PromptMessage(TOOL, text, results=(result,))


def _read_thinking(fields: Fields) -> str | None:
    """Return the thinking mode; None if it is not set."""
    effort: str | None = None
    output = fields.nested("output_config")
    if output is not None:
        effort = read_effort(output, "effort")
        output.mark_read("format")
        output.ignore_rest()

    thinking = fields.nested("thinking")
    if thinking is None:
        return effort
    thinking.mark_read("display")
    mode = thinking.required(
        thinking.choice("type", "enabled", "disabled", "adaptive"),
        "type",
        "enabled, disabled or adaptive",
    )
    budget_tokens = thinking.integer("budget_tokens", 1, MAX_TOKENS)
    thinking.ignore_rest()
    if mode == "disabled":
        return "off"
    if mode == "adaptive":
        return effort
    if budget_tokens is None:
        return "on"
    return str(min(budget_tokens, MAX_BUDGET_TOKENS))
