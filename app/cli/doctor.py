"""``jalopy doctor``: the machine, the terminal and a model, each with what it means for speed. No Textual."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import Any

from app.chat.engine_thread import EngineThread
from app.cli.progress_line import ProgressLine
from app.doctor import report
from app.doctor.examine import Examination, examine
from app.doctor.findings import BAD, Finding
from app.doctor.read_machine import read_clock, read_cores, read_disk, read_memory, read_standard_output
from app.doctor.readings import Readings
from app.library import advice
from app.program import exit_codes
from app.program.refusals import Refusal, exit_code_of
from app.program.settings import Settings
from app.text.json_line import json_line, plain_values
from app.text.record import record

MOST_COLUMNS = 100
_USUAL_TYPE = "Q4_K_M"


@record
class DoctorOptions:
    """Arguments of ``doctor``, besides settings."""

    model: str | None = None
    size: str | None = None
    quantization: str | None = None
    """Of that size; None for the usual one."""
    as_json: bool = False


@record
class Diagnosis:
    """Everything that is printed."""

    readings: Readings
    findings: Sequence[Finding]
    examination: Examination
    model_findings: Sequence[Finding]
    exit_code: int


def doctor(options: DoctorOptions, settings: Settings) -> int:
    """Examine, print, and return OK, or the code of the error where the model named cannot be used.

    Raises:
        Refusal: ``--size`` or ``--type`` mean nothing.
    """
    diagnosis = diagnose(options, settings)
    if options.as_json:
        print(json_line(_values(diagnosis)), flush=True)
    else:
        width = min(MOST_COLUMNS, shutil.get_terminal_size().columns)
        print("\n".join(_lines(diagnosis, width)), flush=True)
    return diagnosis.exit_code


def diagnose(options: DoctorOptions, settings: Settings) -> Diagnosis:
    """Read, measure and conclude."""
    if options.model and options.size:
        raise Refusal("jalopy doctor: name a model file or --size, not both")
    if options.quantization is not None and not options.size:
        raise Refusal("jalopy doctor: --type is the type of a --size (name that too: --size 8B)")
    needs, refused = _needs(options, settings)
    cores = read_cores()  # before anything of ours computes: it watches the load
    engine, progress = EngineThread(), ProgressLine()
    examination = engine.run(
        lambda: examine(
            settings.threads, settings.prefill_threads, needs, settings.context_size or None, progress.show_opening
        )
    )
    progress.clear()
    readings = Readings(
        cores=cores,
        clock=read_clock(),
        memory=read_memory(),
        terminal=read_standard_output(os.environ),
        disk=read_disk(options.model) if options.model and refused is None else None,
        engine=examination.engine,
        wanted_threads=settings.threads,
    )
    if refused is not None:
        found = [Finding(BAD, "model", str(refused))]
        return Diagnosis(readings, report.all_findings(readings), examination, found, exit_code_of(refused) or 1)
    model_findings = []
    if needs is not None and examination.fit is not None:
        model_findings = report.fit_findings(examination, settings.kv_type_or_default)
    return Diagnosis(readings, report.all_findings(readings), examination, model_findings, exit_codes.OK)


def _needs(options: DoctorOptions, settings: Settings) -> tuple[Any, Exception | None]:
    """Return what the model needs, or what is wrong with it."""
    if options.size:
        parameters = advice.parameters_of(options.size)
        quantization = _USUAL_TYPE if options.quantization is None else options.quantization.upper()
        return advice.needs_of_size(parameters, quantization, settings.kv_type_or_default), None
    if not options.model:
        return None, None
    from engine.measure.fit import needs_of_file

    try:
        return needs_of_file(options.model, settings.kv_type_or_default), None
    except Exception as error:
        if exit_code_of(error) is None:
            raise
        return None, error


def _lines(diagnosis: Diagnosis, width: int) -> list[str]:
    lines = [f"Jalopy doctor: {report.summary([*diagnosis.findings, *diagnosis.model_findings])}", ""]
    for finding in diagnosis.findings:
        lines += report.finding_lines(finding, width)
    if diagnosis.model_findings:
        needs = diagnosis.examination.needs
        lines += ["", f"Will it fit: {report.fit_title(needs)}" if needs else "The model"]
        for finding in diagnosis.model_findings:
            lines += report.finding_lines(finding, width)
    return lines + report.advice_lines(diagnosis.examination)


def _values(diagnosis: Diagnosis) -> dict[str, Any]:
    examination = diagnosis.examination
    return {
        "findings": plain_values(list(diagnosis.findings)),
        "model": plain_values(examination.needs),
        "model_findings": plain_values(list(diagnosis.model_findings)),
        "fit": plain_values(examination.fit),
        "suggestions": plain_values(list(examination.suggestions)),
        "readings": plain_values(diagnosis.readings),
    }
