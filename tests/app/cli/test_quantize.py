"""``jalopy quantize``: a line for people, one object for scripts, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli.arguments import parse
from app.cli.dispatch import guard, obey
from app.cli.quantize import QuantizeOptions, quantize
from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.settings import built_in_settings, override
from engine import read_gguf
from engine.gguf.write import TensorToWrite, writing
from tests.engine import tiny_gguf

pytestmark = pytest.mark.slow


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_gguf.model("llama", "F16", dim=256, n_layers=2).write(tmp_path / "m.gguf")


SETTINGS = override(built_in_settings(), "threads", 1, "--threads")


def run(model: Path, mix: str = "Q4_K_M", **more: Any) -> int:
    return quantize(QuantizeOptions(str(model), str(model.with_name("out.gguf")), mix, **more), SETTINGS)


def test_a_line_says_what_became_of_it(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["quantize", str(model), str(model.with_name("out.gguf")), "--type", "q4_k_m", "--threads", "1"]
    assert guard(lambda: obey(parse(arguments))) == exit_codes.OK
    out, err = capsys.readouterr()
    assert " became " in out
    assert ", mean error 0.0" in out
    assert " Q4_K, " in out
    assert err == ""


def test_scripts_get_one_object(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, "Q8_0", as_json=True) == exit_codes.OK
    told = json.loads(capsys.readouterr().out)
    assert told["type"] == "Q8_0"
    assert 0 < told["rmse"] < 0.01
    assert told["bytes"] < told["source_bytes"]
    assert told["types"].keys() == {"F32", "Q8_0"}
    assert read_gguf(model.with_name("out.gguf")).metadata["general.file_type"] == 7


def test_a_low_source_is_noted_once(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(model, "Q4_0")
    model.with_name("out.gguf").rename(model)
    run(model, "Q3_K_M")
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "jalopy: the source is quantized already (Q4_0): one made of F16, BF16 or Q8_0 would be better"


def test_importance_is_used_and_named_in_the_file(model: Path) -> None:
    costs = np.random.default_rng(1).gamma(0.5, 1, (1, 256)).astype(np.float32)
    names = ["blk.0.ffn_up.weight.in_sum2", "blk.0.ffn_up.weight.counts"]
    table = [TensorToWrite(names[0], (1, 256), "F32"), TensorToWrite(names[1], (1, 1), "F32")]
    with writing(model.with_name("i.gguf"), {"general.type": "imatrix"}, table) as out:
        out.write(costs)
        out.write(np.ones(1, np.float32))
    run(model)
    plain = model.with_name("out.gguf").read_bytes()
    run(model, force=True, imatrix=str(model.with_name("i.gguf")))
    assert model.with_name("out.gguf").read_bytes()[-len(plain) // 2 :] != plain[-len(plain) // 2 :]
    metadata = read_gguf(model.with_name("out.gguf")).metadata
    assert metadata["quantize.imatrix.file"] == "i.gguf"
    assert metadata["quantize.imatrix.entries_count"] == 1


def test_named_tensors_get_their_type(model: Path) -> None:
    run(model, keep=["blk.*.ffn_up.weight=q8_0"])
    gguf = read_gguf(model.with_name("out.gguf"))
    assert {gguf.tensors[f"blk.{k}.ffn_up.weight"].type_name for k in range(2)} == {"Q8_0"}
    assert gguf.tensors["blk.1.ffn_gate.weight"].type_name == "Q4_K"


def test_a_file_that_is_there_stays_without_force(model: Path) -> None:
    place = model.with_name("out.gguf")
    place.write_bytes(b"mine")
    with pytest.raises(Refusal, match=r"out\.gguf: is there already \(--force replaces it\)"):
        run(model)
    assert place.read_bytes() == b"mine"
    run(model, force=True)
    assert place.read_bytes()[:4] == b"GGUF"


def test_what_keeps_nothing_and_an_unknown_type_are_refused(model: Path) -> None:
    for pair in ("output.weight", "=Q8_0", "output.weight=Q9", "output.weight=IQ1_S"):
        with pytest.raises(Refusal, match="must be TENSOR=TYPE, of F32, F16"):
            run(model, keep=[pair])
    with pytest.raises(Refusal, match=r"Q4_K_X: no type \(choose one of F32, .*Q4_K_M"):
        run(model, "Q4_K_X")
