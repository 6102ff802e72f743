"""Findings from written readings of machines; every problem has a remedy."""

from dataclasses import replace
from typing import Any

import pytest

from app.machine.doctor import report
from app.machine.doctor.findings import BAD, OK, WEAK, Finding
from app.machine.doctor.host_system import HostKind, HostSystem
from app.machine.doctor.readings import (
    ClockReadings,
    CoreReadings,
    DiskReadings,
    MemoryReadings,
    Readings,
    StatesReadings,
    TerminalReadings,
)
from app.models.library.measure import EngineReadings

GIB = 1 << 30

GOOD = Readings(
    cores=CoreReadings("Intel i5-4300U", 2, 4, 4, 2, None, frozenset({"avx2", "fma"}), 0.0),
    clock=ClockReadings("performance", "acpi-cpufreq", "", 2900.0, 2900.0, True, 0, False),
    memory=MemoryReadings(8 * GIB, 6 * GIB, 2 * GIB, 0, "madvise"),
    terminal=TerminalReadings(
        True, "xterm-256color", 80, 24, "utf-8", 1 << 24, "desktop", "xclip", "x11", ""
    ),
    disk=DiskReadings("ssd", "sda", 5_000_000_000, "ext4"),
    engine=EngineReadings("avx2", 2, 17.0, 60.0, "/c/kernels-1", 9_000_000),
    states=StatesReadings(761 << 20, 4 * GIB),
)


def with_changes(field: str, **changes: Any) -> Readings:
    return replace(GOOD, **{field: replace(getattr(GOOD, field), **changes)})


def by_topic(readings: Readings) -> dict[str, Finding]:
    findings = report.all_findings(readings)
    topics = [finding.topic for finding in findings]
    assert len(set(topics)) == len(topics)
    return {finding.topic: finding for finding in findings}


def test_a_good_machine_has_no_findings() -> None:
    findings = report.all_findings(GOOD)
    assert {finding.mark for finding in findings} == {OK}
    assert [
        finding.mend for finding in findings if finding.mend and finding.topic != "clipboard"
    ] == []
    assert len(findings) > 12


def test_the_disk_of_saved_states_is_told() -> None:
    finding = by_topic(GOOD)["saved states"]
    assert (finding.mark, finding.found) == (OK, "761M of at most 4.0G")
    assert by_topic(with_changes("states", quota_bytes=0))["saved states"].found == "761M"
    assert "saved states" not in by_topic(with_changes("states", n_bytes=0))


@pytest.mark.parametrize(("level", "name"), [("dotprod", "dotprod"), ("neon", "NEON")])
def test_arm64_is_named_without_a_claim_of_speed(level: str, name: str) -> None:
    finding = by_topic(replace(GOOD, engine=replace(GOOD.engine, level=level)))["processor"]
    assert finding.mark == OK
    assert name in finding.found
    assert "not known" in finding.meaning


def test_code_of_a_lower_level_is_not_called_the_fastest() -> None:
    engine = replace(GOOD.engine, awaits_faster_code=True)
    finding = by_topic(replace(GOOD, engine=engine))["processor"]
    assert finding.mark == OK
    assert "fastest" not in finding.found
    assert "for the next start" in finding.meaning
    engine = replace(GOOD.engine, is_built_here=True)
    finding = by_topic(replace(GOOD, engine=engine))["processor"]
    assert "fastest" in finding.found
    assert finding.meaning == "its code was built here"


@pytest.mark.parametrize(
    ("field", "changes", "topic", "mark", "mend"),
    [
        (
            "engine",
            {"level": "ssse3", "features_named": True},
            "processor",
            WEAK,
            "unset NUMBA_CPU_NAME",
        ),
        ("engine", {"level": "ssse3"}, "processor", WEAK, "update numba"),
        ("engine", {"error": "ImportError: numba"}, "engine", BAD, "make run"),
        ("cores", {"allowed": 2}, "cores", WEAK, "taskset"),
        ("cores", {"quota": 1}, "cores", WEAK, "--cpus"),
        ("cores", {"others_busy": 0.9}, "load", WEAK, "top"),
        ("memory", {"available_bytes": GIB // 2}, "memory", BAD, "close other programs"),
        ("memory", {"available_bytes": 2 * GIB}, "memory", WEAK, "close other programs"),
        ("memory", {"swap_used_bytes": GIB}, "swap", WEAK, "close other programs"),
        ("memory", {"swap_bytes": 0}, "swap", WEAK, "zram"),
        ("memory", {"huge_pages": "never"}, "huge pages", WEAK, "transparent_hugepage/enabled"),
        ("engine", {"read_gbps": 9.0}, "bandwidth", WEAK, "dmidecode"),
        ("disk", {"kind": "spinning"}, "model's disk", WEAK, "SSD"),
        ("disk", {"kind": "network"}, "model's disk", WEAK, "local disk"),
        (
            "clock",
            {"governor": "powersave"},
            "governor",
            BAD,
            "cpupower frequency-set -g performance",
        ),
        (
            "clock",
            {"governor": "powersave", "driver": "intel_pstate", "preference": "balance_power"},
            "governor",
            WEAK,
            "cpupower frequency-set -g performance",
        ),
        ("clock", {"governor": "conservative"}, "governor", WEAK, "cpupower"),
        ("clock", {"limit_mhz": 1200.0}, "clock", WEAK, "-u 2.9GHz"),
        ("clock", {"turbo": False}, "turbo", WEAK, "cpufreq/boost"),
        ("clock", {"turbo": False, "driver": "intel_pstate"}, "turbo", WEAK, "no_turbo"),
        ("clock", {"turbo": False, "driver": "intel_cpufreq"}, "turbo", WEAK, "no_turbo"),
        (
            "clock",
            {"governor": "powersave", "driver": "amd-pstate"},
            "governor",
            BAD,
            "-g performance",
        ),
        ("clock", {"throttled": 12}, "heat", WEAK, "fan"),
        ("clock", {"on_battery": True}, "battery", WEAK, "plug it in"),
        ("engine", {"cache": "", "cache_bytes": None}, "kernel cache", BAD, "JALOPY_CACHE_DIR"),
        ("engine", {"stale_bytes": GIB}, "kernel cache", WEAK, "delete"),
        ("terminal", {"name": "dumb"}, "terminal", WEAK, "TERM=xterm-256color"),
        ("terminal", {"columns": 59}, "terminal", WEAK, "enlarge"),
        ("terminal", {"rows": 19}, "terminal", WEAK, "enlarge"),
        ("terminal", {"encoding": "iso8859-1"}, "glyphs", WEAK, "C.UTF-8"),
        ("terminal", {"clipboard_program": ""}, "clipboard", WEAK, "install xclip"),
        (
            "terminal",
            {"clipboard_program": "", "desktop": "wayland"},
            "clipboard",
            WEAK,
            "wl-clipboard",
        ),
    ],
)
def test_each_problem_is_found_with_its_remedy(
    field: str, changes: dict[str, Any], topic: str, mark: str, mend: str
) -> None:
    finding = by_topic(with_changes(field, **changes))[topic]
    assert finding.mark == mark
    assert mend in finding.mend
    assert finding.meaning


def test_only_the_topic_with_the_problem_changes() -> None:
    good = by_topic(GOOD)
    bad = by_topic(with_changes("clock", governor="powersave"))
    assert {topic for topic in good if good[topic] != bad[topic]} == {"governor"}


@pytest.mark.parametrize("driver", ["intel_pstate", "amd-pstate-epp"])
def test_powersave_is_fine_if_the_cpu_sets_its_own_clock(driver: str) -> None:
    clock = replace(
        GOOD.clock, governor="powersave", driver=driver, preference="balance_performance"
    )
    assert by_topic(replace(GOOD, clock=clock))["governor"].mark == OK


def test_only_hidden_avx2_has_a_remedy_not_missing_avx2() -> None:
    old = replace(GOOD.cores, flags=frozenset({"ssse3"}))
    engine = replace(GOOD.engine, level="ssse3")  # type: ignore[type-var]
    assert by_topic(replace(GOOD, cores=old, engine=engine))["processor"].mark == OK
    guest = replace(old, flags=frozenset({"ssse3", "hypervisor"}))
    assert "-cpu host" in by_topic(replace(GOOD, cores=guest, engine=engine))["processor"].mend


@pytest.mark.parametrize(("level", "text"), [("vnni", "VNNI"), ("amx", "AMX")])
def test_a_processor_with_more_than_avx2_is_as_good(level: str, text: str) -> None:
    engine = replace(GOOD.engine, level=level)  # type: ignore[type-var]
    finding = by_topic(replace(GOOD, engine=engine))["processor"]
    assert finding.mark == OK
    assert text in finding.found


def test_slow_memory_is_not_blamed_on_modules_if_others_read() -> None:
    busy = by_topic(with_changes("engine", read_gbps=9.0, is_quiet=False))
    assert busy["bandwidth"].meaning == "busy: other programs are running"
    assert "later" in busy["bandwidth"].mend
    assert "arithmetic" not in busy


def test_earlier_bandwidth_shows_whether_memory_is_only_busy() -> None:
    busy = by_topic(with_changes("engine", read_gbps=16.0, best_gbps=62.0))["bandwidth"]
    assert busy.mark == WEAK
    assert busy.found.endswith("now, 62.0 at best")
    assert busy.meaning.startswith("busy: 26 % of the usual speed")
    assert by_topic(with_changes("engine", read_gbps=55.0, best_gbps=62.0))["bandwidth"].mark == OK


def test_a_single_core_is_named_in_the_singular() -> None:
    assert (
        by_topic(with_changes("cores", physical=1, logical=2, allowed=2))["cores"].found
        == "1 core, 2 threads"
    )
    assert by_topic(with_changes("cores", physical=1, logical=1, allowed=1))[
        "cores"
    ].found.startswith("1 core, one")


def test_more_threads_than_cores_in_the_settings_are_a_finding() -> None:
    assert by_topic(replace(GOOD, wanted_threads=4))["threads"].mark == WEAK
    assert "threads" not in by_topic(replace(GOOD, wanted_threads=2))


def test_missing_readings_give_no_finding_and_no_error() -> None:
    nothing = by_topic(Readings())
    assert set(nothing) == {"terminal"}
    assert {finding.mark for finding in nothing.values()} == {OK}


def test_colour_counts_and_consoles_are_fine() -> None:
    for colours, words in ((0, "NO_COLOR"), (16, "16"), (256, "256"), (1 << 24, "16 million")):
        finding = by_topic(with_changes("terminal", colours=colours))["colours"]
        assert finding.mark == OK
        assert words in finding.found
    console = by_topic(with_changes("terminal", name="linux", clipboard="file", colours=16))
    assert console["glyphs"].mark == console["clipboard"].mark == OK
    assert (
        "set-clipboard"
        in by_topic(with_changes("terminal", clipboard="terminal", multiplexer="tmux"))[
            "clipboard"
        ].meaning
    )


def test_a_line_starts_with_its_mark_and_wraps_indented() -> None:
    finding = Finding(
        WEAK, "governor", "powersave", "the clock rises late " * 5, "sudo cpupower frequency-set"
    )
    lines = report.finding_lines(finding, 60)
    assert lines[0].startswith("!   governor      powersave: ")
    assert all(line.startswith(" " * 18) for line in lines[1:])
    assert all(len(line) <= 60 for line in lines)
    assert lines[-1].strip() == "-> sudo cpupower frequency-set"


def test_hostile_text_in_a_reading_stays_on_its_line() -> None:
    readings = with_changes("cores", name="Evil\x1b[31m\nCPU")
    text = "\n".join(
        line
        for finding in report.all_findings(readings)
        for line in report.finding_lines(finding, 80)
    )
    assert "\x1b" not in text
    assert "Evil" in text


def test_the_summary_counts_each_kind() -> None:
    marks = [Finding(mark, "t", "f") for mark in (OK, OK, WEAK, BAD)]
    assert report.summary(marks) == "2 OK, 1 warning (!), 1 failure (x)"
    assert report.summary(marks[:2]) == "2 OK"


@pytest.mark.parametrize(
    ("host", "mark", "words"),
    [
        (HostSystem(HostKind.WSL2, ""), WEAK, "WSL 2, which has 8.0G of memory"),
        (HostSystem(HostKind.WSL2, "6GB"), OK, "Windows allows 6GB"),
        (HostSystem(HostKind.WSL2), OK, ".wslconfig"),
        (HostSystem(HostKind.WSL1), WEAK, "wsl --set-version"),
        (HostSystem(HostKind.CROSTINI), OK, "close tabs"),
        (HostSystem(HostKind.PROOT), OK, "termux-wake-lock"),
        (HostSystem(HostKind.TERMUX), BAD, "proot-distro install debian"),
    ],
)
def test_the_system_around_linux_is_told(host: HostSystem, mark: str, words: str) -> None:
    assert "system" not in by_topic(GOOD)
    finding = by_topic(replace(GOOD, host=host))["system"]
    assert finding.mark == mark
    assert words in " ".join((finding.found, finding.meaning, finding.mend))
    assert bool(finding.mend) is (mark != OK)


@pytest.mark.parametrize(("kind", "owner"), [("WSL 2", "Windows"), ("Crostini", "ChromeOS")])
def test_a_model_in_a_folder_of_another_system_is_slow(kind: str, owner: str) -> None:
    readings = with_changes("disk", kind="shared", device="", filesystem="9p")
    finding = by_topic(replace(readings, host=HostSystem(HostKind(kind))))["model's disk"]
    assert (finding.mark, finding.found) == (WEAK, f"folder of {owner} (9p)")
    assert "~/models" in finding.mend
