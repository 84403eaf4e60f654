"""What this machine is: chip, memory, MLX's back end, bandwidth. Reading it needs no network, and no MLX that works."""

import contextlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tinymlx.memory import measured
from tinymlx.memory.cgroup import memory, usable_cores
from tinymlx.memory.chips import published_bandwidth

# The distributions that bring MLX's library, one for each back end.
WHEELS = ("mlx-metal", "mlx-cuda-12", "mlx-cuda-13", "mlx-cpu")
PROBE_TIMEOUT_S = 60  # a first import from a cold disk has taken 20 s


@dataclass(frozen=True)
class Machine:
    """Facts only; what follows from them is in `plan` and in `tinymlx doctor`. Sizes in bytes, bandwidths in GB/s
    (10^9 bytes).
    """

    system: str
    """platform.system(): "Darwin" or "Linux"."""
    release: str
    """For people: "macOS 15.1", "Debian GNU/Linux 12"."""
    architecture: str
    """What this Python was built for: "arm64", "aarch64", "x86_64"."""
    chip: str
    cores: int
    """Cores this process may use: affinity and container quota are honoured."""
    total_memory: int
    """Of the machine, or of the container if that is less."""
    available_memory: int
    """What can be had now without swapping."""
    in_container: bool = False
    """True if a control group, not the machine, sets `total_memory`."""
    rosetta: bool = False
    """True if this Python is an x86_64 one, translated on an Apple chip."""
    gpu: str | None = None
    """The NVIDIA card, None without one. An Apple chip's GPU has no other name than the chip."""
    gpu_cores: int | None = None
    """Of an Apple chip."""
    python: str = platform.python_version()
    mlx: str | None = None
    """MLX's version, None if it cannot be imported."""
    mlx_error: str | None = None
    """One line: why not."""
    wheels: tuple[str, ...] = ()
    """Installed ones of WHEELS, of which there must be one: two overwrite each other's files."""
    backend: str | None = None
    """What MLX computes on here: "metal", "cuda" or "cpu"."""
    device: Mapping[str, str | int] = field(default_factory=dict)
    """mx.device_info()."""
    published_gb_s: float | None = None
    """What the maker promises (memory/chips.py)."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """What `tinymlx bench` measured here (memory/measured.py)."""

    @property
    def bandwidth_gb_s(self) -> float | None:
        """The better founded of the two: what was read here, else what the maker promises."""
        return self.measured.get("read_gb_s") or self.published_gb_s

    def as_dict(self) -> dict:
        return asdict(self) | {"bandwidth_gb_s": self.bandwidth_gb_s}


def inspect(*, isolated: bool = True) -> Machine:
    """Look at this machine.

    MLX is asked in a child process (half a second) unless this process has imported it already or `isolated` is False:
    an MLX that kills its process, as one built for another macOS or processor does, must not kill `tinymlx doctor`.
    """
    total, available, in_container = memory()
    mlx = probe_mlx() if isolated and "mlx.core" not in sys.modules else _describe_mlx_here()
    chip, gpu, cores_of_gpu = chip_name(), nvidia_gpu(), gpu_cores()
    return Machine(
        system=platform.system(),
        release=release(),
        architecture=platform.machine(),
        chip=chip,
        cores=usable_cores(),
        total_memory=total,
        available_memory=available,
        in_container=in_container,
        rosetta=under_rosetta(),
        gpu=gpu,
        gpu_cores=cores_of_gpu,
        mlx=mlx.get("version"),
        mlx_error=mlx.get("error"),
        wheels=installed_wheels(),
        backend=mlx.get("backend"),
        device=mlx.get("device", {}),
        published_gb_s=published_bandwidth(chip, gpu if mlx.get("backend") != "cpu" else None, cores_of_gpu),
        measured=measured.load(fingerprint()),
    )


def measured_bandwidth() -> float | None:
    """GB/s that `tinymlx bench` read from the memory MLX computes in on this machine, None if it never ran here."""
    return measured.load(fingerprint()).get("read_gb_s")


def save_measurements(rates: Mapping[str, float]) -> Path:
    """Keep the rates of `tinymlx bench`, keys measured.KEYS, for this machine. Returns the file; raises OSError if it
    cannot be written.
    """
    return measured.save(fingerprint(), rates)


def fingerprint() -> str:
    """Names a machine and back end among those that share a home folder. Nothing personal in it, and no MLX needed for
    it.
    """
    parts = chip_name(), nvidia_gpu() or gpu_cores() or "", usable_cores(), "+".join(installed_wheels())
    return " | ".join(str(part) for part in parts)


# MLX ------------------------------------------------------------------------------------------------------------------


def installed_wheels() -> tuple[str, ...]:
    """Those of WHEELS that are installed, by their metadata alone."""
    found = []
    for name in WHEELS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version(name)
            found.append(name)
    return tuple(found)


def describe_mlx() -> dict:
    """{"version", "backend", "device"} of the MLX in this process. Imports it and computes 1 + 1; raises what that
    raises.
    """
    import mlx.core as mx

    mx.eval(mx.ones(1) + 1)
    on_gpu = mx.default_device() == mx.Device(mx.gpu)
    backend = "cpu" if not on_gpu else "metal" if mx.metal.is_available() else "cuda"
    return {"version": mx.__version__, "backend": backend, "device": dict(mx.device_info())}


def _describe_mlx_here() -> dict:
    try:
        return describe_mlx()
    except Exception as error:  # whatever a broken installation raises is a fact about this machine
        return {"error": _one_line(error)}


def probe_mlx(python: str = sys.executable) -> dict:
    """`describe_mlx` in a child process; {"error": one line} if it raises, dies or hangs."""
    code = "import json; from tinymlx.memory import machine; print(json.dumps(machine.describe_mlx()))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        child = subprocess.run(
            [python, "-c", code], env=environment, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return {"error": f"importing MLX took more than {PROBE_TIMEOUT_S} s"}
    if child.returncode < 0:
        return {"error": f"importing MLX killed Python with signal {-child.returncode}"}
    if child.returncode:
        return {"error": _one_line(child.stderr.strip().rpartition("\n")[2] or f"exit status {child.returncode}")}
    return json.loads(child.stdout.splitlines()[-1])


def _one_line(error: object) -> str:
    return " ".join(str(error).split()) or type(error).__name__


# Chip and system ------------------------------------------------------------------------------------------------------


def sysctl(name: str) -> str:
    """A macOS kernel value, "" where there is none (elsewhere always)."""
    return _output(["/usr/sbin/sysctl", "-n", name]) if platform.system() == "Darwin" else ""


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def under_rosetta() -> bool:
    """True for an x86_64 Python on an Apple chip, for which there is no MLX."""
    return sysctl("sysctl.proc_translated") == "1"


def chip_name(cpuinfo: Path = Path("/proc/cpuinfo"), model: Path = Path("/sys/firmware/devicetree/base/model")) -> str:
    """As in "Apple M4 Max", "AMD EPYC 9554 64-Core Processor"; the bare architecture where nothing says more."""
    if brand := sysctl("machdep.cpu.brand_string"):
        return brand
    with contextlib.suppress(OSError):
        if match := re.search(r"^(?:model name|Hardware)\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE):
            return match[1].strip()
    with contextlib.suppress(OSError):  # arm64 boards; arm64 servers often have neither
        return model.read_text().strip("\0\n ")
    return platform.machine()


def nvidia_gpu(drivers: Path = Path("/proc/driver/nvidia/gpus")) -> str | None:
    """The first NVIDIA card's name as its driver gives it, without MLX and without nvidia-smi."""
    for information in sorted(drivers.glob("*/information")):
        with contextlib.suppress(OSError):
            if match := re.search(r"^Model:\s*(.+)$", information.read_text(), re.MULTILINE):
                return match[1].strip()
    return None


def gpu_cores() -> int | None:
    """GPU cores of an Apple chip: one name is sold with different numbers of them, and with different bandwidths."""
    if platform.system() != "Darwin":
        return None
    return parse_ioreg(_output(["/usr/sbin/ioreg", "-rd1", "-c", "AGXAccelerator"]))


def parse_ioreg(text: str) -> int | None:
    """`"gpu-core-count" = 40` among other lines -> 40."""
    match = re.search(r'"gpu-core-count"\s*=\s*(\d+)', text)
    return int(match[1]) if match else None


def release() -> str:
    if platform.system() == "Darwin":
        return f"macOS {platform.mac_ver()[0]}"
    with contextlib.suppress(OSError):
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.platform())
    return platform.platform()
