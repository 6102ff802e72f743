"""The comparison: both sides do the same job, what they say is checked, and a missing peer is one
line."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.cli.compare import command, peer_side
from app.cli.compare.command import (
    JALOPY,
    CompareOptions,
    compare,
    first_difference,
    make_job,
    run_engine,
)
from app.program import exit_codes
from app.program.refusals import Refusal
from tests.engine import tiny_gguf

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
Compare = Callable[..., str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_gguf.write(tmp_path_factory.mktemp("compare") / "m.gguf"))


@pytest.fixture(scope="module")
def job(model: str) -> dict[str, Any]:
    return make_job(CompareOptions(model, threads=1, n_prompt=8, n_gen=4))


def answer(
    decode: list[float], prefill: list[float], greedy: list[int], **overrides: Any
) -> dict[str, Any]:
    rates = {"decode_tps": decode, "prefill_tps": prefill, "greedy": greedy}
    return {
        **rates,
        "engine": "llama.cpp",
        "version": "1.2.3",
        "level": "AVX2",
        "peak_bytes": 7_000_000,
        **overrides,
    }


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Answers of the engines by Python; "asked" has the Pythons in the order of their calls."""
    jalopy = answer(
        [30.0, 34.0], [100.0, 110.0], [1, 2, 3], margins=[2.0, 1.0, 0.01], version={"jalopy": "9.9"}
    )
    peer_answer = answer([20.0, 20.0], [50.0, 50.0], [1, 2, 4])
    result: dict[str, Any] = {
        "asked": [],
        JALOPY: jalopy,
        "b": peer_answer | {"engine": "ik_llama.cpp"},
    }

    def scripted(python: str, job: Any) -> Any:
        result["asked"].append(python)
        return result.get(python, peer_answer)

    monkeypatch.setattr(command, "run_engine", scripted)
    return result


@pytest.fixture
def compared(model: str, sides: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> Compare:
    def run(**overrides: Any) -> str:
        compare(
            CompareOptions(
                model, n_prompt=8, n_gen=4, **{"rounds": 1, "peer_python": ["a"], **overrides}
            )
        )
        return capsys.readouterr().out

    return run


def test_each_round_runs_every_engine_once_in_random_order(
    compared: Compare, sides: dict[str, Any]
) -> None:
    out = compared(rounds=20, peer_python=["a", "b", "a"])
    rounds = [tuple(sides["asked"][start : start + 3]) for start in range(0, 60, 3)]
    assert {frozenset(engines) for engines in rounds} == {frozenset({JALOPY, "a", "b"})}
    assert len(set(rounds)) > 1
    assert [line.split()[0] for line in out.splitlines()[3:6]] == [
        "jalopy",
        "llama.cpp",
        "ik_llama.cpp",
    ]


def test_without_a_path_this_python_runs_the_peer(compared: Compare, sides: dict[str, Any]) -> None:
    compared(peer_python=())
    assert sorted(sides["asked"]) == sorted([sys.executable, JALOPY])


def test_the_text_has_medians_ratios_and_the_first_difference(compared: Compare) -> None:
    out = compared(threads=2)
    for words in (
        "32.0 (30.0-34.0)", "1.60x", "2.10x", "the first 2 of 3 tokens are the same as llama.cpp", "near tie",
        "2 threads",
        "llama.cpp 1.2.3: AVX2", "peak memory: jalopy 7 MB, llama.cpp 7 MB",
    ):  # fmt: skip
        assert words in out


@pytest.mark.parametrize(
    ("system", "level"),
    [
        (
            (
                "CPU : AVX = 1 | AVX2 = 1 | AVX512 = 1 | AVX512_VNNI = 1 | AMX_INT8 = 1 | "
                "REPACK = 1 | "
            ),
            "amx",
        ),
        (
            (
                "CPU : SSE3 = 1 | SSSE3 = 1 | AVX = 1 | AVX2 = 1 | AVX512 = 1 | AVX512_VNNI = 1 | "
                "REPACK = 1 | "
            ),
            "vnni",
        ),
        ("CPU : SSE3 = 1 | SSSE3 = 1 | AVX = 1 | AVX_VNNI = 1 | AVX2 = 1 | ", "vnni"),
        ("CPU : SSSE3 = 1 | AVX = 1 | AVX2 = 1 | AVX512 = 1 | ", "avx512"),
        ("CPU : SSSE3 = 1 | AVX = 1 | AVX2 = 1 | AVX512 = 0 | AVX512_VNNI = 0 | ", "avx2"),
        ("CPU : SSSE3 = 1 | AVX = 1 | AVX2 = 0 | ", "ssse3"),
        ("CPU : NEON = 1 | ", "generic"),
    ],
)
def test_the_cpu_level_of_llama_cpp_is_read_from_its_line(system: str, level: str) -> None:
    assert command.peer_level(system) == level


def test_different_cpu_levels_are_reported(compared: Compare, sides: dict[str, Any]) -> None:
    sides["a"] = answer(
        [20.0], [50.0], [1, 2, 3], level="CPU : AVX2 = 1 | AVX512 = 1 | AVX512_VNNI = 1 | "
    )
    sides[JALOPY]["level"] = "avx2"
    assert compared().splitlines()[-1] == "different CPU instructions: jalopy avx2, llama.cpp vnni"


def test_json_has_every_figure_on_one_line(compared: Compare) -> None:
    result = json.loads(compared(rounds=2, as_json=True))
    assert result["jalopy"]["decode_tps"] == [30.0, 30.0, 34.0, 34.0]
    (peer,) = result["peers"]
    assert peer["ratio"] == {"decode_tps": pytest.approx(1.6), "prefill_tps": pytest.approx(2.1)}
    assert (peer["engine"], peer["greedy_parts_at"], peer["greedy_margin"]) == (
        "llama.cpp",
        2,
        0.01,
    )


def test_the_first_different_token_is_found_and_explained() -> None:
    for peer_answer, words in (([1, 2, 3], None), ([9, 2, 3], 0), ([1, 2, 9], 2)):
        assert first_difference([1, 2, 3], peer_answer) == words
    result = {"engine": "llama.cpp", "greedy_tokens": 3, "greedy_parts_at": 1, "greedy_margin": 0.8}
    assert "computes wrongly" in command._greedy_line(result, 3)


def test_an_engine_that_reports_no_tokens_does_not_agree(
    compared: Compare, sides: dict[str, Any]
) -> None:
    sides["a"] = answer([20.0], [50.0], [], engine="mistral.rs", level="")
    out = compared()
    assert "mistral.rs does not report its tokens" in out
    assert "the same" not in out


def test_the_job_is_reproducible_and_within_the_vocabulary(model: str) -> None:
    options = CompareOptions(model, n_prompt=40, n_gen=8)
    job = make_job(options)
    assert job == make_job(options)
    assert (len(job["prompt"]), len(job["following"])) == (40, 8)
    assert all(
        0 <= token < 300 for token in (*job["prompt"], *job["following"], *job["greedy_prompt"])
    )
    assert job["n_ctx"] >= 48
    with pytest.raises(Refusal, match="holds 128 tokens"):
        make_job(CompareOptions(model, n_prompt=120, n_gen=9))


# ---- the processes


def test_a_python_without_a_peer_is_refused_in_one_line(
    job: dict[str, Any], tmp_path: Path
) -> None:
    lonely = tmp_path / "python"
    lonely.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    lonely.chmod(0o755)
    with pytest.raises(Refusal, match="has no engine to compare with") as refused:
        run_engine(str(lonely), job)
    assert refused.value.exit_code == exit_codes.UNSUPPORTED
    assert "\n" not in str(refused.value)
    with pytest.raises(Refusal, match="/no/python"):
        run_engine("/no/python", job)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import sys; sys.exit(4)", "update it"),
        ("print('not json')", "an unknown result"),
        ("print('[1]')", "an unknown result"),
        ("print(a.replace('engine', 'motor'))", "an unknown result"),
        ("print(a.replace('[5.0]', '[]'))", "an unknown result"),
        ("print(a.replace('5.0', '0'))", "an unknown result"),
        ("print(a.replace('5.0', '\"fast\"'))", "an unknown result"),
        ("1/0", "ZeroDivision"),
        ("print('warming up'); print(a)", ""),
    ],
)
def test_an_invalid_answer_of_a_peer_is_refused_in_one_line(
    job: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, says: str
) -> None:
    measurement = answer([5.0], [5.0], [1])
    script = tmp_path / "peer.py"
    script.write_text(f"a = {json.dumps(measurement)!r}\n{program}")
    monkeypatch.setattr(peer_side, "__file__", str(script))
    if not says:
        assert run_engine(sys.executable, job) == measurement
        return
    with pytest.raises(Refusal, match=says):
        run_engine(sys.executable, job)


def test_a_model_that_jalopy_refuses_ends_with_line_and_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A package in the current directory must not replace Jalopy's."""
    (tmp_path / "app").mkdir()
    for name in ("app/__init__.py", "json.py"):
        (tmp_path / name).write_text("raise SystemExit('foreign code ran')")
    broken = tmp_path / "bad.gguf"
    broken.write_bytes(b"<html>")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refusal, match=r"bad\.gguf") as refused:
        run_engine(JALOPY, {"model": str(broken), "threads": 1, "n_ctx": 64})
    assert refused.value.exit_code == exit_codes.BAD_DATA


def test_jalopys_side_runs_the_job_with_the_real_engine(job: dict[str, Any]) -> None:
    job = job | {"n_greedy": 5}
    result = command.measure(job)
    assert len(result["decode_tps"]) == len(result["prefill_tps"]) == job["repeats"]
    assert len(result["greedy"]) == len(result["margins"]) == 5
    assert min(result["margins"]) >= 0
    assert result["greedy"] == command.measure(job)["greedy"]


# ---- the peers' half


def test_the_peers_side_imports_nothing_from_jalopy() -> None:
    begin = "import sys; sys.path.insert(0, 'app/cli/compare'); import peer_side"
    code = f"{begin}; print({{'app', 'numpy'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


class FakePeer:
    """Engine whose likeliest token is the number of tokens that it was fed."""

    def __init__(self) -> None:
        self.length = 0
        self.fed = []

    def clear(self) -> None:
        self.length = 0

    def feed(self, tokens: list[int], start: int) -> None:
        assert start == self.length
        self.length += len(tokens)
        self.fed.append(len(tokens))

    def likeliest(self) -> int:
        return self.length


def test_the_prompt_is_one_block_and_decoding_token_by_token() -> None:
    peer = FakePeer()
    job = {"prompt": [1, 2, 3], "following": [4, 5], "repeats": 2}
    read_tps, write_tps = peer_side.measure(peer, job)  # type: ignore[arg-type]
    assert peer.fed == [3, 1, 1] * 3
    assert len(read_tps) == len(write_tps) == 2
    assert peer_side.greedy(peer, [7, 8], 3) == [2, 3, 4]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["llama_cpp", "ik_llama_cpp"])
def test_an_old_package_is_recognised_by_missing_functions(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    old = SimpleNamespace(__name__=name, __version__="0.1.0", llama_log_callback=lambda f: f)
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    monkeypatch.setitem(sys.modules, name, old)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(read=lambda: json.dumps({"model": "m"})))
    assert peer_side.main() == peer_side.TOO_OLD
    assert f"{name} 0.1.0" in capsys.readouterr().err


def test_the_faster_of_two_layouts_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {False: ([10.0, 11.0], [9.0, 9.0]), True: ([20.0, 20.0], [8.0, 30.0])}
    closed: list[bool] = []

    class Scripted:
        def __init__(self, library: Any, job: Any, is_repacked: bool) -> None:
            self.is_repacked = is_repacked

        def close(self) -> None:
            closed.append(self.is_repacked)

    def done(peer: Scripted, job: Any) -> dict[str, Any]:
        prefill, decode = rates[peer.is_repacked]
        return {"prefill_tps": prefill, "decode_tps": decode, "greedy": [int(peer.is_repacked)]}

    monkeypatch.setattr(peer_side, "Peer", Scripted)
    monkeypatch.setattr(peer_side, "run_job", done)
    library = SimpleNamespace(_lib=SimpleNamespace(llama_print_system_info=SystemInfo()))
    result = peer_side.run_ik_llama_cpp(SimpleNamespace(_ctypes_api=library), {})
    assert (result["prefill_tps"], result["decode_tps"]) == ([20.0, 20.0], [8.0, 30.0])
    assert (result["greedy"], result["level"], closed) == ([0], "AVX2 = 1 |", [False, True])


class SystemInfo:
    """C function of a library."""

    restype: Any = None

    def __call__(self) -> bytes:
        return b" AVX2 = 1 | "


# ---- engines that write whole replies


class WholeReplies:
    """A package whose pipeline or runner notes what it is asked, and tells its speed: slow the
    first time."""

    __name__ = "openvino_genai"
    __version__ = "1.2"

    def __init__(self) -> None:
        self.asked: list[tuple[Any, int]] = []
        self.Which = SimpleNamespace(GGUF=lambda folder, name: Path(folder, name))
        self.Tensor = lambda ids: ids.tolist()

    def LLMPipeline(self, path: str, device: str, **options: int) -> Any:
        assert (path, device, options) == ("/models/m.gguf", "CPU", {"INFERENCE_NUM_THREADS": 2})
        return SimpleNamespace(generate=self._generate)

    def GenerationConfig(self, max_new_tokens: int, ignore_eos: bool, do_sample: bool) -> int:
        assert (ignore_eos, do_sample) == (True, False)
        return max_new_tokens

    def _generate(self, prompts: list[list[int]], n: int) -> Any:
        (prompt,) = prompts
        self.asked.append((prompt, n))
        ttft, tpot = (
            SimpleNamespace(mean=ms * (9 if len(self.asked) == 1 else 1)) for ms in (500.0, 100.0)
        )
        figures = SimpleNamespace(get_ttft=lambda: ttft, get_tpot=lambda: tpot)
        return SimpleNamespace(tokens=[[7] * n], perf_metrics=figures)

    def core(self) -> Any:
        return SimpleNamespace(get_property=lambda device, name: ["FP32", "INT8"])

    def Runner(self, which: Path, max_seqs: int, prefix_cache_n: int) -> Any:
        assert (str(which), max_seqs, prefix_cache_n) == ("/models/m.gguf", 1, 0)
        return SimpleNamespace(send_completion_request=self._complete)

    def CompletionRequest(
        self, text: str, model: str, max_tokens: int, temperature: float
    ) -> tuple[str, int]:
        return text, max_tokens

    def _complete(self, request: tuple[str, int]) -> Any:
        self.asked.append(request)
        slow = 9 if len(self.asked) == 1 else 1
        return SimpleNamespace(
            usage=SimpleNamespace(
                avg_prompt_tok_per_sec=12.0 / slow, avg_compl_tok_per_sec=10.0 / slow
            )
        )


WHOLE_JOB = {
    "model": "/models/m.gguf", "threads": 2, "prompt": [1, 2, 3, 4, 5, 6], "following": [8, 9],
    "repeats": 2,
    "prompt_text": "some words", "greedy_prompt": [5], "n_greedy": 3,
}  # fmt: skip


def test_openvino_reads_other_prompts_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    package = WholeReplies()
    openvino = SimpleNamespace(Tensor=package.Tensor, Core=package.core)
    monkeypatch.setitem(sys.modules, "openvino", openvino)
    result = peer_side.run_openvino(package, WHOLE_JOB)
    assert result == {
        "prefill_tps": [12.0] * 2,
        "decode_tps": [10.0] * 2,
        "greedy": [7] * 3,
        "level": "FP32 INT8",
    }
    *measured, last = package.asked
    assert [len(prompt) for prompt, n in measured] == [6, 6, 6]
    assert len({prompt[0] for prompt, n in measured}) == 3
    assert {n for prompt, n in measured} == {3}
    assert last == ([5], 3)


def test_mistral_rs_gets_texts_and_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    package = WholeReplies()
    monkeypatch.setattr(peer_side.os, "environ", environment := {})
    result = peer_side.run_mistral_rs(package, WHOLE_JOB)
    assert result == {
        "prefill_tps": [12.0] * 2,
        "decode_tps": [10.0] * 2,
        "greedy": [],
        "level": "instructions not reported",
    }
    assert package.asked == [("some words", 3), ("ome words", 3), ("me words", 3)]
    assert environment == {"RAYON_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize("error", [RuntimeError("no\nsuch type"), ValueError("no such type")])
def test_a_file_that_an_engine_refuses_is_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    for name in ("llama_cpp", "ik_llama_cpp"):
        monkeypatch.setitem(sys.modules, name, None)
    package = WholeReplies()
    monkeypatch.setattr(package, "LLMPipeline", refuse)
    monkeypatch.setitem(sys.modules, "openvino_genai", package)
    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(read=lambda: json.dumps(WHOLE_JOB)))
    assert peer_side.main() == peer_side.REFUSED
    assert capsys.readouterr().err == "no such type"
