"""Tests of forms in separate processes: a hostile form harms no other form and leaves no
process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.forms.answer_form import GRAMMAR, REGEX, SCHEMA, AnswerForm, FormError
from app.forms.constraint import FormConstraint, Forms, check_form
from app.forms.process import FormLimits
from engine.errors import Cancelled
from tests.app.forms.form_processes import is_alive, until
from tests.engine.prompt.test_chat_prompt import BYTES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


def chained_schema(keyword: str, n: int) -> str:
    """Return a schema with a chain of definitions."""

    def link(to: int) -> dict[str, Any]:
        reference = {"$ref": f"#/$defs/d{to}"}
        return {keyword: reference if keyword == "items" else [reference]}

    return json.dumps(
        {**link(0), "$defs": {**{f"d{index}": link(index + 1) for index in range(n)}, f"d{n}": {}}}
    )


CHAIN = "\n".join(
    ["start: r0", *(f"r{index}: r{index + 1}" for index in range(3000)), 'r3000: "a"']
)
DOUBLES = "\n".join(
    ["start: T40", 'T0: "a"', *(f"T{index}: T{index - 1} T{index - 1}" for index in range(1, 41))]
)
HOSTILE = {
    "stack: rules": (GRAMMAR, CHAIN),
    "stack: allOf": (SCHEMA, chained_schema("allOf", 1400)),
    "stack: items": (SCHEMA, chained_schema("items", 1400)),
    "stack: anyOf": (SCHEMA, chained_schema("anyOf", 1400)),
    "time: multiples": (SCHEMA, '{"type":"integer","multipleOf":1000003}'),
    "time: stars": (REGEX, "a*" * 20_000),
    "size: doubles": (GRAMMAR, DOUBLES),
}
LIMITS = FormLimits(compile_cpu_s=0.3, step_cpu_s=0.3, memory_bytes=128 << 20)
SOUND = AnswerForm(REGEX, "yes|no", "answer")
SLOW = AnswerForm(*HOSTILE["time: multiples"], "slow")


@pytest.fixture(scope="module")
def forms() -> Iterator[Forms]:
    all_forms = Forms(BYTES, LIMITS)
    yield all_forms
    all_forms.close()


def first_texts(constraint: FormConstraint) -> set[str]:
    """Return the texts with which the reply may begin."""
    return {BYTES.token_text(int(token)) for token in constraint.allowed().nonzero()[0]}


def process_of(forms: Forms) -> psutil.Process:
    child = forms._process._child
    assert child is not None
    return psutil.Process(child.pid)


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_form_gives_one_line_and_harms_no_other(forms: Forms, case: str) -> None:
    with pytest.raises(FormError) as refused:
        forms.constraint(AnswerForm(*HOSTILE[case], "response_format"))
    line = str(refused.value)
    assert line.startswith("response_format cannot be used: ")
    assert line.isprintable()
    process_before = process_of(forms)
    sound = forms.constraint(SOUND)
    assert first_texts(sound) == {"y", "n"}
    sound.close()
    assert process_of(forms) == process_before  # only the child was lost


@pytest.mark.smoke
def test_a_form_file_is_checked_within_the_same_limits() -> None:
    check_form(SOUND)
    with pytest.raises(FormError, match=r"chain\.lark cannot be used: it is nested too deeply"):
        check_form(AnswerForm(GRAMMAR, CHAIN, "chain.lark"))


def test_a_form_that_takes_too_much_memory_is_refused() -> None:
    few = Forms(BYTES, FormLimits(compile_cpu_s=30.0, memory_bytes=16 << 20))
    with pytest.raises(FormError, match="needs more than 16 MB"):
        few.constraint(AnswerForm(*HOSTILE["time: multiples"], "x"))
    few.close()


def test_a_stopped_wait_ends_the_compilation(forms: Forms) -> None:
    forms.constraint(SOUND).close()
    n_asked = 0
    unlimited = Forms(BYTES, FormLimits(compile_cpu_s=600.0))

    def waiting() -> None:
        nonlocal n_asked
        n_asked += 1
        if n_asked > 3:
            raise Cancelled("stopped")

    with pytest.raises(Cancelled):
        unlimited.constraint(SLOW, (), waiting)
    until(lambda: not process_of(unlimited).children())
    assert first_texts(unlimited.constraint(SOUND)) == {"y", "n"}
    unlimited.close()


def test_a_finished_form_leaves_no_process(forms: Forms) -> None:
    constraint = forms.constraint(SOUND)
    (child,) = process_of(forms).children()
    constraint.close()
    until(lambda: not child.is_running())
    assert not process_of(forms).children()
    del constraint


def test_simultaneous_forms_are_independent(forms: Forms) -> None:
    first = forms.constraint(SOUND)
    second = forms.constraint(AnswerForm(REGEX, "no|perhaps", "x"))
    first.accept(BYTES.encode("n", bos=False)[0])
    assert first_texts(second) == {"n", "p"}
    assert first_texts(first) == {"o"}
    first.close()
    second.close()


def test_a_killed_child_costs_one_answer(forms: Forms) -> None:
    constraint = forms.constraint(AnswerForm(REGEX, "[a-z]{3}", "x"))
    process_of(forms).children()[0].kill()

    def proceed() -> None:
        for _ in range(3):
            constraint.accept(BYTES.encode("a", bos=False)[0])
            constraint.allowed()

    with pytest.raises(FormError, match="x cannot be used"):
        proceed()
    assert first_texts(forms.constraint(SOUND)) == {"y", "n"}


def test_a_killed_process_is_started_again() -> None:
    new_forms = Forms(BYTES)
    constraint = new_forms.constraint(SOUND)
    keeper = process_of(new_forms)
    child = process_of(new_forms).children()[0]
    keeper.kill()
    constraint.close()
    until(lambda: not any(is_alive(process) for process in (keeper, child)))
    assert first_texts(new_forms.constraint(SOUND)) == {"y", "n"}
    assert process_of(new_forms) != keeper
    new_forms.close()


_COMPILES = """
import sys, psutil
from app.forms.answer_form import AnswerForm
from app.forms.process import FormLimits, FormProcess
from app.forms.sandbox import pack_vocabulary
vocabulary = pack_vocabulary([*(bytes([one]) for one in range(256)), b""], [256], None, 256)
made = FormProcess(vocabulary, FormLimits(compile_cpu_s=600.0))
def channel(form, waiting):
    opened = made.open("x", lambda text: list(text.encode()), waiting)
    opened.start(AnswerForm(*form, "x"))
    opened.receive()
    return opened
def waiting():
    keeper = psutil.Process(made._child.pid)
    found = keeper.children(recursive=True)
    if len(found) == 2:
        print(*[one.pid for one in [keeper, *found]], flush=True)
kept = channel({sound}, lambda: None)
channel({slow}, waiting)
"""


def test_a_killed_program_leaves_no_process() -> None:
    code = _COMPILES.format(sound=(SOUND.syntax, SOUND.text), slow=(SLOW.syntax, SLOW.text))
    program = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    processes = [psutil.Process(int(pid)) for pid in program.stdout.readline().split()]
    assert len(processes) == 3
    program.kill()
    program.communicate()
    until(lambda: not any(map(is_alive, processes)))
