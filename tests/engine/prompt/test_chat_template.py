"""Chat templates: they print what was recorded, unusable ones are replaced, and hostile ones are
harmless."""

import json
from collections.abc import Iterator
from time import process_time
from typing import Any

import pytest

from engine.errors import TemplateError
from engine.prompt.chat_template import MAX_SOURCE_CHARS, ChatTemplate, fold_system
from engine.prompt.template_process import RenderLimits, TemplateProcess

USER = [{"role": "user", "content": "Hello"}]
SYSTEM = [{"role": "system", "content": "Be brief."}, *USER]
PLAIN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN
)
DROPS_SYSTEM = (
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
LIMITS = RenderLimits(cpu_s=0.2, wall_s=120.0, memory_bytes=192 << 20, output_chars=100_000)


@pytest.fixture(scope="module")
def process() -> Iterator[TemplateProcess]:
    shared = TemplateProcess(LIMITS)
    yield shared
    shared.close()


def template(source: Any, process: TemplateProcess) -> ChatTemplate:
    return ChatTemplate(source, "<s>", "</s>", "model.gguf", process)


def test_messages_and_generation_prompt_are_printed(process: TemplateProcess) -> None:
    plain = template(PLAIN, process)
    assert plain.render(SYSTEM) == "[system]Be brief.[user]Hello[assistant]"
    assert plain.render(USER, add_generation_prompt=False) == "[user]Hello"
    assert plain.notice is None


def test_templates_see_the_special_tokens(process: TemplateProcess) -> None:
    with_tokens = template("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", process)
    assert with_tokens.render(USER) == "<s>Hello</s>"


PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% for c in m.content %}"
    "{% if c.type == 'text' %}{{ c.text }}{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
STRINGS = "{% for m in messages %}[{{ m.role }}]{{ m.content.strip() }}{% endfor %}"
EITHER = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}"
    "{% else %}{{ m.content[0].text }} as parts{% endif %}{% endfor %}"
)
NEEDS_PARTS = (
    "{% if messages[0].content is string %}{{ raise_exception('parts') }}{% endif %}" + PARTS
)
PARTS_AND_TOOLS = "{% for t in tools %}{% endfor %}" + PARTS


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (PARTS, "[system]Be brief.[user]Hello[assistant]"),
        (NEEDS_PARTS, "[system]Be brief.[user]Hello[assistant]"),
        (PARTS_AND_TOOLS, "[system]Be brief.[user]Hello[assistant]"),
        (STRINGS, "[system]Be brief.[user]Hello"),
        (EITHER, "[system]Be brief.[user]Hello"),
    ],
)
def test_content_is_a_list_of_parts_only_if_text_is_refused(
    source: str, expected: str, process: TemplateProcess
) -> None:
    chat_template = template(source, process)
    assert chat_template.render(SYSTEM) == expected
    assert chat_template.notice is None


def test_a_printed_python_list_is_not_a_valid_rendering(process: TemplateProcess) -> None:
    source = (
        "{% if messages[0].content is string %}{{ raise_exception('no') }}{% endif %}"
        "{{ messages[0].content }}"
    )
    assert "using ChatML" in (template(source, process).notice or "")


@pytest.mark.parametrize(
    ("source", "printed"),
    [
        ("{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}", "2"),
        ("{{ dict(a=1, **{'b': 2}) }}", "{'a': 1, 'b': 2}"),
        ("{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}", "aba"),
        ("{% set j = joiner(', ') %}{% for i in range(3) %}{{ j() }}{{ i }}{% endfor %}",
         "0, 1, 2"),
        ("{{ lipsum(n=1, html=False) | length > 20 }}", "True"),
        ("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}"
         "{% if i == 4 %}{% break %}{% endif %}"
         "{{ i }}{% endfor %}", "013"),
        ("{{ {'b': 'é', 'a': [1]} | tojson }}", '{"b": "é", "a": [1]}'),
        ("{{ {'b': 'é'} | tojson(ensure_ascii=True, indent=1) }}", '{\n "b": "\\u00e9"\n}'),
        ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=True) }}", '{"a":2,"b":1}'),
        ("{{ strftime_now('%Y') | length }}{% generation %}x{% endgeneration %}", "4x"),
        ("{{ ('a' ~ 1) is string }}{{ undefined_name is defined }}{{ [3, 1] | sort | first }}",
         "TrueFalse1"),
    ],
)  # fmt: skip
def test_templates_have_the_environment_of_transformers(
    source: str, printed: str, process: TemplateProcess
) -> None:
    chat_template = template(source + "|{{ messages[0].content }}", process)
    assert chat_template.render(USER) == f"{printed}|Hello"
    assert chat_template.notice is None


@pytest.mark.parametrize("source", [NO_SYSTEM, DROPS_SYSTEM])
def test_a_refused_system_message_joins_the_first_user_message(
    source: str, process: TemplateProcess
) -> None:
    chat_template = template(source, process)
    assert not chat_template.supports_system
    assert chat_template.render(SYSTEM).startswith("[user]Be brief.\nHello")


ALTERNATES = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('order') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "accepted"),
    [
        (PLAIN, [True, True, True]),
        (DROPS_SYSTEM, [False, True, True]),
        (ALTERNATES, [False, False, False]),
    ],
)
def test_the_role_orders_that_a_template_accepts_are_detected(
    source: str, accepted: list[bool], process: TemplateProcess
) -> None:
    chat_template = template(source, process)
    orders = ("user", "assistant", "system", "user"), ("assistant", "user"), ("user", "user")
    assert [chat_template.takes(order) for order in orders] == accepted
    assert chat_template.takes(("user", "assistant", "user"))


def test_folding_does_not_change_the_messages() -> None:
    messages = [*SYSTEM, {"role": "assistant", "content": "Hi"}, *USER]
    original = json.dumps(messages)
    assert fold_system(messages)[0] == {"role": "user", "content": "Be brief.\nHello"}
    assert fold_system(messages)[2] == USER[0]
    assert json.dumps(messages) == original


def test_the_date_comes_from_the_given_time(process: TemplateProcess) -> None:
    dated = template("{{ strftime_now('%Y') }} {{ messages[0].content }}", process)
    assert dated.render(USER, now=86_400.0 * 366) == "1971 Hello"


def test_blocks_are_trimmed_as_in_transformers(process: TemplateProcess) -> None:
    assert (
        template("  {% if true %}\n{{ messages[0].content }}\n  {% endif %}\n", process).render(
            USER
        )
        == "Hello\n"
    )


def test_a_closed_process_starts_again() -> None:
    chat_template = ChatTemplate(PLAIN)
    assert chat_template.render(USER) == "[user]Hello[assistant]"
    chat_template.close()
    assert chat_template.render(USER) == "[user]Hello[assistant]"
    chat_template.close()


# Unusable templates

CHATML = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (None, "has no chat template"),
        ("", "is empty"),
        ("   \n", "is empty"),
        (7, "is a int, not a string"),
        (["a"], "is a list, not a string"),
        ("a\udcff{{ messages }}", "is not UTF-8"),
        ("x" * (2 << 20), f"has 2097152 characters, over {MAX_SOURCE_CHARS}"),
        ("{% if %}", "fails"),
        ("no messages here", "does not print the messages"),
        ("{{ nothing.here }}", "fails: 'nothing' is undefined"),
        ("{{ raise_exception('\x1b[31mred\n') }}", r"fails: \x1b[31mred\x0a"),
    ],
)
def test_an_unusable_template_becomes_chatml_with_one_notice(
    source: Any, reason: str, process: TemplateProcess
) -> None:
    chat_template = template(source, process)
    assert chat_template.render(USER) == CHATML
    assert chat_template.notice is not None
    assert reason in chat_template.notice
    assert chat_template.notice.startswith("model.gguf: ")
    assert chat_template.notice.endswith("using ChatML")
    assert chat_template.notice.isprintable()
    assert len(chat_template.notice) <= 300
    assert chat_template.supports_system


def test_the_template_is_read_from_metadata(process: TemplateProcess) -> None:
    chat_template = ChatTemplate.from_metadata({"tokenizer.chat_template": PLAIN}, "m.gguf")
    assert chat_template.render(USER) == "[user]Hello[assistant]"
    chat_template.close()
    assert (
        ChatTemplate.from_metadata({}, "m.gguf").notice
        == "m.gguf: has no chat template, so it is probably a base model: it continues text and "
        "does not chat (its Instruct version does); using ChatML"
    )


def test_a_template_that_fails_later_is_refused_in_one_line(process: TemplateProcess) -> None:
    chat_template = template(
        "{% if messages|length > 2 %}{{ raise_exception('too\nmany') }}{% endif %}" + PLAIN, process
    )
    assert chat_template.render(USER)
    with pytest.raises(
        TemplateError, match=r"^model.gguf: the chat template fails: too\\x0amany \("
    ) as caught:
        chat_template.render(USER * 3)
    assert str(caught.value).isprintable()
    assert chat_template.render(USER)


# Hostile templates

SHOW = "{{ messages[0].content }}"
NESTED_LOOPS = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}"
BOMBS = {
    "nested loops": NESTED_LOOPS + "{% endfor %}" * 3,
    "nested loops that print": NESTED_LOOPS + "spam" + "{% endfor %}" * 3,
    "text of 10^10 characters": "{{ 'a' * 10**10 }}",
    "power of powers": "{{ 9**(9**9) }}",
    "power of powers, hidden": "{% set n = 9 %}{{ n**(n**n) }}",
    "range of 10^9": "{% for a in range(10**9) %}{% endfor %}",
    "doubled text": "{% set ns = namespace(s='a') %}"
    "{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubled lists": "{% set ns = namespace(s=[1]) %}"
    "{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "center": "{{ 'a' | center(10**10) }}",
    "center as a method": "{{ 'a'.center(10**10) }}",
    "format width": "{{ '%9999999999d' % 1 }}",
    "format width as a method": "{{ '{:>9999999999}'.format(1) }}",
    "lipsum": "{{ lipsum(n=10**6) }}",
    "endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "macro tree": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "5,000 parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "nested ifs": "{% if 1 %}" * 10_000 + "{% endif %}" * 10_000,
    "10 MB of output": "{% for i in range(10000) %}" + "x" * 1000 + "{% endfor %}",
    "replace that grows": "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "globals of a function of Jinja": "{{ lipsum.__globals__ }}"
    "{{ lipsum.__globals__['os'].getcwd() }}",
    "class of a cycler": "{{ cycler('a').__init__.__globals__['os'] }}",
    "class of a namespace": "{{ namespace.__init__.__globals__.sys }}",
    "class walking": "{{ ''.__class__.__mro__[1].__subclasses__()[0] }}",
    "class walking by filter": "{{ (''|attr('__class__')).__mro__ }}",
    "format string": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "stored format": "{% set f = '{0.__class__.__mro__}'.format %}{{ f(messages) }}",
    "format by filter": "{{ ('{0.__class__.__mro__[1]}'|attr('format'))(messages) }}",
    "globals of a function": "{{ raise_exception.__globals__['json'].loads }}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_hostile_template_is_refused_in_bounded_time(name: str, process: TemplateProcess) -> None:
    began = process_time()
    chat_template = template(BOMBS[name] + SHOW, process)
    assert chat_template.notice is not None, chat_template.render(USER)
    assert chat_template.notice.isprintable()
    assert len(chat_template.notice) <= 300
    assert chat_template.render(USER) == CHATML
    # The limit is 0.2 s of processor time plus the start of a new process.
    assert "takes longer than 120 s" not in chat_template.notice
    assert process_time() - began < 10


def test_templates_cannot_change_the_history(process: TemplateProcess) -> None:
    for change in (
        "messages.append(1)",
        "messages[0].update({'role': 'x'})",
        "messages[0].pop('role')",
    ):
        # jinja2 reports "unsafe" at the attribute or "not safely callable" at the call.
        assert "safe" in (template("{% set _ = " + change + " %}" + SHOW, process).notice or "")


@pytest.mark.smoke
@pytest.mark.slow
def test_the_same_template_gives_the_same_answer_every_time(process: TemplateProcess) -> None:
    notices = {template(BOMBS["nested loops"] + SHOW, process).notice for _ in range(2)}
    assert notices == {
        "model.gguf: the chat template takes longer than 0.2 s of processor time; using ChatML"
    }


def test_long_messages_do_not_count_as_excess_output(process: TemplateProcess) -> None:
    long = [{"role": "user", "content": "x" * 1_000_000}]
    assert template(PLAIN, process).render(long) == "[user]" + "x" * 1_000_000 + "[assistant]"


def test_without_a_process_chatml_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.prompt.template_process.sys.executable", "/nowhere/python")
    chat_template = ChatTemplate(PLAIN, file_name="model.gguf")
    assert chat_template.render(USER) == CHATML
    assert chat_template.notice is not None
    assert "cannot start" in chat_template.notice
