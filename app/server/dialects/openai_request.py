"""Requests of OpenAI's dialect: ``/v1/chat/completions`` and ``/v1/completions``."""

from __future__ import annotations

from typing import Any

from app.conversations.conversation import ASSISTANT
from app.server.api_error import ApiError, unsupported
from app.server.completion_request import (
    MAX_ANSWERS,
    MAX_TOKENS,
    NEUTRAL,
    SILENTLY_IGNORED,
    CompletionRequest,
    read_effort,
    read_limit,
    read_model_name,
    read_stop_strings,
    read_suffix,
    refuse_unsupported,
)
from app.server.fields import Fields, as_integer, replace_surrogates
from app.server.form_fields import read_form
from app.server.message_fields import read_messages, read_tools
from app.server.message_order import arrange_messages
from app.server.sampling_fields import read_sampling
from engine.prompt.infill import InfillText

MAX_TOP_LOGPROBS = 20
_PROMPT = "a string, a list of token ids, or a list of these"


def read_chat_request(fields: Fields, served_model: str) -> CompletionRequest:
    """Read a request for ``/v1/chat/completions``.

    Args:
        fields: Fields of the request.
        served_model: See ``read_model_name``.

    Raises:
        ApiError: A field is wrong.
    """
    fields = fields.unwrapped()
    model = read_model_name(fields, served_model)
    all_messages = read_messages(fields)
    _check_continuation(fields, ends_with_reply=all_messages[-1].role == ASSISTANT)
    messages, reply_prefix = arrange_messages(all_messages, "messages")
    tools = read_tools(fields)

    n_logprobs: int | None = None
    n_top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if fields.flag("logprobs"):
        n_logprobs = n_top or 0

    request = _read_request(
        fields,
        model=model,
        tools=tools,
        messages=messages,
        reply_prefix=reply_prefix,
        n_logprobs=n_logprobs,
        max_tokens=read_limit(fields, "max_completion_tokens", "max_tokens", "n_predict"),
        thinking=_read_thinking(fields),
    )
    fields.ignore_rest()
    return request


def _check_continuation(fields: Fields, ends_with_reply: bool) -> None:
    """Refuse options that contradict how the conversation ends.

    Args:
        fields: Fields of the request.
        ends_with_reply: Whether the last message is the assistant's, which the model then
            continues.
    """
    continues = fields.flag("continue_final_message", ends_with_reply)
    adds_prompt = fields.flag("add_generation_prompt", not ends_with_reply)
    if continues and fields.flag("add_generation_prompt"):
        raise ApiError(
            "add_generation_prompt and continue_final_message exclude each other",
            param="add_generation_prompt",
        )
    if continues and not ends_with_reply:
        raise ApiError(
            "continue_final_message: the last message must be the assistant's", param="messages"
        )

    for name, value in (
        ("continue_final_message", continues),
        ("add_generation_prompt", not adds_prompt),
    ):
        if value != ends_with_reply:
            raise unsupported(
                name,
                f"is not supported as {str(fields.value(name)).lower()}: the last message is "
                "continued exactly if it is the assistant's",
            )


def read_completion_request(fields: Fields, served_model: str) -> CompletionRequest:
    """Read a request for ``/v1/completions``.

    Args:
        fields: Fields of the request.
        served_model: See ``read_model_name``.

    Raises:
        ApiError: A field is wrong.
    """
    fields = fields.unwrapped()
    model = read_model_name(fields, served_model)
    prompts = read_prompts(fields)

    limit = fields.value("max_tokens")
    counts_prompt_only = as_integer(limit) == 0 and type(limit) is not bool
    max_tokens: int | None = None
    if not counts_prompt_only:
        max_tokens = read_limit(fields, "max_tokens", "n_predict")

    suffix = read_suffix(fields)
    infill: InfillText | None = None
    if suffix:
        prefix = prompts[0]
        if len(prompts) > 1 or not isinstance(prefix, str):
            raise fields.wrong_value("prompt", "a single string if there is a suffix")
        infill = InfillText(prefix, suffix)

    request = _read_request(
        fields,
        model=model,
        prompt=prompts[0],
        extra_prompts=prompts[1:],
        infill=infill,
        n_logprobs=fields.integer("logprobs", 0, MAX_TOP_LOGPROBS),
        max_tokens=max_tokens,
        counts_prompt_only=counts_prompt_only,
    )
    if request.n_replies > MAX_ANSWERS:
        raise fields.wrong_value("prompt", f"at most {MAX_ANSWERS} texts, counted n times")
    fields.ignore_rest()
    return request


def _read_request(fields: Fields, **values: Any) -> CompletionRequest:
    """Read the fields that both paths share."""
    for name in SILENTLY_IGNORED:
        fields.mark_read(name)
    if "messages" in values and fields.value("suffix"):
        raise unsupported("suffix", "is not supported in a chat (use /v1/completions)")
    refuse_unsupported(fields, NEUTRAL)

    options = fields.nested("stream_options") or Fields({})
    # Obfuscation hides the lengths of pieces from a network; there is none here.
    options.flag("include_obfuscation")
    includes_usage = options.flag("include_usage")
    options.ignore_rest()

    return CompletionRequest(
        **values,
        sampling=read_sampling(fields),
        stop_strings=read_stop_strings(fields),
        form=read_form(fields),
        n_answers=fields.integer("n", 1, MAX_ANSWERS) or 1,
        is_streamed=fields.flag("stream"),
        includes_usage=includes_usage,
    )


def _read_thinking(fields: Fields) -> str | None:
    effort = read_effort(fields, "reasoning_effort")
    variables = fields.nested("chat_template_kwargs") or Fields({})
    for name in ("enable_thinking", "thinking"):
        if variables.has(name):
            effort = "on" if variables.flag(name) else "off"
    variables.ignore_rest()
    return effort


def read_prompts(fields: Fields) -> tuple[str | tuple[int, ...], ...]:
    """Return the texts to continue, or their token ids; there is at least one."""
    value = fields.value("prompt")
    if value is None:
        raise fields.missing_value("prompt", _PROMPT)

    has_several = (
        isinstance(value, list)
        and len(value) > 0
        and all(isinstance(prompt, (str, list)) for prompt in value)
    )
    if has_several:
        # One more than allowed, so that the caller sees that there are too many.
        return tuple(_read_prompt(fields, prompt) for prompt in value[: MAX_ANSWERS + 1])
    return (_read_prompt(fields, value),)


def _read_prompt(fields: Fields, value: Any) -> str | tuple[int, ...]:
    if isinstance(value, str) and value:
        return replace_surrogates(value)

    are_ids = (
        isinstance(value, list)
        and len(value) > 0
        and all(type(token_id) is int and 0 <= token_id <= MAX_TOKENS for token_id in value)
    )
    if are_ids:
        return tuple(value)
    raise fields.wrong_value("prompt", _PROMPT)
