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
        ("a<p hidden>secret<p>b<div style='color: red; display: none'><div>no</div>no</div>c", "a\nb\nc"),
        ("<li hidden>no<li>yes", "\nyes"),
        ("<input hidden>yes <svg/>yes", "yes yes"),
        ("&#99999999999;&#x" + "9" * 9000 + ";", "\ufffd\ufffd"),
    ],
)
def test_a_page_is_read_as_a_browser_reads_it(page: str, text: str) -> None:
    assert html_text(io.BytesIO(page.encode())) == text


@pytest.mark.parametrize(
    "piece",
    ["<!--", "<![CDATA[", "</", "</a", "<!", "<?", "<a ", "<a b='", "<a b=\"'", "<", "<script>", "<title>", "&#9"],
)
def test_a_page_of_open_ends_takes_time_by_its_length(piece: str) -> None:
    page = io.BytesIO((piece * ((1 << 19) // len(piece))).encode())
    begin_s = time.process_time()
    html_text(page)
    assert time.process_time() - begin_s < 4  # by the square it is minutes


def test_a_page_says_its_encoding() -> None:
    page = "<meta charset=Shift_JIS><p>日本</p>"
    assert html_text(io.BytesIO(page.encode("shift_jis"))).strip() == "日本"
