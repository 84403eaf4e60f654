"""Memory and cores that this process may use: the machine's, or less where a container's control group says so."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def memory() -> tuple[int, int, bool]:
    """(total, available, whether a control group sets the total), bytes."""
    machine = psutil.virtual_memory()
    group = group_memory()
    if group is None or group[0] >= machine.total:
        return machine.total, machine.available, False
    limit, free = group
    return limit, min(machine.available, free), True


def group_memory(root: Path = ROOT, membership: Path = MEMBERSHIP) -> tuple[int, int] | None:
    """(least limit, least free) bytes over the control groups around this process, None where none is limited.

    Versions 1 and 2 (Linux, Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst). A parent's limit binds
    too, so every level up to the root is read. Inside a container the path in `membership` is often the host's and
    absent here; then the root is the container's own group. Page cache that the kernel can drop is counted as used
    there and as free here.
    """
    limits, free = [], []
    for version, group in _groups(root, membership, "memory"):
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, used = (_number(group / name) for name in names)
        if limit is not None:
            limits.append(limit)
            free.append(max(0, limit - max(0, (used or 0) - _droppable(group / "memory.stat", version))))
    return (min(limits), min(free)) if limits else None


def usable_cores(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """Cores this process may run on: its affinity, and the control groups' quota rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for version, group in _groups(root, membership, "cpu"):
        with contextlib.suppress(OSError, ValueError):
            if version == 2:
                quota, period = (group / "cpu.max").read_text().split()
            else:
                quota, period = ((group / f"cpu.cfs_{what}_us").read_text() for what in ("quota", "period"))
            if quota != "max" and int(quota) > 0:
                cores = min(cores, -(-int(quota) // int(period)))
    return max(1, cores)


def _groups(root: Path, membership: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """(version, folder) of this process's group and of each of its parents."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            version, base = 2, root
        elif controller in controllers.split(","):
            version, base = 1, root / controller
        else:
            continue
        own = Path(path.lstrip("/"))
        for level in (own, *own.parents) if own.parts else (own,):
            if (base / level).is_dir():
                yield version, base / level


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None


def _droppable(stat: Path, version: int) -> int:
    key = "inactive_file" if version == 2 else "total_inactive_file"
    with contextlib.suppress(OSError):
        if match := re.search(rf"^{key} (\d+)$", stat.read_text(), re.MULTILINE):
            return int(match[1])
    return 0
