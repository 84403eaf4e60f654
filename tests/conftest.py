"""What holds for every test: no network; a skipped test says why; under TINYMLX_CI=1 SmolLM2 must not be skipped.

Marks (pyproject.toml): `full` for what the short run leaves out, `metal` and `cuda` for what needs such a GPU,
`smollm2` for what needs those weights, `slow`, and `capability` for the lines of the README's status table.
"""

import os
import socket
import sys
from pathlib import Path

import huggingface_hub.constants  # noqa: F401 - reads OFFLINE once: sockets are guarded here, and a fake hub may answer
import pytest
import status

import tinymlx  # noqa: F401 - before a test module imports mlx.core, so that the tests have the fast BLAS

os.environ.setdefault(
    "MLX_ENABLE_TF32", "0"
)  # on CUDA float32 products keep 10 bits otherwise, and references are float64
os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # two spin for 20 ms a product once anything else runs (benchmarks/LOG.md)
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}  # for the processes that tests start
os.environ.update(OFFLINE)
LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0", "::ffff:127.")


def pytest_addoption(parser):
    parser.addoption("--status-out", metavar="FOLDER", help="record each capability there, see tests/status.py")


def pytest_configure(config):
    folder = config.getoption("--status-out")
    if folder:
        config.pluginmanager.register(status.StatusPlugin(Path(folder)))
    forbid_network()


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("metal") and sys.platform != "darwin":
            item.add_marker(pytest.mark.skip(reason="needs an Apple GPU"))
        if item.get_closest_marker("cuda") and not has_cuda():
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(autouse=True)
def children_stay_offline(request):
    """Only a test with a hub of its own, on loopback, lets the processes it starts ask a hub."""
    if "hub" in request.fixturenames:
        for name in OFFLINE:
            os.environ.pop(name, None)
    yield
    os.environ.update(OFFLINE)


def has_cuda() -> bool:
    import mlx.core as mx

    return mx.cuda.is_available()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("TINYMLX_CI") == "1" and on_smollm2(item):
        report.outcome = "failed"
        report.longrepr = f"skipped although TINYMLX_CI=1 demands SmolLM2: {call.excinfo.value}"
    return report


def on_smollm2(item) -> bool:
    names = [item.nodeid, *getattr(item, "fixturenames", ()), *(mark.name for mark in item.iter_markers())]
    return any("smollm2" in name.lower() for name in names)


def forbid_network():
    """Replaces what leaves this machine by an error; loopback and Unix sockets stay."""
    connect, connect_ex, getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def check(host):
        if isinstance(host, bytes):
            host = host.decode()
        if host and not host.startswith(LOOPBACK):
            raise RuntimeError(f"a test must not touch the network: {host}")

    def checked(function):
        def call(self, address):
            if self.family in (socket.AF_INET, socket.AF_INET6):
                check(address[0])
            return function(self, address)

        return call

    def checked_getaddrinfo(host, *arguments, **options):
        check(host)
        return getaddrinfo(host, *arguments, **options)

    socket.socket.connect, socket.socket.connect_ex = checked(connect), checked(connect_ex)
    socket.getaddrinfo = checked_getaddrinfo
