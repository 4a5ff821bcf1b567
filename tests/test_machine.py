"""Cores and memory in containers and on other systems."""

import os
import sys
from types import SimpleNamespace

import pytest
import torch

from streamseg import machine
from streamseg.cli import options


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A machine with 16 cores, whose control groups a test writes."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    return tmp_path


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


V1 = "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n"


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 16),
        ({"proc/self/cgroup": "0::/\n"}, 16),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 16),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "10000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "6400000 100000\n"}, 16),
        # the limit of an outer group applies to inner groups
        (
            {
                "proc/self/cgroup": "0::/jobs/one\n",
                "sys/fs/cgroup/jobs/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/jobs/one/cpu.max": "500000 100000\n",
            },
            3,
        ),
        # version 1, whose path in a container is that of the host, or exists
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "50000\n",
            },
            5,
        ),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            16,
        ),
    ],
)
def test_the_quota_of_a_container_limits_the_cores(root, files, cores):
    write(root, files)
    assert machine.available_cores(root) == cores


def test_cpu_affinity_limits_the_cores(root, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert machine.available_cores(root) == 2
    write(root, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "800000 100000\n"})
    assert machine.available_cores(root) == 2


def test_a_system_without_affinity_counts_its_cores(root, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    assert machine.available_cores(root) == 16
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.available_cores(root) == 1


def test_the_command_line_limits_torch_s_threads_to_the_cores(monkeypatch):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        monkeypatch.setattr(options, "available_cores", lambda: 8)
        options.pick_device("cpu")
        assert torch.get_num_threads() == 3  # a smaller number chosen by hand is kept
        monkeypatch.setattr(options, "available_cores", lambda: 2)
        options.pick_device("cpu")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_free_memory_is_that_of_the_machine_or_the_container(root):
    assert machine.free_memory(root) == 0  # not Linux
    write(root, {"proc/meminfo": "MemTotal:  99 kB\nMemAvailable:   1000 kB\nHugePages_Free: 0\n"})
    assert machine.free_memory(root) == 1000 * 1024
    write(
        root,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "300000\n",
            "sys/fs/cgroup/memory.current": "100000\n",
        },
    )
    assert machine.free_memory(root) == 200000
    write(root, {"sys/fs/cgroup/memory.max": "max\n"})
    assert machine.free_memory(root) == 1000 * 1024
    write(
        root,
        {
            "proc/self/cgroup": V1,
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "50000\n",
            "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": "60000\n",
        },
    )
    assert machine.free_memory(root) == 0


def test_peak_memory_is_in_bytes_on_every_system(monkeypatch):
    usage = SimpleNamespace(RUSAGE_SELF=0, getrusage=lambda _: SimpleNamespace(ru_maxrss=5000))
    monkeypatch.setitem(sys.modules, "resource", usage)
    monkeypatch.setattr(sys, "platform", "linux")
    assert machine.peak_memory() == 5000 * 1024
    monkeypatch.setattr(sys, "platform", "darwin")
    assert machine.peak_memory() == 5000
    monkeypatch.setitem(sys.modules, "resource", None)  # Windows has no such module
    assert machine.peak_memory() == 0
