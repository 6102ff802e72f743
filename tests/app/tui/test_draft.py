from hypothesis import given
from hypothesis import strategies as st

from app.documents.passages import FileText
from app.text.clean_text import clean_text
from app.tui.chat.draft import Draft, chip_spans, is_large, with_preview, write_chip

CODE = "\n".join(f"x{i} = {i}" for i in range(42))


def folded(*pastes: str) -> tuple[list[str], Draft]:
    chips = [write_chip(number, paste) for number, paste in enumerate(pastes, start=1)]
    return chips, Draft(" and ".join(chips), dict(zip(chips, pastes, strict=True)))


def test_a_chip_says_number_size_and_lines():
    assert write_chip(1, "x" * 3100).replace("\u00a0", " ") == "[pasted 1: 3.1 kB, 1 line]"
    assert write_chip(12, CODE + "\n").replace("\u00a0", " ") == "[pasted 12: 358 B, 42 lines]"
    assert write_chip(2, "ä" * 700_000).replace("\u00a0", " ") == "[pasted 2: 1.4 MB, 1 line]"


def test_long_texts_and_texts_of_many_lines_are_large():
    assert is_large("x" * 1600)
    assert is_large("\n" * 19)
    assert not is_large("x" * 1599)
    assert not is_large("\n" * 18)


def test_pastes_are_not_looked_into():
    chips, draft = folded("one", "two")
    hostile = Draft(draft.folded_text, {chips[0]: chips[1], chips[1]: chips[0]})
    assert hostile.text == f"{chips[1]} and {chips[0]}"


@given(
    st.lists(st.text(min_size=1).map(clean_text).filter(bool), min_size=1, max_size=4),
    st.text().map(clean_text),
)
def test_any_paste_comes_out_as_it_went_in(pastes: list[str], typed: str):
    chips, draft = folded(*pastes)
    whole = Draft(typed.replace("[", "(") + draft.folded_text, draft.folds)
    assert whole.text == typed.replace("[", "(") + " and ".join(pastes)
    assert set(whole.used_folds()) == set(chips)


def test_the_transcript_shows_three_lines_of_a_paste():
    paste = "\n\tdef f():\n" + "\n".join(f"line {number} " + "x" * 90 for number in range(40))
    (chip,), draft = folded(paste)
    message = Draft(f"Explain {chip} in short", draft.folds)
    shown = with_preview(message.text, message.folded_text).splitlines()
    assert shown[0] == f"Explain {chip}"
    assert shown[1] == "      def f():"
    assert shown[2].startswith("  line 0 xxx")
    assert len(shown[2]) == len(shown[3]) == 66
    assert shown[4:] == ["in short"]


def test_files_have_no_preview_in_the_transcript():
    file = FileText("notes.txt", "Text of notes.txt: one", "one")
    draft = Draft("What?").with_files([file])
    assert with_preview(draft.text, draft.folded_text) == draft.folded_text


def test_only_known_chips_are_chips():
    chips, draft = folded("one")
    assert [chip for *_, chip in chip_spans(f"a{chips[0]}b", draft.folds)] == chips
    assert list(chip_spans(write_chip(7, "one"), draft.folds)) == []
    assert Draft(write_chip(7, "one"), draft.folds).text == write_chip(7, "one")


def test_an_edited_text_folds_again_only_pastes_still_whole():
    chips, draft = folded("first paste", "second paste")
    again = draft.refold("see first paste and second past, changed")
    assert again.folded_text == f"see {chips[0]} and second past, changed"
    assert again.text == "see first paste and second past, changed"
