"""Which kernels serve: signatures, trials in child processes, kept verdicts, and that nothing a kernel does breaks a chat."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import mlx.core as mx
import pytest
from fake_operation import command, fake
from test_session import PROMPT, Letters, answer, greedy, model  # noqa: F401 - a fixture

from tinymlx import kernels, ops
from tinymlx.cache import KVView
from tinymlx.cli.report import kernels_served
from tinymlx.engine import Session
from tinymlx.kernels import metal, route, signature, trial, trust
from tinymlx.kernels.route import Route
from tinymlx.memory import verdicts
from tinymlx.memory.verdicts import Verdict

pytestmark = pytest.mark.capability("kernels chosen by trial")

RIGHT = Verdict("right", 0.25, 1.5)


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """Routes are chosen as on a GPU with nothing kept yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TINYMLX_KERNELS", raising=False)
    monkeypatch.setattr(trust, "device", lambda: "a pretended GPU")
    monkeypatch.setattr(trust, "command", command)
    monkeypatch.setattr(trust, "WAIT_S", 60)
    monkeypatch.setattr(trust, "here", trust.Trust())
    monkeypatch.setitem(route.operations, "fake", fake)
    monkeypatch.setattr(route, "_served", {})
    yield
    trust.here.finish()


def arguments(kind, rows=1, size=64):
    x = mx.random.normal((1, rows, size), key=mx.random.key(rows))
    return x, ops.Linear(mx.random.normal((size, size), key=mx.random.key(0))), kind


def line(*args, **kwargs):
    return json.dumps(("fake", signature.describe(args, kwargs)), default=str)


def packed(rows, columns, dtype, mode="affine", bits=4, **others):
    group_size = 32 if mode == "mxfp4" else 64
    arrays = mx.quantize(mx.zeros((rows, columns), dtype), group_size=group_size, bits=bits, mode=mode)
    return ops.Linear(
        arrays[0], None, arrays[1], *arrays[2:] or (None,), ops.Quantization(group_size, bits, mode), **others
    )


# Signatures


def test_arguments_drawn_from_a_signature_have_it():
    x, norm = mx.zeros((2, 3, 128), mx.bfloat16), mx.ones(128)
    lora = ops.Lora(mx.zeros((2, 128)), mx.zeros((256, 2)), 0.5, mx.ones(256))
    view = KVView(mx.zeros((12, 2, 16, 64)), mx.zeros((2, 4), mx.int32), mx.zeros(2, mx.int32), 3, mx.ones(2, mx.int32))
    weights = [
        packed(256, 128, mx.float16, lora=lora),
        packed(8, 128, mx.float32, bits=8),
        packed(8, 128, x.dtype, "mxfp4"),
    ]
    weights += [ops.Linear(mx.zeros((8, 128)), mx.zeros(8)), ops.Linear(mx.zeros((4, 8, 128)))]
    calls = [((x, norm, 1e-6, *weights), {"top_k": 2, "normalize": True}), ((x, view), {"window": None})]
    calls += [((mx.zeros((2, 3), mx.int32), mx.zeros(2, mx.int32), mx.float16, KVView.empty(2)), {})]
    for args, kwargs in calls:
        wanted = signature.describe(args, kwargs)
        args, kwargs = signature.draw(json.loads(json.dumps(wanted, default=str)), seed=1)
        assert signature.describe(args, kwargs) == wanted
        wide = signature.in_float32((args, kwargs))
        found = []
        signature.mapped(lambda a: found.append(a if isinstance(a, mx.Dtype) else a.dtype), wide)
        assert not {mx.float16, mx.bfloat16} & set(found)
    with pytest.raises(TypeError, match="set"):
        signature.describe([set()], {})


def test_rows_count_exactly_up_to_16_and_then_as_powers_of_two():
    def shapes(*args):
        return [a[1] for a in signature.describe(args, {})[0]]

    def x(batch, tokens):
        return mx.zeros((batch, tokens, 48)), mx.zeros((batch, 6, tokens, 8)), mx.zeros((batch, tokens), mx.int32)

    assert shapes(*x(1, 13), mx.zeros(48)) == [(1, 13, 48), (1, 6, 13, 8), (1, 13), (48,)]
    assert shapes(*x(4, 5), mx.zeros(4, mx.int32)) == [(4, 8, 48), (4, 6, 8, 8), (4, 8), (4,)]
    assert shapes(*x(20, 1), mx.zeros(20, mx.int32)) == [(32, 1, 48), (32, 6, 1, 8), (32, 1), (32,)]


def test_large_matrices_have_the_same_packing():
    w = packed(96, 128, mx.float16, bits=8, lora=ops.Lora(mx.zeros((2, 128)), mx.zeros((96, 2)), 0.5))
    args = (mx.zeros((1, 3, 128)), mx.ones(128), 1e-6, w, mx.zeros((1, 3, 96)))
    (x, norm, _, w, residual), _ = signature.draw(signature.enlarged(signature.describe(args, {})), 0)
    assert x.shape == residual.shape == (1, 3, 2048) and norm.shape == (2048,) and w.quantization == (64, 8, "affine")
    assert ops.linear(x, w).shape == (1, 3, 2048)
    assert signature.enlarged(signature.describe((x, w), {})) is None  # large already
    assert signature.enlarged(signature.describe((x, norm), {})) is None
    experts = ops.Linear(mx.zeros((4, 96, 128)))  # as many as the router has rows
    assert (
        signature.enlarged(signature.describe((mx.zeros((1, 3, 128)), packed(8, 128, mx.float32), experts), {})) is None
    )


def test_drawn_layers_give_about_1():
    x = mx.zeros((1, 4, 512))
    for w in (packed(256, 512, mx.float32), packed(256, 512, mx.float32, bits=8), packed(256, 512, mx.float32, "mxfp4"),
              ops.Linear(mx.zeros((256, 512)))):  # fmt: skip
        (x, w), _ = signature.draw(signature.describe((x, w), {}), 3)
        assert 0.5 < mx.sqrt(mx.mean(ops.linear(x, w) ** 2)).item() < 2


# Trials


def test_an_error_counts_in_roundings_of_the_dtype():
    want = mx.random.normal((4, 4096), key=mx.random.key(0))
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        assert trial.excess(want.astype(dtype), want) < 0.5
        assert trial.excess((want * 1.05).astype(dtype), want) > 1
        got = want.astype(dtype)
        got[2, 77] = 3 if abs(want[2, 77].item() - 3) > 1 else 0  # a single output
        assert trial.excess(got, want) > 1
        got[2, 77] = float("nan")
        assert trial.excess(got, want) > 1e9


def test_a_vocabulary_goes_in_pieces(monkeypatch):
    call = signature.draw(
        signature.describe((mx.zeros((1, 2, 64)), mx.ones(64), 1e-6, packed(96, 64, mx.float32)), {}), 0
    )
    like = [mx.zeros((1, 2, 96))]
    whole = trial._truth(kernels.head.routes["twin"].run, call, like)[0]
    monkeypatch.setattr(trial, "PIECE", 40)
    assert mx.allclose(trial._truth(kernels.head.routes["twin"].run, call, like)[0], whole, atol=1e-6)


def test_what_kernels_do_in_trials():
    """Each kind is found out, and the trials after a crash go on in a new child."""
    kinds, found = ["fast", "crash", "raise", "wrong when large", "slow"], {}
    lines = {line(*arguments(kind)): kind for kind in kinds}
    trials = trust.Trials(lines, lambda verdict: found.update({lines[verdict[0]]: verdict[1]}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trust, "command", command)
        trials.run()
    assert list(found) == kinds and trials.child is None
    fast = found.pop("fast")
    assert fast.outcome == "right" and fast.factor > 2 and fast.error < 1 and fast.objection is None
    assert {kind: verdict.outcome for kind, verdict in found.items()} == {
        "crash": "failed", "raise": "failed", "wrong when large": "wrong", "slow": "right",
    }  # fmt: skip
    assert "ended its process" in found["crash"].detail and found["raise"].detail == "ValueError: no such launch"
    assert found["wrong when large"].error > 1 and "of its bound" in found["wrong when large"].objection
    assert found["slow"].factor < 0.5 and "slower here: 0." in found["slow"].objection


@pytest.mark.full
def test_a_kernel_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(trust, "command", command)
    monkeypatch.setattr(trust, "TRIAL_S", 4)
    lines, found = [line(*arguments(kind)) for kind in ("hang", "wrong")], []
    trust.Trials(lines, found.append).run()
    assert [(signature, verdict.outcome) for signature, verdict in found] == [(lines[0], "failed"), (lines[1], "wrong")]
    assert "took more than 4 s" in found[0][1].detail
    found.clear()
    monkeypatch.setattr(trust, "ALL_S", 3)
    trust.Trials(lines, found.append).run()
    assert not found  # time was up: nobody's fault


@pytest.mark.full
def test_no_child_outlives_the_program(tmp_path):
    program = f"""
import os, sys, time
sys.path.append({str(Path(__file__).parent)!r})
from fake_operation import command, fake
from test_trust import arguments
from tinymlx.kernels import route, trust
trust.device, trust.command, trust.WAIT_S = lambda: "a GPU", command, 3
route.prepare(lambda: fake(*arguments("hang")))
if os.fork() == 0:
    trust.here.prepare(None)
    sys.exit()  # leaves the parent's child alone
os.wait()
print(trust.here._trials.child.pid, trust.here._trials.child.poll(), flush=True)
"""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=30)
    assert done.stderr == "" and done.returncode == 0
    pid, state = done.stdout.split()
    assert state == "None"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


# Choosing


def test_from_unknown_to_trusted_and_kept(gpu, monkeypatch, tmp_path, capfd):
    x, w, kind = arguments("fast")
    key, calls = kernels.compile_key(), []
    assert mx.allclose(fake(x, w, kind), x @ w.weight.T, atol=1e-4)
    assert [s[:3] for s in kernels.services()] == [("fake", "mlx", "not tried yet")]

    kernels.prepare(lambda: calls.append([fake(*arguments(k)) for k in ("raise", "fast")]))
    assert calls and kernels.compile_key() != key
    with monkeypatch.context() as patch:  # who serves now
        patch.setitem(fake.routes, "ours", Route(lambda *_: "ours"))
        assert fake(x, w, kind) == "ours"
        assert fake(*arguments("raise")) != "ours" and fake(*arguments("fast", rows=2)) != "ours"
    served, failed, untried = sorted(kernels.services(), key=lambda s: s.why or "")
    assert (served.route, served.why) == ("ours", None) and served.factor > 2 and served.error < 1
    assert (failed.route, untried.why) == ("mlx", "not tried yet") and "ValueError: no such launch" in failed.why
    (shown,) = kernels_served()
    assert (
        shown.startswith("fake: ours, ")
        and " times as fast as MLX, error 0." in shown
        and "; mlx (failed here: " in shown
    )
    warnings = capfd.readouterr().err
    assert (
        warnings == "warning: our kernel for fake is left out (failed here: ValueError: no such launch); MLX serves\n"
    )

    file = tmp_path / "tinymlx" / "kernels.json"
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    assert verdicts.count() == 2 and list(file.parent.iterdir()) == [file]
    monkeypatch.setattr(trust, "here", trust.Trust())  # the next start
    monkeypatch.setattr(trust, "command", None)
    kernels.prepare(lambda: calls.append([fake(*arguments(k)) for k in ("raise", "fast")]))
    assert {s.route for s in kernels.services()} == {"ours", "mlx"} and capfd.readouterr().err == ""
    for name in ("sources", "device"):
        with monkeypatch.context() as patch:
            patch.setattr(trust, name, lambda: "another")
            assert verdicts.load(trust.machine()) == {}


def know(**kinds):
    """Verdicts on kinds of the fake operation, at 1 row and up to 32."""
    trust.here._known = {line(*arguments(k, rows)): v for k, v in kinds.items() for rows in (1, 32)}


def test_a_kernel_that_raises_after_all_is_left_out(gpu, capfd):
    know(**{"raise": RIGHT})
    for rows in (1, 1, 20):
        x, w, kind = arguments("raise", rows)
        assert mx.allclose(fake(x, w, kind), x @ w.weight.T, atol=1e-4)
        trust.here.take_in()
    assert capfd.readouterr().err.count("\n") == 1 and {s.route for s in kernels.services()} == {"mlx"}


def test_a_verdict_holds_for_rows_rounded_up(gpu, monkeypatch):
    know(fast=RIGHT)
    monkeypatch.setitem(fake.routes, "ours", Route(lambda *_: "ours"))
    served = {rows: fake(*arguments("fast", rows)) == "ours" for rows in (1, 2, 16, 17, 32, 33)}
    assert served == {1: True, 2: False, 16: False, 17: True, 32: True, 33: False}


def test_preferences(gpu, monkeypatch):
    know(fast=Verdict("right", 0.1, 0.9))
    serving = dict(auto="mlx", ours="ours", mlx="mlx", reference="twin")
    for name, routes in {"auto": serving, "cpu": serving}.items():
        if name == "cpu":
            monkeypatch.setattr(trust, "device", lambda: None)
            monkeypatch.setattr(trust.here, "verdict", None)  # never asked
            kernels.prepare(lambda: 1 / 0)
        for choice, expected in routes.items():
            monkeypatch.setenv("TINYMLX_KERNELS", choice)
            route._served.clear()
            fake(*arguments("fast"))
            (service,) = kernels.services()
            assert service.route == expected
            eager = mx.default_device() == mx.cpu and choice in ("auto", "ours")
            assert kernels.traceable() == (not eager)
    monkeypatch.setenv("TINYMLX_KERNELS", "auto")
    route._served.clear()
    fake(*arguments("fast"))
    kernels.head(mx.ones((1, 1, 8)), mx.ones(8), 1e-6, ops.Linear(mx.ones((4, 8))))
    assert kernels_served()[0] == "fake: mlx (on a CPU)"


def test_replaced_files_are_not_trusted(gpu):
    know(fast=RIGHT)
    with metal.overlaid({"rms_norm.metal": "//"}):
        fake(*arguments("fast"))
    assert "are replaced" in kernels.services()[0].why


@pytest.mark.parametrize(
    "child", [["/no/such/python"], [sys.executable, "-c", "print('[0')"], [sys.executable, "-c", "1"]]
)
def test_where_no_child_runs_mlx_serves(gpu, monkeypatch, child):
    monkeypatch.setattr(trust, "command", lambda: child)
    kernels.prepare(lambda: fake(*arguments("fast")))
    assert trust.here._known == {} and not trust.here._wanted


def test_a_session_asks_for_its_prompt_and_its_decoding(gpu, monkeypatch, model):  # noqa: F811
    asked, served = [], []

    class Prompt(trust.Trials):
        """Finds everything right, at once."""

        def run(self):
            for text in self.wanted:
                asked.append(json.loads(text)[0])
                self.report((text, RIGHT))

    def ours(x, *others):
        served.append(x.shape[1])
        return kernels.norm_qkv.routes["mlx"].run(x, *others)

    monkeypatch.setattr(trust, "Trials", Prompt)
    monkeypatch.setitem(kernels.norm_qkv.routes, "ours", Route(ours))
    session = Session(model, Letters())
    assert answer(session, PROMPT, 3) == greedy(model, PROMPT, 3)
    assert asked.count("norm_qkv") == 2 and set(served) >= {len(PROMPT), 1}
    assert any(s[:3] == ("norm_qkv", "ours", None) for s in kernels.services())


# Keeping

GOOD = ["right", 0.25, 1.5, ""]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"here": []}', "\xff", '{"here": {"a": 1}}'] + [
    json.dumps({"here": {"a": bad}})
    for bad in (["fine", *GOOD[1:]], ["right", 0.25, None, ""], ["right", "0", 1.5, ""], ["right", 0.25, 1e999, ""], GOOD[:3], [*GOOD, 1])
])  # fmt: skip
def test_a_damaged_file_is_none(monkeypatch, tmp_path, content):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    verdicts.file().parent.mkdir()
    verdicts.file().write_bytes(content.encode("latin-1"))
    verdicts.file().chmod(0o600)
    assert verdicts.load("here") == {} and verdicts.count() <= 1
    verdicts.save("here", "b", RIGHT)
    assert verdicts.load("here")["b"] == RIGHT
    verdicts.file().chmod(0o666)
    assert verdicts.load("here") == {}


def no_home():
    raise RuntimeError("no home folder")


def test_old_machines_go_first_and_no_cache_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in [*"abcdefgh", "a", "i"]:
        verdicts.save(name, "x", RIGHT)
    assert verdicts.load("b") == {} and verdicts.load("a") == verdicts.load("i") == {"x": RIGHT}
    monkeypatch.setenv("XDG_CACHE_HOME", str(verdicts.file()))  # a file where a folder should be
    verdicts.save("a", "x", RIGHT)
    assert verdicts.load("a") == {}
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    verdicts.save("a", "x", RIGHT)
    assert verdicts.load("a") == {} and verdicts.count() == 0


def test_a_first_token_waits_no_longer_than_said(gpu, monkeypatch):
    monkeypatch.setattr(trust, "WAIT_S", 0.2)
    monkeypatch.setattr(trust, "command", lambda: [sys.executable, "-c", "import time; time.sleep(60)"])
    began = time.monotonic()
    kernels.prepare(lambda: fake(*arguments("fast")))
    child = trust.here._trials.child
    trust.here.finish()
    assert time.monotonic() - began < 5 and child.wait(5) and trust.here._trials.child is None
