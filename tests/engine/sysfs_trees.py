"""Small trees of ``sys`` and ``proc`` as Linux shows them on other machines, written into a folder.

Values are those of real machines: an i5-4278U of 2014, an i7-12700, a two-socket Xeon E5-2640, a
cloud machine.
"""

from pathlib import Path

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


def two_cores_four_threads(root: Path) -> Path:
    return write(root, processors([[0, 2], [1, 3]], "Intel(R) Core(TM) i5-4278U CPU @ 2.60GHz"))


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
