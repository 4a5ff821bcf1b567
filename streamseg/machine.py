"""What this process may use of its machine: cores and memory. Standard library only.

Containers limit both by control groups (cgroups), of which Linux has two versions: in version 2 a group's folder holds
cpu.max and memory.max, in version 1 each controller has a tree of folders of its own.
"""

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def available_cores(root: Path = ROOT) -> int:
    """Cores that this process may use: those that it may run on, or fewer if a container's quota is smaller.

    Args:
        root: Where the file systems proc and sys are found.
    """
    # sched_getaffinity is Linux's alone
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [math.ceil(quota) for group in groups("cpu", root) if (quota := cpu_quota(group)) is not None]
    return max(1, min(allowed, *quotas)) if quotas else allowed


def free_memory(root: Path = ROOT) -> float:
    """Bytes of the machine's memory that this process may still take; 0 where nothing is known, as on other systems."""
    meminfo = root / "proc/meminfo"
    if not meminfo.exists():
        return 0.0
    lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines() if ":" in line)
    free = [int(lines["MemAvailable"].split()[0]) * 1024]
    for group in groups("memory", root):
        for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit = read_numbers(group / most)
            if limit:
                free.append(limit[0] - sum(read_numbers(group / used)))
    return float(max(0, min(free)))


def peak_memory() -> float:
    """The most bytes of the machine's memory that this process has held; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def groups(controller: str, root: Path) -> Iterator[Path]:
    """The folders of the control groups that this process is in, from the innermost to the outermost."""
    told, mounted = root / "proc/self/cgroup", root / "sys/fs/cgroup"
    if not told.exists():
        return
    for line in told.read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        tree = mounted / controllers if controllers else mounted
        # within a container the path may be that of the host, which is not there: its own group is then the root
        inner = tree.joinpath(*Path(path).parts[1:])
        for folder in (inner, *inner.parents):
            if folder.is_dir():
                yield folder
            if folder == tree:
                break


def cpu_quota(group: Path) -> float | None:
    """Cores' worth of time that a control group gets; None if it has no limit."""
    limit = read_numbers(group / "cpu.max")  # microseconds of each period, and the period
    if not limit:
        limit = read_numbers(group / "cpu.cfs_quota_us") + read_numbers(group / "cpu.cfs_period_us")
    return limit[0] / limit[1] if len(limit) == 2 and limit[0] > 0 < limit[1] else None


def read_numbers(path: Path) -> list[int]:
    """The numbers in a file of a control group; none if it is missing, or says that there is no limit."""
    try:
        words = path.read_text(encoding="ascii").split()
    except OSError:
        return []
    return [int(word) for word in words if word.lstrip("-").isdecimal()]
