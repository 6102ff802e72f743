"""Findings from readings: what is fine, what costs speed, and how to fix it.

The functions are pure; nothing is read here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from app.machine.doctor.host_system import HostKind
from app.machine.doctor.readings import Readings
from app.machine.sensors.sample import Governor
from app.machine.sensors.tuning_conditions import QUIET_CORES
from app.text.figures import counted, size
from app.text.record import record

OK = "ok"
WEAK = "!"
BAD = "x"
"""Marks of findings: fine, a warning, a failure."""

FEW_COLUMNS = 60
FEW_ROWS = 20
SLOW_MEMORY_GBPS = 13.0
"""Limit for slow memory. One channel of DDR3-1600 carries at most 12.8 GB/s; two channels read
more.
"""
GB_PER_TOKEN_8B = 4.62
"""Weights that an 8B model in Q4_K_M reads for a token, in GB."""
LATER = "try again later"
"""Remedy where only waiting helps."""
COMPILATION = "about half a minute on a fast machine, minutes on an old one"


@record
class Finding:
    """A finding: what was read, what it means for speed, and the command or setting that fixes
    it.
    """

    mark: str
    topic: str
    found: str
    meaning: str = ""
    mend: str = ""


Look = Callable[[Readings], "Iterable[Finding]"]
_INSTRUCTIONS = {
    "amx": "AVX-512, VNNI, AMX", "vnni": "AVX2, FMA, VNNI", "avx2": "AVX2, FMA",
    "ssse3": "SSSE3", "dotprod": "NEON, dotprod", "neon": "NEON",
}  # fmt: skip
"""Instruction sets of the kernel levels, by their usual names."""


def host_system(readings: Readings) -> Iterable[Finding]:
    """Describe the system around this Linux, and what it limits."""
    host = readings.host
    total = ""
    if readings.memory.total_bytes is not None:
        total = f", which has {size(readings.memory.total_bytes)} of memory"
    match host.kind:
        case HostKind.WSL2 if host.memory_limit == "":
            meaning = "without a limit of your own, WSL gets half of the memory of Windows"
            mend = r"memory=12GB below [wsl2] in %UserProfile%\.wslconfig, then wsl --shutdown"
            yield Finding(WEAK, "system", f"WSL 2{total}", meaning, mend)
        case HostKind.WSL2 if host.memory_limit:
            meaning = f"Windows allows {host.memory_limit} (.wslconfig)"
            yield Finding(OK, "system", f"WSL 2{total}", meaning)
        case HostKind.WSL2:
            meaning = r"memory= in %UserProfile%\.wslconfig of Windows limits it"
            yield Finding(OK, "system", f"WSL 2{total}", meaning)
        case HostKind.WSL1:
            meaning = "WSL 2 has a Linux kernel of its own, and reads files faster"
            mend = "in Windows: wsl --set-version DISTRIBUTION 2 (wsl -l names it)"
            yield Finding(WEAK, "system", "WSL 1", meaning, mend)
        case HostKind.CROSTINI:
            meaning = (
                "Chrome shares it: close tabs; Settings, Linux, Disk size makes room for models"
            )
            yield Finding(OK, "system", f"Linux on ChromeOS{total}", meaning)
        case HostKind.PROOT:
            meaning = "Android may end it when the screen is off: run termux-wake-lock before"
            yield Finding(OK, "system", f"Linux in Termux{total}", meaning)
        case HostKind.TERMUX:
            meaning = "the compiler (numba) has no build for Android"
            mend = (
                "pkg install proot-distro; proot-distro install debian; proot-distro login debian"
            )
            yield Finding(BAD, "system", "Termux without a Linux of its own", meaning, mend)


def processor(readings: Readings) -> Iterable[Finding]:
    """Judge the instruction sets of the kernels."""
    name = readings.cores.name or "processor"
    engine = readings.engine
    if engine is None:
        return
    if engine.error:
        yield Finding(
            BAD, "engine", engine.error, "no model can run", "install Jalopy again: make run"
        )
        return
    used = _INSTRUCTIONS.get(engine.level, "only basic vector instructions")
    text = f"{name} uses {used}"
    if engine.awaits_faster_code:
        meaning = "faster code for it is built while the chat is idle, for the next start"
        yield Finding(OK, "processor", text, meaning)
    elif engine.level in ("amx", "vnni", "avx2"):
        meaning = "its code was built here" if engine.is_built_here else ""
        yield Finding(OK, "processor", f"{text} (fastest)", meaning)
    elif engine.level in ("dotprod", "neon"):
        yield Finding(
            OK, "processor", text, "tested in an emulator only; real speed is not known yet"
        )
    elif engine.features_named:
        meaning = "an environment variable selects an older instruction set"
        yield Finding(WEAK, "processor", text, meaning, "unset NUMBA_CPU_NAME NUMBA_CPU_FEATURES")
    elif {"avx2", "fma"} <= readings.cores.flags:
        yield Finding(
            WEAK,
            "processor",
            text,
            "it has AVX2, but the compiler does not detect it",
            "update numba",
        )
    elif "hypervisor" in readings.cores.flags:
        meaning = "about half the speed of AVX2; the virtual machine may hide AVX2"
        mend = "pass the host's processor to the virtual machine (QEMU: -cpu host)"
        yield Finding(WEAK, "processor", text, meaning, mend)
    else:
        yield Finding(OK, "processor", text, "no AVX2: use small models in Q8_0 or Q4_0")


def cores(readings: Readings) -> Iterable[Finding]:
    """Judge the number of usable cores."""
    c = readings.cores
    if c.logical is None:
        return
    siblings = c.physical is not None and c.physical < c.logical
    if c.physical is None:
        text = counted(c.logical, "processor")
    elif siblings:
        text = f"{counted(c.physical, 'core')}, {c.logical} threads"
    else:
        text = f"{counted(c.logical, 'core')}, one thread each"
    if c.allowed is not None and c.allowed < c.logical:
        text = f"{text}; Jalopy may use {c.allowed} of them"
        mend = "start Jalopy without taskset, or give the container more CPUs"
        yield Finding(WEAK, "cores", text, "the other cores stay idle", mend)
    elif c.quota is not None and c.quota < (c.allowed_physical or c.physical or c.logical):
        text = f"{text}; the control group allows {c.quota:g}"
        mend = "allow more: --cpus of the container, or CPUQuota= of the service"
        yield Finding(WEAK, "cores", text, "more threads would be throttled", mend)
    else:
        if siblings:
            meaning = "one thread per core writes fastest"
        else:
            meaning = ""
        yield Finding(OK, "cores", text, meaning)


def threads(readings: Readings) -> Iterable[Finding]:
    """Judge the number of threads in the settings."""
    c = readings.cores
    usable = c.allowed_physical or c.physical
    if readings.wanted_threads and usable and readings.wanted_threads > usable:
        text = f"your settings use {readings.wanted_threads} on {counted(usable, 'core')}"
        mend = "set threads = 0 in the settings to choose automatically"
        yield Finding(WEAK, "threads", text, "more threads than cores slow each other down", mend)


def other_programs(readings: Readings) -> Iterable[Finding]:
    """Judge the current load by other programs."""
    busy = readings.cores.others_busy
    if busy is None:
        return
    if busy <= QUIET_CORES:
        yield Finding(OK, "load", "other programs are quiet")
    else:
        text = f"Other programs use {busy:.1f} cores"
        yield Finding(WEAK, "load", text, "that can halve the speed", "`top` shows which")


def memory(readings: Readings) -> Iterable[Finding]:
    """Judge total and free memory."""
    m = readings.memory
    if m.total_bytes is None or m.available_bytes is None:
        return
    text = f"{size(m.available_bytes)} of {size(m.total_bytes)} free"
    mend = "close other programs, browsers first"
    if m.available_bytes < 1 << 30:
        meaning = "only the smallest models fit; larger ones are read from disk for every token"
        yield Finding(BAD, "memory", text, meaning, mend)
    elif m.available_bytes < 0.4 * m.total_bytes:
        yield Finding(
            WEAK,
            "memory",
            text,
            "a model that does not fit is read from disk for every token",
            mend,
        )
    else:
        yield Finding(OK, "memory", text)


def swap(readings: Readings) -> Iterable[Finding]:
    """Judge swap. Caches of conversations may be swapped, weights never are."""
    m = readings.memory
    if m.swap_bytes is None or m.total_bytes is None:
        return
    used = m.swap_used_bytes or 0
    text = f"{size(used)} of {size(m.swap_bytes)} in use"
    if used > 0.1 * m.total_bytes:
        meaning = "memory is short: programs and conversations resume slowly"
        yield Finding(WEAK, "swap", text, meaning, "close other programs")
    elif m.swap_bytes == 0 and m.total_bytes < 10 << 30:
        meaning = "when memory runs out, the system kills a program instead of slowing down"
        yield Finding(
            WEAK,
            "swap",
            "none",
            meaning,
            "sudo apt install zram-tools (compressed memory, no disk)",
        )
    else:
        yield Finding(OK, "swap", text if m.swap_bytes else "none")


def bandwidth(readings: Readings) -> Iterable[Finding]:
    """Judge the measured memory bandwidth, which limits writing."""
    engine = readings.engine
    if engine is None or engine.read_gbps is None:
        return
    gbps = engine.read_gbps
    text = f"{gbps:.1f} GB/s read with {counted(engine.threads, 'thread')}"
    ceiling = f"at most {gbps / GB_PER_TOKEN_8B:.1f} tok/s with an 8B model in Q4_K_M"
    if busy := engine.busy_words:
        if engine.best_gbps:
            text = f"{text} now, {engine.best_gbps:.1f} at best"
        yield Finding(WEAK, "bandwidth", text, busy, LATER)
    elif gbps >= SLOW_MEMORY_GBPS:
        yield Finding(OK, "bandwidth", text, ceiling)
    else:
        mend = "with one RAM module, a matching second one doubles this: sudo dmidecode -t memory"
        yield Finding(
            WEAK, "bandwidth", text, f"{ceiling}; this looks like single-channel memory", mend
        )


def arithmetic(readings: Readings) -> Iterable[Finding]:
    """Describe what the measured arithmetic means for prompts."""
    engine = readings.engine
    if (
        engine is None
        or engine.prefill_gops is None
        or (not engine.is_quiet and not engine.best_gbps)
    ):
        return
    text = f"{engine.prefill_gops:.0f} billion multiplications/s (Q4_K)"
    yield Finding(
        OK,
        "arithmetic",
        text,
        f"an 8B model reads prompts at about {engine.prefill_gops / 7.8:.1f} tok/s",
    )


def disk(readings: Readings) -> Iterable[Finding]:
    """Judge the disk of the model.

    It is read once before the first token, and again if memory is short.
    """
    d = readings.disk
    if d is None or not d.kind:
        return
    location = " ".join(name for name in (d.device, d.filesystem) if name)
    if location:
        location = f" ({location})"
    else:
        location = ""
    if d.kind == "spinning":
        if d.file_bytes:
            seconds = f", about {max(1, round(d.file_bytes / 1e8))} s"
        else:
            seconds = ""
        meaning = f"the first word waits until the file is read once{seconds} at 100 MB/s"
        yield Finding(
            WEAK, "model's disk", f"spinning disk{location}", meaning, "move the model to an SSD"
        )
    elif d.kind == "shared":
        owner = "ChromeOS" if readings.host.kind is HostKind.CROSTINI else "Windows"
        meaning = "each read goes through that system, several times slower than Linux' own disk"
        yield Finding(
            WEAK,
            "model's disk",
            f"folder of {owner}{location}",
            meaning,
            "copy the model into your Linux home, such as ~/models",
        )
    elif d.kind == "network":
        meaning = "parts that leave memory are fetched over the network again"
        yield Finding(
            WEAK, "model's disk", f"network{location}", meaning, "copy the model to a local disk"
        )
    else:
        yield Finding(OK, "model's disk", {"ssd": "SSD", "memory": "in memory"}[d.kind] + location)


def saved_states(readings: Readings) -> Iterable[Finding]:
    """Say how much disk saved states take."""
    states = readings.states
    if states is None or not states.n_bytes:
        return
    text = size(states.n_bytes)
    if states.quota_bytes:
        text = f"{text} of at most {size(states.quota_bytes)}"
    yield Finding(OK, "saved states", text, "jalopy states lists and frees them")


def governor(readings: Readings) -> Iterable[Finding]:
    """Judge the clock governor."""
    c = readings.clock
    if not c.governor:
        return
    in_use = Governor(c.governor, c.driver)
    if c.driver:
        name = f"{c.governor} ({c.driver})"
    else:
        name = c.governor
    fix = "sudo cpupower frequency-set -g performance (until the next start)"
    if in_use.holds_clock_down:
        yield Finding(
            BAD, "governor", name, "the clock stays at its minimum: several times slower", fix
        )
    elif in_use.lets_processor_choose and c.preference in ("power", "balance_power"):
        text = f"{name}, prefers {c.preference}"
        yield Finding(WEAK, "governor", text, "the clock rises late and not to its maximum", fix)
    elif c.governor == "conservative":
        yield Finding(WEAK, "governor", name, "the clock rises slowly", fix)
    else:
        yield Finding(OK, "governor", name)


def clock(readings: Readings) -> Iterable[Finding]:
    """Judge limits of the clock by system, heat and battery."""
    c = readings.clock
    if c.most_mhz and c.limit_mhz and c.limit_mhz < 0.95 * c.most_mhz:
        text = f"limited to {c.limit_mhz / 1000:.1f} of {c.most_mhz / 1000:.1f} GHz"
        mend = f"sudo cpupower frequency-set -u {c.most_mhz / 1000:.1f}GHz"
        yield Finding(WEAK, "clock", text, "prompts are read that much slower", mend)
    if c.turbo is False:
        mend = (
            "turn it on in the BIOS, or: echo 0 | sudo tee "
            "/sys/devices/system/cpu/intel_pstate/no_turbo"
        )
        if c.driver not in ("intel_pstate", "intel_cpufreq"):
            mend = (
                "turn it on in the BIOS, or: echo 1 | sudo tee "
                "/sys/devices/system/cpu/cpufreq/boost"
            )
        yield Finding(WEAK, "turbo", "off", "the processor stays below its highest clock", mend)
    if c.throttled:
        text = f"slowed down {c.throttled} times since the computer started"
        mend = "clean the fan, renew the thermal paste, keep the vents free"
        yield Finding(WEAK, "heat", text, "long replies become slower", mend)
    if c.on_battery:
        yield Finding(
            WEAK, "battery", "on battery", "most laptops run slower on battery", "plug it in"
        )


def huge_pages(readings: Readings) -> Iterable[Finding]:
    """Judge transparent huge pages, which cache and buffers use."""
    mode = readings.memory.huge_pages
    if mode == "never":
        meaning = "costs a few per cent of speed; --weights huge has no effect"
        mend = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
        yield Finding(WEAK, "huge pages", mode, meaning, mend)
    elif mode:
        yield Finding(OK, "huge pages", mode)


def kernel_cache(readings: Readings) -> Iterable[Finding]:
    """Judge whether compiled kernels are saved."""
    engine = readings.engine
    if engine is None or engine.error:
        return
    if not engine.cache:
        meaning = f"Jalopy compiles its kernels at every start: {COMPILATION}"
        mend = "set JALOPY_CACHE_DIR to a directory that only you can write to"
        yield Finding(BAD, "kernel cache", "no private directory", meaning, mend)
        return
    if engine.cache_bytes:
        cached = size(engine.cache_bytes)
    else:
        cached = "empty"
    if engine.stale_bytes > 100 << 20:
        text = f"{cached}, and {size(engine.stale_bytes)} of older versions"
        mend = f"delete the other kernels-* directories next to {engine.cache}"
        yield Finding(WEAK, "kernel cache", text, "costs disk space, not speed", mend)
    else:
        if engine.cache_bytes:
            meaning = ""
        else:
            meaning = f"Jalopy compiles its kernels once: {COMPILATION}"
        yield Finding(OK, "kernel cache", cached, meaning)


def screen(readings: Readings) -> Iterable[Finding]:
    """Judge type and size of the terminal."""
    t = readings.terminal
    if not t.is_terminal:
        yield Finding(
            OK,
            "terminal",
            "none: the output is a file or a pipe",
            "the chat works line by line",
        )
        return
    text = f"{t.name or 'unknown type'}, {t.columns} x {t.rows}"
    if t.name in ("", "dumb"):
        yield Finding(
            WEAK, "terminal", text, "only the line mode works", "export TERM=xterm-256color"
        )
    elif t.columns < FEW_COLUMNS or t.rows < FEW_ROWS:
        yield Finding(
            WEAK,
            "terminal",
            text,
            f"Jalopy's screens need {FEW_COLUMNS} x {FEW_ROWS}",
            "enlarge the window",
        )
    else:
        yield Finding(OK, "terminal", text)


def colours(readings: Readings) -> Iterable[Finding]:
    """Describe the number of colours. All screens work without colours."""
    t = readings.terminal
    if not t.is_terminal or t.colours is None:
        return
    if t.colours == 0:
        yield Finding(OK, "colours", "off (NO_COLOR is set)")
    elif t.colours >= 1 << 24:
        yield Finding(OK, "colours", "16 million")
    elif t.colours == 256:
        yield Finding(OK, "colours", "256", "for true colour: export COLORTERM=truecolor")
    else:
        yield Finding(OK, "colours", str(t.colours), "use the theme jalopy-16")


def glyphs(readings: Readings) -> Iterable[Finding]:
    """Judge whether bars, boxes and foreign letters can be shown."""
    t = readings.terminal
    if not t.is_terminal:
        return
    if t.name == "linux":
        yield Finding(OK, "glyphs", "Linux console", "borders and bars are drawn in ASCII")
    elif t.encoding.lower().replace("-", "") == "utf8":
        yield Finding(OK, "glyphs", "UTF-8")
    else:
        meaning = "missing letters and bars become question marks"
        yield Finding(
            WEAK, "glyphs", f"encoding {t.encoding or 'unknown'}", meaning, "export LC_ALL=C.UTF-8"
        )


def clipboard(readings: Readings) -> Iterable[Finding]:
    """Describe how copying works, and what would improve it."""
    t = readings.terminal
    if not t.is_terminal:
        return
    if t.clipboard == "file":
        yield Finding(OK, "clipboard", "none on a console", "/copy writes a file")
    elif t.clipboard == "desktop" and t.clipboard_program:
        yield Finding(OK, "clipboard", f"desktop clipboard through {t.clipboard_program}")
    elif t.clipboard == "desktop":
        meaning = "copying depends on the terminal"
        mend = f"sudo apt install {'wl-clipboard' if t.desktop == 'wayland' else 'xclip'}"
        yield Finding(WEAK, "clipboard", "no desktop clipboard program", meaning, mend)
    elif t.multiplexer == "tmux":
        meaning = "if pasting fails: tmux set -g set-clipboard on, or /save"
        yield Finding(OK, "clipboard", "terminal (OSC 52) through tmux", meaning)
    else:
        yield Finding(
            OK,
            "clipboard",
            "terminal (OSC 52)",
            "if pasting fails: /save writes a file",
        )


LOOKS: tuple[Look, ...] = (
    host_system, processor, cores, threads, other_programs, memory, swap, bandwidth, arithmetic,
    disk, saved_states, governor, clock, huge_pages,
    kernel_cache, screen, colours, glyphs, clipboard,
)  # fmt: skip
"""All judgements, in the order of the report."""
