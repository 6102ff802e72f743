"""Process that renders templates, shared by all tests of prompts."""

from collections.abc import Iterator

import pytest

from engine.prompt.template_process import TemplateProcess


@pytest.fixture(scope="session")
def process() -> Iterator[TemplateProcess]:
    shared = TemplateProcess()
    yield shared
    shared.close()
