"""Blocks of Markdown as rows, the ends of blocks, and their code."""

import pytest

from app.tui.markdown.blocks import inline_text
from app.tui.markdown.code_blocks import code_blocks
from app.tui.markdown.growing import SMALL_CHARS, TABLE_CHARS, GrowingMarkdown, complete_chars
from app.tui.markdown.parser import tree_of

pytestmark = pytest.mark.slow


def whole(text: str, width: int) -> GrowingMarkdown:
    markdown = GrowingMarkdown()
    markdown.source = text
    markdown.lay_out(width, is_whole=True)
    return markdown


def texts(markdown: GrowingMarkdown) -> list[str]:
    return [row.text.plain for row in markdown.rows]


def rows(text: str, width: int = 30) -> list[str]:
    markdown = whole(text, width)
    assert all(row.lead.cell_length + row.text.cell_length <= width for row in markdown.rows)
    return [(row.lead.plain + row.text.plain).rstrip() for row in markdown.rows]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\ntwo\n\nthree", ["one two", "", "three"]),
        ("one  \ntwo", ["one", "two"]),
        ("# A *title*\ntext", ["A title", "", "text"]),
        ("- a\n- b\n  - c\n    - d", ["• a", "• b", "  - c", "    * d"]),
        ("- a\n\n- b\n\n  more", ["• a", "• b", "", "  more"]),
        ("- [ ] buy *it*\n- [x] done\n- [y] no", ["• ☐ buy it", "• ☑ done", "• [y] no"]),
        ("9. a\n10. b", ["  9. a", " 10. b"]),
        ("- one two three four five six seven", ["• one two three four five six", "  seven"]),
        (
            "> one two three four five six seven\n>\n> > x",
            ["▌ one two three four five six", "▌ seven", "▌", "▌ ▌ x"],
        ),
        ("---", ["─" * 30]),
        (
            "```python title\ndef f():\n\n\treturn 1\n```",
            [" python", " def f():", "", "     return 1"],
        ),
        ("```\n" + "x" * 40 + "\n```", [" " + "x" * 29, " " + "x" * 11]),
        ("    indented", [" indented"]),
        ("- a\n  ```\n  x\n  ```\n  b", ["• a", "   x", "", "  b"]),
        ("| a | bb |\n|--:|:-:|\n| 1 | 2 |", [" a │ bb", "───┼────", " 1 │ 2"]),
        ("~~old~~ `a  b` [name](http://x) ![pic](y)", ["old a  b name [image: pic]"]),
        ("<b>x</b> www.example.org &amp;", ["<b>x</b> www.example.org &"]),
        (r"$$\int x\,dx \cdot b_1$$", ["  ∫x dx ⋅ b₁"]),
        (r"a \(x\,y\) $z_1 \* z_2$ \*b\*", [r"a x y $z_1 \* z_2$ *b*"]),
        ("$5 *and* $6, $a", ["$5 and $6, $a"]),
        ("", []),
    ],
)
def test_each_kind_of_block_has_its_rows(text: str, expected: list[str]) -> None:
    assert rows(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[Answer]: Paris", ["[Answer]: Paris"]),
        (
            "a [b][1]\n\n[1]: http://x 'y'\n[2]:\n  z\n\nc",
            ["a b", "", "[1]: http://x 'y'", "[2]:", "  z", "", "c"],
        ),
        ("- [ok]: yes\n- b", ["• [ok]: yes", "• b"]),
    ],
)
def test_link_references_are_shown(text: str, expected: list[str]) -> None:
    assert rows(text) == expected


@pytest.mark.parametrize("text", [">" * 60 + " deep", "- " * 60 + "deep", "> - " * 30 + "deep"])
def test_deeply_nested_text_is_shown(text: str) -> None:
    assert "deep" in "".join(rows(text + "\n\nafter", 200))
    assert rows(text + "\n\nafter", 200)[-1] == "after"


def test_every_level_of_a_deep_list_is_shown() -> None:
    shown = " ".join(rows("\n".join("  " * n + f"- level{n}" for n in range(30)) + "\n- last", 200))
    assert [n for n in range(30) if f"level{n}" not in shown] == []
    assert shown.endswith("• last")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("&#x202E;a&#x2066;", ["\ufffda"]),
        ("`&#x202E;`", ["&#x202E;"]),
        ("&lrm;&auml;&nbsp;b&#12;c", ["\u200eä b c"]),
        ("![&#x202E;x](y)", ["[image: \ufffdx]"]),
        ("# &ZeroWidthSpace;x&shy;y", ["\u200bxy"]),
    ],
)
def test_entities_are_cleaned_like_characters(text: str, expected: list[str]) -> None:
    assert rows(text) == expected


def test_a_wide_table_shrinks_its_widest_columns_and_rules_rows() -> None:
    text = "| no | what it is |\n|---|---|\n| 1 | " + "word " * 8 + "|\n| 2 | short |"
    assert rows(text, 20) == [
        " no │ what it is",
        "────┼───────────────",
        " 1  │ word word",
        "    │ word word",
        "    │ word word",
        "    │ word word",
        "────┼───────────────",
        " 2  │ short",
    ]


def test_a_table_of_too_many_columns_is_a_list() -> None:
    assert rows("| a | b | c |\n|-|-|-|\n| 1 | 2 | 3 |\n| 4 | 5 | 6 |", 12) == [
        *("a: 1", "b: 2", "c: 3", "", "a: 4", "b: 5", "c: 6")
    ]


def test_wide_characters_fit_their_rows() -> None:
    assert rows("漢字" * 10, 15) == ["漢字漢字漢字漢", "字漢字漢字漢字", "漢字漢字漢字"]
    assert rows("```\n" + "漢字" * 5 + "\n```", 10) == [" 漢字漢字", " 漢字漢字", " 漢字"]


def test_nested_emphasis_keeps_both_styles() -> None:
    text = inline_text(tree_of("**a `b` *c***").children[0])
    styles = {(text.plain[span.start : span.end], span.style) for span in text.spans}
    assert styles == {("a b c", ".strong"), ("b", ".code"), ("c", ".em")}


def test_growing_text_ends_with_the_same_rows() -> None:
    text = (
        "# T\n\n- a\n- b\n\n| x | y |\n|---|---|\n| 1 | 2 |\n\n```py\n"
        + "x = 1\n" * 300
        + "```\n\nThe *end*.\n"
    )
    markdown = GrowingMarkdown()
    markdown.lay_out(20)
    for at in range(0, len(text), 5):
        before = list(markdown.rows)
        first = markdown.grow(text[at : at + 5])
        assert all(
            old.is_same(new) for old, new in zip(before[:first], markdown.rows, strict=False)
        )
    assert texts(markdown) == texts(whole(text, 20))


def test_a_long_open_block_is_parsed_once_per_quarter_of_growth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[int] = []
    monkeypatch.setattr(
        "app.tui.markdown.growing.tree_of",
        lambda source: (parsed.append(len(source)), tree_of(source))[1],
    )
    markdown = GrowingMarkdown()
    markdown.lay_out(40)
    markdown.grow("```\n")
    for _ in range(400):
        markdown.grow("x = 1\n")
    assert len(markdown.rows) == 400 + (markdown.rows[-1].text.plain == "")
    assert sum(parsed) < SMALL_CHARS * SMALL_CHARS / 6 + 6 * len(markdown.source)


def test_a_long_table_is_a_table_while_it_grows() -> None:
    text = "| n | square |\n|---|---|\n" + "".join(
        f"| {n} | {n * n:,} of a kind |\n" for n in range(70)
    )
    assert SMALL_CHARS < len(text) < TABLE_CHARS
    markdown = GrowingMarkdown()
    markdown.lay_out(60)
    for at in range(0, len(text), 9):
        markdown.grow(text[at : at + 9])
        assert "| " not in "\n".join(texts(markdown)[:-1])
        if len(markdown.source) < SMALL_CHARS:
            continue
        assert "| " not in texts(markdown)[-1]
        row = markdown.source[markdown.source.rfind("\n") + 1 :]
        n_cells = row.count("|") - 1
        if n_cells > 0:
            first_cell = row.split("|")[1].strip()
            assert texts(markdown)[-1].strip().startswith(first_cell), "complete cells are shown"


def test_text_after_a_long_table_is_shown_as_it_grows() -> None:
    table = "| n | square |\n|---|---|\n" + "| 1 | one of a kind |\n" * 60
    for rest in ("\nNow some text | with a bar", "- an item that is long"):
        markdown = GrowingMarkdown()
        markdown.lay_out(60)
        markdown.grow(table + rest)
        assert rest.strip().split()[-1] in texts(markdown)[-1]


def test_raw_text_stays_raw_without_parsing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    markdown = GrowingMarkdown()
    markdown.lay_out(20)
    markdown.grow("*one*\n\n*two*")
    markdown.show_plain()
    monkeypatch.setattr("app.tui.markdown.growing.tree_of", None)
    markdown.grow("\n\n*three*")
    assert texts(markdown) == ["*one*", "", "*two*", "", "*three*"]


@pytest.mark.smoke
def test_a_long_growing_paragraph_is_wrapped() -> None:
    markdown = GrowingMarkdown()
    markdown.lay_out(40)
    text = "Some words of a paragraph without any break. " * 30
    for at in range(0, len(text), 7):
        markdown.grow(text[at : at + 7])
        assert texts(markdown) == texts(whole(markdown.source, 40))


def test_a_new_width_needs_no_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    markdown = whole("# T\n\n" + "word " * 9, 20)
    monkeypatch.setattr("app.tui.markdown.growing.tree_of", None)
    markdown.lay_out(12, is_whole=True)
    assert texts(markdown) == ["T", "", *["word word"] * 4, "word"]


@pytest.mark.parametrize(
    ("complete", "rest"),
    [
        ("", "Some text and more."),
        ("Some text.\n\n", "A new paragraph"),
        ("One.\n\nTwo.\n\n", ""),
        ("# Title\n", "text"),
        ("", "# Tit"),
        ("", "```python\nx = 1\n\ny = 2\n"),
        ("```python\nx = 1\n```\n", "then"),
        ("", "````\n```\n"),
        ("~~~\nx\n~~~\n", ""),
        ("", "- one\n- two\n\n- three\n"),
        ("", "1. one\n\n   more of one\n"),
        ("- one\n- two\n\n", "Text."),
        ("", "- one\n  ```\n  code\n  ```\n"),
        ("", "| a | b |\n|---|---|\n| 1 | 2 |\n"),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n\n", "x"),
        ("", ""),
    ],
)
def test_complete_blocks_end_by_their_kind(complete: str, rest: str) -> None:
    assert complete_chars(complete + rest) == len(complete)


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        (
            "Do\n\n```python\nx = 1\n\ny = 2\n```\nthen\n~~~\n```\nz\n~~~\n",
            ["x = 1\n\ny = 2", "```\nz"],
        ),
        ("```sh\nls", ["ls"]),  # still open
        ("````md\n```\nin\n```\n````", ["```\nin\n```"]),
        ("```not a block```\nand `x`", []),
        ("", []),
        ("1. First\n\n   ```\n   a\n     b\n   ```\n- ```\n  c\n  ```", ["a\n  b", "c"]),
    ],
)
def test_code_blocks_are_found_in_order_without_their_fences(text: str, blocks: list[str]) -> None:
    assert code_blocks(text) == blocks
