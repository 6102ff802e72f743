import random

import pytest

from tests.app.conversations.killed_writer import kill_one, lost

pytestmark = pytest.mark.slow

N_KILLS = 30


def test_a_kill_at_any_moment_loses_no_message_that_was_saved(tmp_path):
    root, chance = tmp_path / "conversations", random.Random(6)
    for _ in range(N_KILLS):
        said, found = kill_one(root, chance.uniform(0, 0.05))
        assert said[0]
        assert lost(said, found) == []
    assert found == sorted(found, key=lambda text: float(text.split()[1]))


def test_a_lost_message_is_not_taken_for_the_start_of_another():
    assert lost(["question 1", "answer 1.0 ", "quest"], ["answer 1.0 ", "question 10"]) == ["question 1"]
    assert lost(["question 1"], ["answer 1.0 "]) == ["question 1"]
