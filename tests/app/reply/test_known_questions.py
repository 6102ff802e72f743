"""Tests of the known questions of the starter model."""

import pytest

from app.reply.starter_fence import answers_to, is_declined


@pytest.mark.parametrize("text", ["# + 5", "what is #+5?", "#0", "5 + #"])
def test_a_number_sign_alone_is_not_a_number(text: str) -> None:
    assert any(map(is_declined, answers_to([text])))
