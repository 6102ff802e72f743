"""Sizes, control tokens and chat template of the starter model, shared by training and export."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from starter.text.tables import Turn

END_OF_TEXT = "<|endoftext|>"
START = "<|im_start|>"
END = "<|im_end|>"
CONTEXT = 1024
"""Tokens of the longest conversation."""
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; rows are multiples of 256, as all quantised types need."""

    vocabulary: int = 3072
    context: int = CONTEXT
    width: int = 256
    layers: int = 5
    heads: int = 8
    kv_heads: int = 4
    feed_forward: int = 512
    rope_base: float = 10000.0
    epsilon: float = 1e-5

    @property
    def head_width(self) -> int:
        """Number of elements of a head."""
        return self.width // self.heads


def render(system: str, turns: Iterable[Turn]) -> str:
    """Write a conversation as the model's chat template does."""
    text = ""
    if system:
        text = f"{START}system\n{system}{END}\n"
    for question, answer in turns:
        text += f"{START}user\n{question}{END}\n{START}assistant\n{answer}{END}\n"
    return text
