"""Puts a scripted engine after ``app.backend.local.engine_access`` for one test."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

from app.backend.local import engine_access
from app.session import model_sampling
from tests.app.fake_engine import Script


class Patch(Protocol):
    """pytest's monkeypatch, or ``builtins`` in a process that ends with its script: importing
    pytest takes 0.3 s."""

    def setattr(self, target: object, name: str, value: object, /) -> None: ...


@dataclass
class ScriptedSampling:
    """Stand-in for ``engine.Sampling`` that has the user's choices."""

    chosen: dict[str, Any]
    logit_bias: tuple[tuple[int, float], ...] = ()


def use_script(monkeypatch: Patch, script: Script) -> Script:
    """Replace every function that would import the engine's compiled half."""

    def make_sampling(chosen: Any, model: Any, mode: Any) -> Any:
        return ScriptedSampling(dict(chosen))

    def replay(session: Any, *arguments: Any) -> Any:
        return session.replay(*arguments)

    monkeypatch.setattr(engine_access, "replay", replay)
    monkeypatch.setattr(engine_access, "open_model", script.open_model)
    monkeypatch.setattr(model_sampling, "make_sampling", make_sampling)
    monkeypatch.setattr(model_sampling, "greedy_sampling", lambda: SimpleNamespace(is_greedy=True))
    monkeypatch.setattr(engine_access, "check_kernels", lambda model: None)
    monkeypatch.setattr(engine_access, "cpu_level", lambda: "avx2")
    monkeypatch.setattr(engine_access, "state_files", lambda settings: None)
    monkeypatch.setattr(engine_access, "try_lookahead", lambda *_, again=False: {})
    monkeypatch.setattr(engine_access, "kernels_version", lambda: "kernels-1")
    return script
