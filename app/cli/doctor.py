"""``jalopy doctor``: find out what slows this machine, and whether a model fits."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.backend.work_thread import start_work_thread
from app.cli.output import ProgressLine
from app.conversations.state_files import saved_bytes
from app.machine.doctor import report
from app.machine.doctor.examine import Examination, examine
from app.machine.doctor.findings import BAD, Finding
from app.machine.doctor.host_system import read_host_system
from app.machine.doctor.readings import (
    Readings,
    StatesReadings,
    read_clock,
    read_cores,
    read_disk,
    read_memory,
    read_terminal,
)
from app.models.library import advice
from app.models.library.encoders import encoder_bytes_of
from app.program import exit_codes
from app.program.refusals import Refusal, exit_code_of
from app.program.settings import Settings
from app.text.json_line import json_line, plain_values

MAX_COLUMNS = 100


def doctor(
    settings: Settings,
    model: str | None = None,
    size: str | None = None,
    quantization: str | None = None,
    as_json: bool = False,
) -> int:
    """Examine the machine and print the findings.

    Args:
        model: file to judge; None for none.
        size: number of parameters to judge instead of a file, e.g. "8B".
        quantization: type of the weights for ``size``; None for the usual one.

    Returns:
        OK, or the exit code of the error if the model cannot be used.

    Raises:
        Refusal: ``size`` or ``quantization`` is invalid.
    """
    if model and size:
        raise Refusal("jalopy doctor: give a model file or --size, not both")
    if quantization is not None and not size:
        raise Refusal("jalopy doctor: --type needs a size (add --size 8B, for example)")
    quantization = quantization or advice.USUAL_TYPE
    needs, error = _needs(settings, model, size, quantization)
    cores = read_cores()  # measures the load of other programs, so Jalopy must not compute yet
    engine = start_work_thread()
    progress = ProgressLine()
    n_ctx = settings.context_size or None
    examination = engine.run(lambda: examine(settings, needs, n_ctx, progress.show_opening))
    progress.clear()
    encoding = getattr(sys.stdout, "encoding", "") or ""
    host = read_host_system(os.environ)
    readings = Readings(
        cores=cores,
        clock=read_clock(),
        memory=read_memory(),
        terminal=read_terminal(
            os.environ, sys.stdout.isatty(), encoding, shutil.get_terminal_size()
        ),
        disk=read_disk(model, host) if model and error is None else None,
        engine=examination.engine,
        states=StatesReadings(saved_bytes(), settings.kv_states_quota_bytes),
        host=host,
        wanted_threads=settings.threads,
    )
    findings = report.all_findings(readings)
    about_model = report.fit_findings(examination, settings.kv_type_or_default)
    if error is not None:
        about_model = [Finding(BAD, "model", str(error))]
    if as_json:
        values = {
            "findings": findings,
            "model": examination.needs,
            "model_findings": about_model,
            "fit": examination.fit,
            "suggestions": list(examination.suggestions),
            "readings": readings,
        }
        print(json_line(plain_values(values)), flush=True)
    else:
        print("\n".join(_lines(findings, examination, about_model)), flush=True)
    if error is None:
        return exit_codes.OK
    return exit_code_of(error) or 1


def _needs(
    settings: Settings, model: str | None, size: str | None, quantization: str
) -> tuple[Any, Exception | None]:
    """Return (memory needs of the model, error that prevents using it); either may be None."""
    kv_type = settings.kv_type_or_default
    if size:
        return advice.needs_of_size(advice.parameters_of(size), quantization.upper(), kv_type), None
    if not model:
        return None, None
    from engine.measure.fit import needs_of_file

    try:
        needs = needs_of_file(model, kv_type)
        encoder_bytes = encoder_bytes_of(Path(model), settings.pictures.mmproj)
        return replace(needs, encoder_bytes=encoder_bytes), None
    except Exception as error:
        if exit_code_of(error) is None:
            raise
        return None, error


def _lines(
    findings: list[Finding], examination: Examination, about_model: list[Finding]
) -> list[str]:
    width = min(MAX_COLUMNS, shutil.get_terminal_size().columns)
    lines = [f"Jalopy doctor: {report.summary([*findings, *about_model])}", ""]
    for finding in findings:
        lines += report.finding_lines(finding, width)
    if about_model:
        needs = examination.needs
        lines += ["", f"Will it fit: {report.fit_title(needs)}" if needs else "The model"]
        for finding in about_model:
            lines += report.finding_lines(finding, width)
    return lines + report.advice_lines(examination)
