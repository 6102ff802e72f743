"""Tests of the page for people: its text and headers, and its chat in a browser if one is here."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from app.server.start_page import page_headers, start_page
from tests.app.fake_engine import Gate, Script
from tests.app.server.browser import Browser, browsing, find_browser
from tests.app.server.serving import Serving, serving

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
KEY = "a-key-of-twenty-chars"
NOTES = "document.querySelectorAll('.note').length"
ENTER = ("Enter", 13)
ESCAPE = ("Escape", 27)


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/"])
def test_a_browser_gets_the_page(shared: Serving, path: str) -> None:
    answer = shared.get(path, headers=BROWSER)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    text = unescape(answer.text)
    assert f'base_url="{shared.url}/v1"' in text
    assert "<option>m</option>" in text
    assert 'model="m"' in text


@pytest.mark.parametrize("accept", ["application/json", "*/*", ""])
def test_programs_get_the_text_for_ollama(shared: Serving, accept: str) -> None:
    answer = shared.get("/", headers={"Accept": accept})
    assert answer.text == "Ollama is running"
    assert "content-security-policy" not in answer.headers


def test_the_address_is_the_one_that_the_browser_used(shared: Serving) -> None:
    answer = shared.get("/", headers={**BROWSER, "Host": "localhost:9000"})
    assert "http://localhost:9000/v1" in answer.text
    assert shared.url not in answer.text


def test_names_of_models_are_text_in_the_page() -> None:
    page = start_page("http://127.0.0.1:1", ["<b>'\"&", *map(str, range(300))])
    assert "<option>&lt;b&gt;&#x27;&quot;&amp;</option>" in page
    assert "<b>" not in page
    assert page.count("<option>") == 200


def test_the_examples_name_the_address_and_the_model() -> None:
    page = unescape(start_page("http://10.0.0.7:1234", ["my-model"]))
    assert page.count("<details>") == 10
    for example in (
        "curl http://10.0.0.7:1234/v1/chat/completions",
        'model="my-model"',
        "'endpoint_fim': 'http://10.0.0.7:1234/infill'",
        "export ANTHROPIC_MODEL=my-model",
        'model = "my-model"',
    ):
        assert example in page
    assert "8080" not in page
    assert "pulls" not in start_page("http://10.0.0.7:1234", [])
    assert "jalopy pull gets one" in start_page("http://10.0.0.7:1234", [])


def test_the_page_loads_nothing(shared: Serving) -> None:
    answer = shared.get("/", headers=BROWSER)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert not re.search(
        r"<(a|img|link(?! rel=\"icon\" href=\"data:,\"))[ >]|@import|url\(", answer.text
    )
    assert not re.search(r"\b(src|href|action|on\w+)=\"(?!data:,)", answer.text)
    for tag in ("style", "script"):
        (source,) = re.findall(f"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_the_script_writes_text_only() -> None:
    script = start_page("http://127.0.0.1:1", []).partition("<script>")[2]
    for way in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "Function("):
        assert way not in script


def test_the_page_without_the_key_tells_no_model() -> None:
    with pytest.MonkeyPatch.context() as patch, serving(patch, api_key=KEY) as served:
        answer = served.get("/", headers=BROWSER)
        assert answer.status_code == 200
        assert "<option>" not in answer.text
        assert 'data-needs-key="yes"' in answer.text
        assert "Authorization: Bearer KEY" in answer.text
        assert KEY not in answer.text
        for path in ("/v1/models", "/metrics", "/props"):
            assert served.get(path, headers=BROWSER).status_code == 401
        assert served.get("/").status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "{url}"}, 200),
        ({"Origin": "{url}", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "{https}", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "{https}"}, 403),
        ({"Origin": "{url}", "Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "{url}", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "{url}0", "Sec-Fetch-Site": "same-origin"}, 403),
        ({"Origin": "null", "Sec-Fetch-Site": "same-origin"}, 403),
        ({"Origin": "http://attacker.example", "Host": "attacker.example"}, 403),
    ],
)
def test_the_own_page_may_use_the_server(
    shared: Serving, headers: dict[str, str], status: int
) -> None:
    addresses = {"url": shared.url, "https": shared.url.replace("http:", "https:")}
    request_headers = {name: value.format(**addresses) for name, value in headers.items()}
    answer = shared.get("/v1/models", headers=request_headers)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers


# ---- in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Browser that the tests share."""
    program = find_browser()
    if program is None:
        pytest.skip("needs Chromium (apt install chromium)")
    with browsing(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, server: Serving) -> Browser:
    """Page of a server that answers with the script."""
    browser.console.clear()
    browser.requests.clear()
    browser.open(server.url)
    return browser


def ask(page: Browser, text: str) -> None:
    """Type a message and send it with Enter."""
    page.value("document.getElementById('prompt').focus()")
    page.type(text)
    page.press(*ENTER)


@pytest.mark.slow
def test_the_page_chats(page: Browser, server: Serving) -> None:
    server.script.replies = [["Par", "is", "."], ["Rome", "."]]
    ask(page, "capital of France?")
    page.wait_for(f"{NOTES} === 1")
    assert "capital of France?\nParis.\n" in re.sub(r"\n+", "\n", page.text())
    ask(page, "and of Italy?")
    page.wait_for(f"{NOTES} === 2")
    assert "Rome." in page.text()
    texts = [message.content for message in server.script.opened[0].chats[0].messages]
    assert texts == ["capital of France?", "Paris.", "and of Italy?", "Rome."]
    assert not page.console
    assert set(page.requests) == {f"{server.url}/", f"{server.url}/v1/chat/completions"}


@pytest.mark.slow
def test_markup_in_answers_is_text(page: Browser, server: Serving) -> None:
    markup = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
    server.script.replies = [[markup, "</div>", " &amp; done"]]
    ask(page, "<b>bold</b>")
    page.wait_for(f"{NOTES} === 1")
    assert f"{markup}</div> &amp; done" in page.text()
    assert "<b>bold</b>" in page.text()
    assert page.value("document.querySelectorAll('#log img, #log script, #log b').length") == 0
    assert page.value("document.title") == "Jalopy"


@pytest.mark.slow
def test_code_of_an_answer_has_its_own_box(page: Browser, server: Serving) -> None:
    server.script.replies = [["Look:\n", "```html\n<b>\n", "  x\n```", "\n`a` and more"]]
    ask(page, "code?")
    page.wait_for(f"{NOTES} === 1")
    boxes = "[...document.querySelectorAll('.reply > .message')]"
    texts = page.value(f"{boxes}.map((box) => box.tagName + ' ' + box.textContent)")
    assert texts == ["DIV Look:", "PRE <b>\n  x", "DIV `a` and more"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["key", "button"])
def test_a_reply_can_be_stopped(page: Browser, server: Serving, way: str) -> None:
    gate = server.script.token_gate = Gate()
    server.script.replies = [["One ", "two ", "three"]]
    ask(page, "count")
    page.wait_for("document.getElementById('status').textContent.startsWith('Waiting')")
    gate.allow(2)
    page.wait_for("document.getElementById('log').textContent.includes('One')")
    if way == "key":
        page.press(*ESCAPE)
    else:
        page.value("document.getElementById('stop').click()")
    page.wait_for(f"{NOTES} === 1")
    assert "Stopped." in page.text()
    assert page.value("document.activeElement.id") == "prompt"


@pytest.mark.slow
def test_a_failed_question_comes_back(page: Browser, server: Serving) -> None:
    server.script.n_ctx = 512
    ask(page, "word " * 600)
    page.wait_for("document.getElementById('status').className === 'error'")
    assert "context" in page.text()
    assert page.value("document.getElementById('prompt').value") == "word " * 600
    assert page.value("document.querySelectorAll('.message').length") == 0


@pytest.mark.slow
def test_a_new_conversation_forgets_the_old_one(page: Browser, server: Serving) -> None:
    server.script.replies = [["Paris."], ["Hello."]]
    ask(page, "capital of France?")
    page.wait_for(f"{NOTES} === 1")
    page.value("document.getElementById('new').click()")
    assert "France" not in page.text()
    ask(page, "hi")
    page.wait_for(f"{NOTES} === 1")
    texts = [message.content for message in server.script.opened[0].chats[-1].messages]
    assert texts == ["hi", "Hello."]


@pytest.mark.slow
def test_the_page_asks_for_the_key(browser: Browser) -> None:
    script = Script(replies=[["Paris."]])
    with pytest.MonkeyPatch.context() as patch, serving(patch, script, api_key=KEY) as served:
        browser.open(served.url)
        browser.wait_for("document.activeElement.id === 'key'")
        assert "needs its API key" in browser.text()
        browser.type("wrong")
        browser.press(*ENTER)
        browser.wait_for("document.activeElement.id === 'key'")
        browser.value("document.getElementById('key').select()")
        browser.type(KEY)
        browser.press(*ENTER)
        browser.wait_for("document.activeElement.id === 'prompt'")
        assert browser.value("document.getElementById('model').value") == "m"
        ask(browser, "capital of France?")
        browser.wait_for(f"{NOTES} === 1")
        assert "Paris." in browser.text()


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 1000])
@pytest.mark.parametrize("is_dark", [False, True])
def test_the_page_fits_the_screen(
    page: Browser, server: Serving, width: int, is_dark: bool, tmp_path: Path
) -> None:
    page.resize(width, 700, is_dark)
    server.script.replies = [["x" * 400]]
    ask(page, "y" * 400)
    page.wait_for(f"{NOTES} === 1")
    page.value("for (const part of document.querySelectorAll('details')) part.open = true")
    assert page.value("document.documentElement.scrollWidth") <= width
    background = page.value("getComputedStyle(document.documentElement).colorScheme")
    assert background == "light dark"
    page.screenshot(tmp_path / "page.png")


def test_the_headers_forbid_frames_and_other_addresses() -> None:
    policy = page_headers()["Content-Security-Policy"]
    for rule in ("frame-ancestors 'none'", "connect-src 'self'", "form-action 'none'"):
        assert rule in policy
