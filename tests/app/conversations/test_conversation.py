import pytest

from app.conversations.conversation import Conversation, Ending, ReplyFigures, Role

PAUSED = ReplyFigures(5, 2.0, 4.0, prompt_tokens=9, reused_tokens=3)
FIGURES = ReplyFigures(
    tokens=3, first_token_s=1.0, decode_tps=2.0, prompt_tokens=5, reused_tokens=0
)


def test_a_reply_follows_the_message_it_answers():
    conversation = Conversation()
    conversation.add_user("why?")
    conversation.add_reply("because", Ending.COMPLETE, FIGURES)
    assert [m.role for m in conversation.messages] == [Role.USER, Role.ASSISTANT]
    assert conversation.last_reply.text == "because"


def test_a_reply_without_a_question_is_refused():
    with pytest.raises(ValueError, match="needs a message"):
        Conversation().add_reply("because", Ending.COMPLETE, None)


def test_the_next_message_replaces_an_unanswered_one():
    conversation = Conversation()
    conversation.add_user("first try")
    conversation.add_user("second try")
    assert [m.text for m in conversation.messages] == ["second try"]


def test_dropping_a_reply_leaves_its_question_unanswered():
    conversation = Conversation()
    conversation.add_user("why?")
    conversation.add_reply("because", Ending.COMPLETE, None)
    conversation.drop_reply()
    assert conversation.awaits_reply
    assert conversation.take_back_user() == "why?"
    assert conversation.is_empty


def test_drop_removes_replies_and_take_back_removes_questions():
    conversation = Conversation()
    conversation.add_user("why?")
    with pytest.raises(ValueError, match="not a reply"):
        conversation.drop_reply()
    conversation.add_reply("because", Ending.COMPLETE, None)
    with pytest.raises(ValueError, match="has its answer"):
        conversation.take_back_user()


def test_the_figures_of_a_continued_reply_add_up():
    continuation = ReplyFigures(9, 0.2, 2.0, prompt_tokens=1, reused_tokens=20)
    total = PAUSED.continued_by(continuation)
    # Four tokens in one second and eight in four.
    assert (total.tokens, total.decode_tps) == (14, 12 / 5)
    assert (total.first_token_s, total.prompt_tokens, total.reused_tokens) == (2.0, 9, 3)
    assert PAUSED.continued_by(ReplyFigures(1, 0.2, None, 1, 20)).decode_tps == 4.0
