"""``jalopy quantize``: text output, JSON output, and refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli.arguments import parse
from app.cli.dispatch import guard, run_command
from app.cli.quantize import QuantizeOptions, quantize
from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.settings import built_in_settings, override
from engine import EngineError, read_gguf
from engine.gguf.write import TensorToWrite, writing
from tests.engine import tiny_gguf

pytestmark = pytest.mark.slow


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_gguf.model("llama", "F16", dim=256, n_layers=2).write(tmp_path / "m.gguf")


SETTINGS = override(built_in_settings(), "threads", 1, "--threads")


def run(model: Path, mix: str = "Q4_K_M", **overrides: Any) -> int:
    return quantize(
        QuantizeOptions(str(model), str(model.with_name("out.gguf")), mix, **overrides), SETTINGS
    )


def test_the_line_has_sizes_time_and_types(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "quantize",
        str(model),
        str(model.with_name("out.gguf")),
        "--type",
        "q4_k_m",
        "--threads",
        "1",
    ]
    assert guard(lambda: run_command(parse(arguments))) == exit_codes.OK
    out, err = capsys.readouterr()
    assert "(was " in out
    assert ", mean error 0.0" in out
    assert " Q4_K, " in out
    assert err == ""


def test_json_is_one_object(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, "Q8_0", as_json=True) == exit_codes.OK
    report = json.loads(capsys.readouterr().out)
    assert report["type"] == "Q8_0"
    assert 0 < report["rmse"] < 0.01
    assert report["bytes"] < report["source_bytes"]
    assert report["types"].keys() == {"F32", "Q8_0"}
    assert read_gguf(model.with_name("out.gguf")).metadata["general.file_type"] == 7


def test_a_quantized_source_is_reported_once(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(model, "Q4_0")
    model.with_name("out.gguf").rename(model)
    run(model, "Q3_K_M")
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "jalopy quantize: the source is already quantized "
        "(Q4_0); an F16, BF16 or Q8_0 source gives a better file"
    )


def write_importance(model: Path, *names: str, n_columns: int = 256) -> str:
    """Write an importance matrix next to a model, and return its path."""
    path = model.with_name("i.gguf")
    costs = np.random.default_rng(1).gamma(0.5, 1, (1, n_columns)).astype(np.float32)
    table = []
    for name in names:
        table += [
            TensorToWrite(f"{name}.in_sum2", (1, n_columns), "F32"),
            TensorToWrite(f"{name}.counts", (1, 1), "F32"),
        ]
    with writing(path, {"general.type": "imatrix"}, table) as out:
        for _ in names:
            out.write(costs)
            out.write(np.ones(1, np.float32))
    return str(path)


def test_importance_is_used_and_named_in_the_file(model: Path) -> None:
    write_importance(model, "blk.0.ffn_up.weight")
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


def test_an_existing_file_is_replaced_only_with_force(model: Path) -> None:
    out = model.with_name("out.gguf")
    out.write_bytes(b"mine")
    with pytest.raises(Refusal, match=r"out\.gguf: already exists \(--force replaces it\)"):
        run(model)
    assert out.read_bytes() == b"mine"
    run(model, force=True)
    assert out.read_bytes()[:4] == b"GGUF"


def test_invalid_keep_options_and_types_are_refused(model: Path) -> None:
    for pair in ("output.weight", "=Q8_0", "output.weight=Q9", "output.weight=IQ1_S"):
        with pytest.raises(Refusal, match=r"must be TENSOR=TYPE \(types: F32, F16"):
            run(model, keep=[pair])
    with pytest.raises(Refusal, match=r"unknown type: Q4_K_X \(types: F32, .*Q4_K_M"):
        run(model, "Q4_K_X")


def test_importance_of_another_model_is_refused(model: Path) -> None:
    importance = write_importance(
        model, "blk.0.ffn_up.weight", "blk.0.mixer.weight", "blk.1.mixer.weight"
    )
    with pytest.raises(
        EngineError,
        match=r"^i\.gguf: 2 of its 3 matrices are not in m\.gguf \(it is of another model",
    ):
        run(model, imatrix=importance)
    importance = write_importance(model, "blk.0.ffn_up.weight", n_columns=128)
    with pytest.raises(
        EngineError, match=r"^i\.gguf: has 128 numbers for blk\.0\.ffn_up\.weight, which has 256 c"
    ):
        run(model, imatrix=importance)
    assert not model.with_name("out.gguf").exists()


def test_partial_importance_is_reported(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_importance(
        model, "blk.0.ffn_up.weight", "blk.1.ffn_up.weight", "blk.2.ffn_up.weight"
    )
    run(model, imatrix=path)
    covers, foreign = capsys.readouterr().err.splitlines()
    assert (
        covers == "jalopy quantize: i.gguf covers 2 of 13 tensors; blk.0.attn_k.weight is missing"
    )
    assert (
        foreign
        == "jalopy quantize: i.gguf: 1 of its 3 matrices are not in m.gguf (is it from another model?)"
    )
    assert read_gguf(model.with_name("out.gguf")).metadata["quantize.imatrix.entries_count"] == 2


def test_unused_importance_is_reported_and_not_written(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(model, "Q8_0", imatrix=write_importance(model, "blk.0.ffn_up.weight"))
    line = "jalopy quantize: i.gguf has no effect: no tensor gets a type that uses it"
    assert capsys.readouterr().err.splitlines() == [line]
    assert "quantize.imatrix.file" not in read_gguf(model.with_name("out.gguf")).metadata


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        ("blk.9.*=Q8_0", "m.gguf has no such tensor (jalopy inspect --tensors lists the names)"),
        ("output_norm.weight=F16", "output_norm.weight stays F32"),
    ],
)
def test_a_keep_option_without_effect_is_reported(
    pair: str, reason: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(model, keep=["blk.0.ffn_up.weight=Q8_0", pair])
    assert capsys.readouterr().err.splitlines() == [
        f"jalopy quantize: --keep {pair} has no effect: {reason}"
    ]


def test_unchanged_types_are_reported(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(model, "F16")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("jalopy quantize: no tensor of m.gguf changes its type")


def other_names(path: Path) -> list[Path]:
    """Names of the same file: its own, a link, a hard link, and a longer path."""
    link = path.with_name("link.gguf")
    twin = path.with_name("twin.gguf")
    link.symlink_to(path)
    twin.hardlink_to(path)
    return [path, link, twin, path.parent / "x" / ".." / path.name]


@pytest.mark.parametrize("force", [True, False])
def test_the_model_is_never_the_output(force: bool, model: Path) -> None:
    old_bytes = model.read_bytes()
    (model.parent / "x").mkdir()
    for name in other_names(model):
        with pytest.raises(Refusal, match="is an input file and would be lost"):
            quantize(QuantizeOptions(str(model), str(name), "Q4_K_M", force=force), SETTINGS)
        assert name.read_bytes() == old_bytes


def test_importance_and_parts_are_never_the_output(tmp_path: Path) -> None:
    part_paths = tiny_gguf.write_parts(tmp_path, "m", 3, dim=256, n_layers=2)
    imatrix = write_importance(part_paths[0], "blk.0.ffn_up.weight")
    for name in (*map(str, part_paths), imatrix):
        with pytest.raises(Refusal, match="is an input file"):
            quantize(
                QuantizeOptions(str(part_paths[0]), name, "Q4_K_M", imatrix=imatrix, force=True),
                SETTINGS,
            )


def test_an_impossible_output_is_refused_first(model: Path) -> None:
    (model.parent / "folder.gguf").mkdir()
    for name, reason in (
        ("folder.gguf", "is not a regular file"),
        ("none/out.gguf", "its folder does not exist"),
    ):
        with pytest.raises(Refusal, match=reason):
            quantize(
                QuantizeOptions(str(model), str(model.parent / name), "Q4_K_M", force=True),
                SETTINGS,
            )
