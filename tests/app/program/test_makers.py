"""Families of model files, and sampling values recommended by their makers."""

from dataclasses import fields
from typing import Any

import pytest

from app.program.makers import advice_of, family_of, known_families
from app.program.settings import Source
from engine import Sampling
from engine.models import ARCHITECTURES
from engine.prompt.thinking import ThinkingMode


def known_family(architecture: str, name: str, basename: str = "") -> str:
    family = family_of(
        {"general.architecture": architecture, "general.name": name, "general.basename": basename}
    )
    return family.name if family else ""


@pytest.mark.parametrize(
    ("architecture", "name", "basename", "family"),
    [
        ("qwen2", "Qwen2.5 Coder 0.5B Instruct AWQ", "Qwen2.5-Coder", "Qwen2.5"),
        ("qwen2", "Qwen2.5 7B Instruct", "", "Qwen2.5"),
        (
            "qwen2",
            "DeepSeek R1 Distill Qwen 1.5B",
            "DeepSeek-R1-Distill-Qwen",
            "DeepSeek-R1 distils",
        ),
        ("llama", "DeepSeek R1 Distill Llama 8B", "", "DeepSeek-R1 distils"),
        ("qwen3", "Qwen3 4B", "Qwen3", "Qwen3"),
        ("qwen3", "Qwen3 4B Instruct 2507", "Qwen3", "Qwen3 Instruct"),
        ("qwen3", "Qwen3-4B-Thinking-2507", "Qwen3-4B-Thinking-2507", "Qwen3"),
        ("qwen3moe", "Qwen3 Coder 30B A3B Instruct", "Qwen3-Coder", "Qwen3-Coder"),
        ("qwen35", "Qwen3.5 2B", "Qwen3.5", "Qwen3.5"),
        ("llama", "Smollm2 135M 8k Lc100K Mix1 Ep2", "smollm2", "SmolLM2"),
        ("gemma3", "Gemma 3 270m It", "gemma-3", "Gemma 3 and 4"),
        ("lfm2", "LFM2.5 1.2B Instruct", "LFM2.5", "LFM2.5"),
        ("lfm2", "LFM2 1.2B", "LFM2", "LFM2"),
        ("granitehybrid", "Granite 4.0 H Tiny", "granite-4.0-h", "Granite"),
        ("phi3", "Phi 4 Mini Reasoning", "Phi-4", "Phi-4 reasoning"),
        ("phi3", "Phi 4 Mini Instruct", "Phi-4", ""),
        ("llama", "Qwen2.5 7B Instruct", "", ""),
        ("qwen2", "Dolphin3.0 Qwen2.5 0.5B", "Dolphin3.0-Qwen2.5", ""),
        ("qwen2", "qwen2.5" + "x" * 1000, "", ""),
    ],
)
def test_a_family_is_recognised_by_its_names(
    architecture: str, name: str, basename: str, family: str
) -> None:
    assert known_family(architecture, name, basename) == family


@pytest.mark.parametrize("value", [None, 3, ["qwen2.5"], {}, b"qwen2.5", float("nan")])
def test_names_of_another_type_match_no_family(value: Any) -> None:
    metadata = {"general.architecture": value, "general.name": value, "general.basename": value}
    assert advice_of(metadata, ThinkingMode()) == {}


def test_each_value_names_its_source() -> None:
    metadata = {
        "general.architecture": "qwen2",
        "general.name": "Qwen2.5 7B Instruct",
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": -7,
    }
    advice = advice_of(metadata, ThinkingMode())
    assert advice["temperature"] == (0.5, Source.MODEL)
    assert advice["top_k"] == (20, Source.MAKER)


def test_the_table_has_only_existing_architectures_and_values() -> None:
    for family in known_families():
        assert set(family.architectures) <= set(ARCHITECTURES)
        for values in filter(None, (family.sampling, family.thinking)):
            assert set(values) <= {field_.name for field_ in fields(Sampling)}
            Sampling(**values)
            assert all(
                type(value) is type(getattr(Sampling(), name)) for name, value in values.items()
            )
        assert not family.thinks or family.thinking
