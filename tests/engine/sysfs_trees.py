"""Small trees of ``sys`` and ``proc`` as Linux shows them on other machines, written into a folder.

Values are those of real machines: an i5-4278U of 2014, an i7-12700, an i7-1260P, a Ryzen 7 3700X, a
two-socket Xeon E5-2640, a Raspberry Pi 4, a cloud machine.
"""

from pathlib import Path

from engine.machine.topology import listed_numbers

CPUS = "sys/devices/system/cpu"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def processors(
    cores: list[list[int]], name: str, sockets: dict[int, int] | None = None
) -> dict[str, str]:
    """Topology files of cores, each a list of its logical CPUs."""
    files = {"proc/cpuinfo": f"processor\t: 0\nmodel name\t: {name}\nflags\t\t: sse2 avx2"}
    for core in cores:
        for cpu in core:
            together = ",".join(map(str, core))
            files[f"{CPUS}/cpu{cpu}/topology/thread_siblings_list"] = together
            files[f"{CPUS}/cpu{cpu}/topology/core_cpus_list"] = together
            files[f"{CPUS}/cpu{cpu}/topology/physical_package_id"] = str(
                (sockets or {}).get(core[0], 0)
            )
    return files


def caches(levels: dict[int, list[str]]) -> dict[str, str]:
    """Cache files of the CPUs in these lists, by level: "0-3" is a cache that four CPUs share."""
    files = {}
    for index, (level, lists) in enumerate(levels.items()):
        for shared in lists:
            for cpu in listed_numbers(shared):
                folder = f"{CPUS}/cpu{cpu}/cache/index{index}"
                files[f"{folder}/level"] = str(level)
                files[f"{folder}/shared_cpu_list"] = shared
    return files


def online(cpus: str, present: str = "") -> dict[str, str]:
    return {f"{CPUS}/online": cpus, f"{CPUS}/present": present or cpus}


def two_cores_four_threads(root: Path) -> Path:
    files = processors([[0, 2], [1, 3]], "Intel(R) Core(TM) i5-4278U CPU @ 2.60GHz")
    return write(root, files | online("0-3") | caches({2: ["0,2", "1,3"], 3: ["0-3"]}))


def small_hybrid(root: Path) -> Path:
    """Four fast cores with two threads each, CPUs 0 to 7, and eight efficiency cores in two
    clusters."""
    fast = [[2 * core, 2 * core + 1] for core in range(4)]
    files = processors(
        fast + [[cpu] for cpu in range(8, 16)], "12th Gen Intel(R) Core(TM) i7-1260P"
    )
    files |= {"sys/devices/cpu_core/cpus": "0-7", "sys/devices/cpu_atom/cpus": "8-15"}
    clusters = ["0-1", "2-3", "4-5", "6-7", "8-11", "12-15"]
    for cpu in range(16):
        files[f"{CPUS}/cpufreq/policy{cpu}/related_cpus"] = str(cpu)
    return write(root, files | online("0-15") | caches({2: clusters, 3: ["0-15"]}))


def two_caches(root: Path) -> Path:
    """Eight cores with two threads each; each half of the cores has a cache of level 3."""
    files = processors(
        [[core, core + 8] for core in range(8)], "AMD Ryzen 7 3700X 8-Core Processor"
    )
    private = [f"{core},{core + 8}" for core in range(8)]
    levels = {1: private, 2: private, 3: ["0-3,8-11", "4-7,12-15"]}
    return write(root, files | online("0-15") | caches(levels))


def raspberry_pi(root: Path) -> Path:
    """Four equal cores with one clock and one cache of level 2."""
    files = processors([[cpu] for cpu in range(4)], "") | {
        "proc/cpuinfo": "processor\t: 0\nBogoMIPS\t: 108.00",
        "proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\0",
        f"{CPUS}/cpufreq/policy0/related_cpus": "0 1 2 3",
    }
    for cpu in range(4):
        files[f"{CPUS}/cpu{cpu}/cpu_capacity"] = "1024"
        files[f"{CPUS}/cpu{cpu}/cpufreq/cpuinfo_max_freq"] = "1800000"
    return write(root, files | online("0-3") | caches({1: ["0", "1", "2", "3"], 2: ["0-3"]}))


def hybrid(root: Path) -> Path:
    """Eight fast cores with two threads each, CPUs 0 to 15, and four efficiency cores."""
    fast = [[2 * core, 2 * core + 1] for core in range(8)]
    slow = [[cpu] for cpu in range(16, 20)]
    files = processors(fast + slow, "12th Gen Intel(R) Core(TM) i7-12700")
    files |= {"sys/devices/cpu_core/cpus": "0-15", "sys/devices/cpu_atom/cpus": "16-19"}
    for cpu in range(20):
        files[f"{CPUS}/cpu{cpu}/cpufreq/cpuinfo_max_freq"] = "4900000" if cpu < 16 else "3600000"
    return write(root, files)


def big_little(root: Path) -> Path:
    """Four efficiency cores, CPUs 0 to 3, before four fast ones; no model name in cpuinfo."""
    files = processors([[cpu] for cpu in range(8)], "")
    files |= {
        "proc/cpuinfo": "processor\t: 0\nBogoMIPS\t: 48.00",
        "proc/device-tree/model": "Radxa ROCK 5B\0",
    }
    for cpu in range(8):
        files[f"{CPUS}/cpu{cpu}/cpu_capacity"] = "530" if cpu < 4 else "1024"
    return write(root, files)


def two_sockets(root: Path) -> Path:
    cores = [[cpu, cpu + 12] for cpu in range(12)]
    sockets = {cpu: cpu // 6 for cpu in range(12)}
    return write(root, processors(cores, "Intel(R) Xeon(R) CPU E5-2640 0 @ 2.50GHz", sockets))


def virtual_machine(root: Path) -> Path:
    """Four CPUs, one thread per core, equal capacities, no cpufreq."""
    files = processors([[cpu] for cpu in range(4)], "AMD EPYC")
    return write(root, files | {f"{CPUS}/cpu{cpu}/cpu_capacity": "1024" for cpu in range(4)})


def with_quota(root: Path, quota: str, parent: str = "max 100000") -> Path:
    """A control group of version 2 inside another, each with its ``cpu.max``."""
    files = {
        "proc/self/cgroup": "0::/outer/inner",
        "sys/fs/cgroup/outer/inner/cpu.max": quota,
        "sys/fs/cgroup/outer/cpu.max": parent,
    }
    return write(root, files)


def with_old_quota(root: Path, quota_us: str, period_us: str = "100000") -> Path:
    """Control groups of version 1, as in a container that sees only its own group."""
    files = {
        "proc/self/cgroup": "4:memory:/docker/ab12\n3:cpu,cpuacct:/docker/ab12\n0::/",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": quota_us,
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": period_us,
    }
    return write(root, files)
