"""The last searches on disk: bounded, and checked when they are read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.machine.tuning.past_runs import MOST_RUNS, PastRun, PastRuns
from tests.app.machine.tuning.made_reports import BUSY, QUIET, report


def run(**changes: Any) -> PastRun:
    return PastRun(report(reasons=("2 threads write fastest.",), **changes), BUSY, 1.79e9)


def test_the_last_search_comes_back_as_it_was(tmp_path: Path) -> None:
    PastRuns(tmp_path / "tunings.json").save("here | model", run())
    runs = PastRuns(tmp_path / "tunings.json")
    assert runs.load("here | model") == run()
    assert runs.load("elsewhere | model") is None


def test_stopped_and_empty_searches_are_not_saved(tmp_path: Path) -> None:
    runs = PastRuns(tmp_path / "tunings.json")
    runs.save("key", run(state="stopped"))
    runs.save("key", replace(run(), report=replace(report(), curves=())))
    assert runs.load("key") is None
    PastRuns(None).save("key", run())


def test_a_busy_search_does_not_replace_a_quiet_one(tmp_path: Path) -> None:
    runs = PastRuns(tmp_path / "tunings.json")
    quiet = replace(run(elapsed_s=11.0), conditions=QUIET)
    runs.save("key", run())
    runs.save("key", quiet)
    runs.save("key", run())
    assert runs.load("key") == quiet


def test_the_oldest_searches_are_dropped(tmp_path: Path) -> None:
    runs = PastRuns(tmp_path / "tunings.json")
    for number in range(MOST_RUNS + 2):
        runs.save(f"model {number}", run())
    assert runs.load("model 1") is None
    assert runs.load("model 2") == run()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("finished_unix_s",), 1e300),
        (("report", "state"), "measuring"),
        (("report", "curves", 0, "phase"), "sleeping"),
        (("report", "curves", 0, "best"), 77),
        (("report", "curves", 0, "points", 0, "n_threads"), 0),
        (("report", "curves", 0, "points", 0, "tps", "median"), 0.0),
        (("report", "curves", 0, "points", 0, "tps", "median"), float("nan")),
        (("report", "curves", 0, "points", 0, "kind"), "robot"),
        (("report", "comparisons", 0, "part"), "else"),
        (("report", "comparisons", 0, "best"), "else"),
        (("report", "curves"), []),
        (("report",), "text"),
    ],
)
def test_a_damaged_search_is_ignored(tmp_path: Path, path: tuple[Any, ...], value: object) -> None:
    file = tmp_path / "tunings.json"
    PastRuns(file).save("key", run())
    content = json.loads(file.read_text())
    part = content["runs"]["key"]
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    file.write_text(json.dumps(content))
    assert PastRuns(file).load("key") is None


def test_texts_from_the_file_are_cleaned(tmp_path: Path) -> None:
    file = tmp_path / "tunings.json"
    PastRuns(file).save("key", run())
    file.write_text(file.read_text().replace("2 threads write fastest.", "\\u001b[2Jbad"))
    past = PastRuns(file).load("key")
    assert past is not None
    assert "\x1b" not in past.report.reasons[0]
