"""Commands that other programs have and Jalopy does otherwise, with advice in a line.

Words for the same thing are in ``Action.also`` instead: they are commands themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

_ADVICE_BY_WORDS = (
    ("undo rewind", "/edit changes your last message, and /branch shows what was there before"),
    ("summarize", "/compact lets the model summarize the oldest turns and read that instead"),
    ("image img", "/read photo.jpg or @photo.jpg attaches a picture, for models that see"),
    ("audio voice speak speech", "Jalopy reads and writes text, and reads pictures"),
    ("login logout account", "Jalopy needs no account: the model runs on this machine"),
    ("web url fetch browse", "Jalopy reads no web pages. /tools lists tools, also of your servers"),
    ("stop abort", "Esc stops the reply; /continue resumes it"),
    ("show info modelfile", "F3 shows the models, and Tab there what a file contains; /context, "
     "/system and /set show the rest"),
    ("license", "jalopy inspect MODEL shows the license in a model's file"),
    ("unload eject", "/model NAME opens another model; a model is unloaded when Jalopy ends"),
    ("rm", "/delete deletes this conversation; a model is a file, and F3 shows where it is"),
    ("quantize shrink", "ctrl+s in F3 makes a smaller version; so does jalopy quantize"),
    ("gpu device", "Jalopy computes on the processor; F4 finds its fastest settings"),
    ("num_ctx ctx_size n_ctx", "context_size in /settings sets the size of the context"),
    ("bench benchmark perplexity", "F2 shows the speed; jalopy bench and perplexity measure it"),
    ("sh shell bash cmd run git diff commit test lint cd pwd ls make",
     "! runs a shell command, whose output goes with your message: !git diff"),
    ("review pr", "Put the text into the message (!git diff or @file); /persona reviewer reviews"),
    ("init memory remember rules", "/system TEXT tells the model what to keep in mind; /persona "
     "save NAME keeps that"),
    ("permissions approve allow hooks", "Jalopy asks before each call; /tools lists the tools"),
    ("agents agent plan", "Jalopy answers messages; /tools on lets models call tools"),
    ("multiline newline", "ctrl+j begins a new line; ctrl+g opens your editor"),
    ("vim emacs", "ctrl+g opens your editor; keymap.toml changes keys (jalopy help settings)"),
    ("format", "/schema FILE makes replies follow a JSON schema"),
    ("nohistory", "/private saves nothing of a conversation; prompt_history in /settings is the "
     "list of messages"),
    ("nothink", "/think off"),
    ("language lang", "The screen is English; ask for a reply in your language, or /system does"),
    ("update upgrade version", "jalopy --version shows the version; README says how to update"),
    ("bug feedback issue", "/report and F5 describe this machine; please report what went wrong"),
    ("raw", "jalopy run MODEL --raw continues a text without a chat template"),
    ("wordwrap", "Lines are always wrapped to the width of the terminal"),
    ("statusline", "ctrl+t shows or hides the speed strip; /theme has colours"),
    ("queue", "A message sent during a reply waits; /unsend takes it back"),
    ("worldinfo note", "/system TEXT replaces the system prompt; @file attaches notes"),
)  # fmt: skip
"""Commands, separated by spaces, each with advice on what to do instead."""
ADVICE: Mapping[str, str] = {
    word: advice for words, advice in _ADVICE_BY_WORDS for word in words.split()
}
"""Advice by command."""
