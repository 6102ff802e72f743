import io
import time

import pytest

from app.documents.web_page import html_text


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("a&nbsp;b &lt;tag&gt; &#x2014; &euro;", "a b <tag> — €"),
        ("a<!-- > no --><!-->b<!--->c", "abc"),
        ("a<!-- never closed <b>", "a"),
        ("a<?php no ?>b<!doctype html>c</>d", "abcd"),
        ("<![CDATA[a < b &amp; c]]> d", "a < b &amp; c d"),
        ("1 < 2 <3 a<b", "1 < 2 <3 a"),
        ("<a title='a > b' href=x>c</a>", "c"),
        ('a<img alt="forgotten> b', "a b"),
        ("<script>if (a</b>) '</scrip>'</SCRIPT >c", "c"),
        ("<textarea>a <b> c</textarea>", "\na <b> c\n"),
        (
            "a<p hidden>secret<p>b<div style='color: red; display: none'><div>no</div>no</div>c",
            "a\nb\nc",
        ),
        ("<li hidden>no<li>yes", "\nyes"),
        ("<input hidden>yes <svg/>yes", "yes yes"),
        ("&#99999999999;&#x" + "9" * 9000 + ";", "\ufffd\ufffd"),
    ],
)
def test_a_page_is_read_as_a_browser_reads_it(page: str, text: str) -> None:
    assert html_text(io.BytesIO(page.encode())) == text


@pytest.mark.parametrize(
    "piece",
    [
        "<!--",
        "<![CDATA[",
        "</",
        "</a",
        "<!",
        "<?",
        "<a ",
        "<a b='",
        "<a b=\"'",
        "<",
        "<script>",
        "<title>",
        "&#9",
    ],
)
def test_a_page_of_unclosed_elements_takes_linear_time(piece: str) -> None:
    page = io.BytesIO((piece * ((1 << 19) // len(piece))).encode())
    begin_s = time.process_time()
    html_text(page)
    assert time.process_time() - begin_s < 4  # quadratic time would be minutes


def test_a_page_says_its_encoding() -> None:
    page = "<meta charset=Shift_JIS><p>日本</p>"
    assert html_text(io.BytesIO(page.encode("shift_jis"))).strip() == "日本"


@pytest.mark.slow
@pytest.mark.parametrize(
    "tag",
    [
        '<p a="" ' + 'b="1" ' * 150_000,
        "<p " + "a=b " * 250_000,
        "<ol>" * 200_000,
        "<ol reversed>" * 80_000,
        "<ol><li>" * 100_000,
        "<p><a href='https://a.example'>" * 30_000,
    ],
)
def test_the_time_for_a_page_is_linear_in_its_length(tag: str) -> None:
    begin_s = time.process_time()
    assert "words" in html_text(io.BytesIO(f"<div>{tag}>words".encode()))
    assert time.process_time() - begin_s < 8  # quadratic time would be minutes


@pytest.mark.parametrize(
    ("page", "lines"),
    [
        ("<ol><li>first<li><p>second</p></li></ol><li>x", ["1. first", "2. second", "x"]),
        ("<ol start=3 type=A><li>a<li>b</ol>", ["C. a", "D. b"]),
        ("<ol type='i'><li>a<ul><li>dot</ul><li>b</ol>", ["i. a", "dot", "ii. b"]),
        ("<ol reversed><li>a<ol><li>x</ol><li>b<li>c</ol>", ["3. a", "1. x", "2. b", "1. c"]),
        ("<ol><li value=7>a<li hidden>no<li>b</ol>", ["7. a", "8. b"]),
        ("<ol style='list-style-type: upper-roman'><li value=2024>a</ol>", ["MMXXIV. a"]),
        ("<ol style='list-style:none'><li>a</ol><ul><li>b</ul>", ["a", "b"]),
        ("<ol start=99999999999><li>a</ol><ol start=-1><li>b</ol>", ["1. a", "-1. b"]),
        ("<ol><li></li><li>b</ol>c", ["2. b", "c"]),
    ],
)
def test_list_items_keep_their_numbers(page: str, lines: list[str]) -> None:
    text = html_text(io.BytesIO(page.encode()))
    assert [line for line in text.split("\n") if line] == lines


def test_links_in_sentences_and_images_are_described() -> None:
    page = (
        "<li><a href='https://menu.example'>menu</a><p>see "
        "<a href=https://docs.example/x>it</a>.</p>"
    )
    page += '<img alt="a red&nbsp;bicycle" src=x><img alt="" src=y><a href="#top">up</a>'
    lines = [line for line in html_text(io.BytesIO(page.encode())).split("\n") if line]
    assert lines == ["menu", "see it (https://docs.example/x).", "[image: a red bicycle]up"]
