"""Cores and memory that are available to this process. Standard library only.

Containers limit both by control groups (cgroups), of which Linux has two versions: in version 2 a group's folder holds
cpu.max and memory.max, in version 1 each controller has its own tree of folders.
"""

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def available_cores(root: Path = ROOT) -> int:
    """Return the number of cores that this process may use: its CPU affinity, or the container's quota if smaller.

    Args:
        root: Folder that contains the file systems proc and sys.
    """
    # sched_getaffinity exists only on Linux
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [math.ceil(quota) for group in control_groups("cpu", root) if (quota := cpu_quota(group)) is not None]
    return max(1, min(allowed, *quotas)) if quotas else allowed


def free_memory(root: Path = ROOT) -> float:
    """Return the bytes of memory that this process can still allocate; 0 if unknown, as on systems other than Linux."""
    meminfo = root / "proc/meminfo"
    if not meminfo.exists():
        return 0.0
    lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines() if ":" in line)
    free = [int(lines["MemAvailable"].split()[0]) * 1024]
    for group in control_groups("memory", root):
        for maximum, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit = read_numbers(group / maximum)
            if limit:
                free.append(limit[0] - sum(read_numbers(group / used)))
    return float(max(0, min(free)))


def peak_memory() -> float:
    """Return the peak memory of this process in bytes; 0 if unknown."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def control_groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of the control groups of this process, from the innermost to the outermost."""
    own_groups, mounted = root / "proc/self/cgroup", root / "sys/fs/cgroup"
    if not own_groups.exists():
        return
    for line in own_groups.read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        tree = mounted / controllers if controllers else mounted
        # in a container the path may be that of the host, which does not exist: its own group is then the root
        inner = tree.joinpath(*Path(path).parts[1:])
        for folder in (inner, *inner.parents):
            if folder.is_dir():
                yield folder
            if folder == tree:
                break


def cpu_quota(group: Path) -> float | None:
    """Return the CPU time of a control group, in cores; None if it has no limit."""
    limit = read_numbers(group / "cpu.max")  # quota and period, in microseconds
    if not limit:
        limit = read_numbers(group / "cpu.cfs_quota_us") + read_numbers(group / "cpu.cfs_period_us")
    return limit[0] / limit[1] if len(limit) == 2 and limit[0] > 0 < limit[1] else None


def read_numbers(path: Path) -> list[int]:
    """Return the numbers in a file of a control group; none if it is missing, or says that there is no limit."""
    try:
        words = path.read_text(encoding="ascii").split()
    except OSError:
        return []
    return [int(word) for word in words if word.lstrip("-").isdecimal()]
