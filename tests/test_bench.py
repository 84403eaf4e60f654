"""tinymlx bench: that it counts right and says what it did. How fast anything is, no test asks."""

import json
import time

import pytest
from click.testing import CliRunner
from test_memory import GB, a_mac, a_machine

from tinymlx.bench import bandwidth, roofline
from tinymlx.cli import bench
from tinymlx.memory import machine, measured, sizes
from tinymlx.memory.sizes import SIZES

MIB = 2**20


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_median_and_best_and_the_warm_up(monkeypatch):
    clock = iter([0.0, 1, 5, 6, 7, 8, 10])  # trials of 4, 1 and 2 seconds
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock, 99.0))
    trials = []
    rate = bandwidth.measure("read", "us", "GB/s", 8.0, lambda: trials.append(1), seconds=0)
    assert len(trials) == bandwidth.WARM_UP + bandwidth.FEWEST_TRIALS
    assert rate.trials == bandwidth.FEWEST_TRIALS
    assert (rate.median, rate.best) == (8.0 / 2, 8.0 / 1)


def counted(monkeypatch, work) -> float:
    """The amount that `work` gives to `measure`, having run the trial once."""
    seen = []

    def record(name, by, unit, amount, trial, seconds):
        trial()
        seen.append(amount)
        return bandwidth.Rate(name, by, unit, 1.0, 1.0, 1)

    monkeypatch.setattr(bandwidth, "measure", record)
    work()
    return seen[0]


def test_bytes_that_are_counted(monkeypatch):
    nbytes = 8 * MIB
    for work in (bandwidth.numpy_read, bandwidth.numpy_copy, bandwidth.numpy_scale):
        assert counted(monkeypatch, lambda: work(nbytes, 2, 0)) == nbytes / 1e9
    for work in (bandwidth.mlx_read, bandwidth.mlx_copy, bandwidth.mlx_scale):
        assert counted(monkeypatch, lambda: work(nbytes, 0)) == nbytes / 1e9


def test_the_buffers_are_what_is_counted(monkeypatch):
    """A read goes over N bytes; a copy reads N / 2 and writes N / 2."""
    parts = bandwidth.touched(8 * MIB, 3)
    assert sum(part.nbytes for part in parts) == 8 * MIB and len(parts) == 3
    assert sum(b.nbytes for b in bandwidth._buffers(8 * MIB)) == 8 * MIB
    made = []
    monkeypatch.setattr(bandwidth, "touched", lambda nbytes, threads: made.append(nbytes) or parts)
    bandwidth.numpy_copy(8 * MIB, 3, 0)
    assert made == [4 * MIB, 4 * MIB]


@pytest.mark.parametrize("packing", ["4bit", "8bit", "bf16"])
def test_bytes_of_a_matvec(monkeypatch, packing):
    import mlx.core as mx

    shapes, least = [(256, 128), (128, 256)], MIB
    amount = counted(monkeypatch, lambda: bandwidth.matvec(packing, mx.float32, shapes, least, 0))
    pairs = round(least / (2 * 256 * 128 * sizes.bytes_per_weight(packing, 4)))
    assert amount * 1e9 == pytest.approx(pairs * 2 * 256 * 128 * sizes.bytes_per_weight(packing, 4))


def test_a_weight_keeps_a_vector_s_length():
    import mlx.core as mx

    (weight,) = bandwidth._weight((512, 256), None, mx.float32, 0)
    assert weight.shape == (512, 256)
    assert mx.var(weight).item() == pytest.approx(1 / 256, rel=0.1)


def test_buffers_dwarf_the_cache_and_spare_the_machine(tmp_path):
    for level, size in enumerate(("32K", "512K", "96M")):
        (tmp_path / f"index{level}").mkdir()
        (tmp_path / f"index{level}" / "size").write_text(size + "\n")
    assert bandwidth.last_cache_bytes(tmp_path) == 96 * MIB
    assert bandwidth.last_cache_bytes(tmp_path / "absent") >= MIB
    for one in (a_machine(), a_mac(), a_machine(backend="cuda", device={"free_memory": 140 * GB})):
        assert 8 * bandwidth.last_cache_bytes() < bandwidth.buffer_bytes(one) <= 5 * GB
    assert bandwidth.buffer_bytes(a_machine(available_memory=GB)) <= GB // 8


def test_keys_of_each_back_end():
    for one in (a_machine(), a_mac(), a_machine(backend="cuda", device={"free_memory": 140 * GB})):
        keys = [task.key for task in bandwidth.tasks(one) if task.key]
        assert sorted(keys) == sorted(measured.KEYS)


# Roofline -------------------------------------------------------------------------------------------------------------


def test_the_roof():
    roof = roofline.Roof(gb_s=100, tflop_s=2)
    assert roof.ridge == 20
    assert [roof.at(intensity) for intensity in (1, 20, 1000)] == [0.1, 2, 2]


def test_decode_is_bound_by_memory_and_prefill_by_arithmetic():
    roof = roofline.Roof(gb_s=273, tflop_s=8)
    works = roofline.qwen3("4bit", roof, 2)
    assert [work.model for work in works[::2]] == [size.name for size in SIZES]
    assert {work.bound_by for work in works if work.phase == "decode"} == {"memory"}
    assert {work.bound_by for work in works if work.phase == "prefill"} == {"arithmetic"}


def test_decode_at_no_context_is_bandwidth_over_weights():
    size = next(size for size in SIZES if size.name == "Qwen3-4B")
    work = roofline.decode(size, "4bit", roofline.Roof(100, 1e6), 2, context=0)
    assert work.tokens_per_s == pytest.approx(100e9 / sizes.bytes_per_token(size, "4bit"))
    assert work.intensity == pytest.approx(2 / 0.5625)
    further = roofline.decode(size, "4bit", roofline.Roof(100, 1e6), 2, context=4096)
    assert further.tokens_per_s == pytest.approx(100e9 / (sizes.bytes_per_token(size, "4bit") + 4096 * 144 * 1024))


def test_prefill_projects_no_token_but_the_last_to_the_vocabulary():
    size = next(size for size in SIZES if size.name == "Qwen3-0.6B")
    work = roofline.prefill(size, "4bit", roofline.Roof(1e9, 8), 2, chunk=2)
    assert work.tokens_per_s == pytest.approx(8e12 / (2 * 440_401_920 + 4 * 16 * 128 * 28))


def test_the_drawing():
    roof = roofline.Roof(gb_s=100, tflop_s=2)
    points = [roofline.Point("d", 3.5, roof.at(3.5)), roofline.Point("p", 1500, 2), roofline.Point("x", 3.5, 0.01)]
    lines = roofline.draw(roof, points, width=72, height=16).splitlines()
    assert all(len(line) <= 72 for line in lines)
    rows = list(enumerate(lines[1:]))
    where = {mark: (row, line.index(mark, 10)) for row, line in rows for mark in "dpx" if mark in line[10:]}
    assert where["p"][0] < where["d"][0] < where["x"][0]  # higher is faster
    assert where["d"][1] == where["x"][1] < where["p"][1]  # further right is more operations a byte
    assert any("-----" in line and line.strip().startswith("2 |") for line in lines)
    for corner in (roofline.Point("c", 1e-3, 1e-6), roofline.Point("c", 1e6, 1e3)):
        assert "c" in roofline.draw(roof, [corner])


# The command ----------------------------------------------------------------------------------------------------------


@pytest.mark.capability("bench")
def test_bench_as_json(cache):
    done = CliRunner().invoke(bench.command, ["--seconds", "0.1", "--scale", "0.002", "--json", "-"])
    assert done.exception is None, done.output
    report = json.loads(done.output)
    kept = {rate["key"] for rate in report["rates"] if rate["key"]}
    assert kept == set(measured.KEYS)
    assert all(0 < rate["median"] <= rate["best"] and rate["trials"] >= 3 for rate in report["rates"])
    assert report["roof"]["gb_s"] > 0 and len(report["qwen3_4bit"]) == 14
    assert machine.measured_bandwidth() is None  # sizes of a test say nothing about the machine


def test_bench_keeps_what_it_measured(cache, monkeypatch):
    rates = {key: float(i + 1) for i, key in enumerate(measured.KEYS)}
    made = {key: bandwidth.Rate("n", "b", "u", rate, rate, 9) for key, rate in rates.items()}
    tasks = [bandwidth.Task(key, key, lambda s, rate=rate: rate) for key, rate in made.items()]
    monkeypatch.setattr(bandwidth, "tasks", lambda machine, scale: tasks)
    done = CliRunner().invoke(bench.command, ["--json", str(cache / "out.json")])
    assert done.exception is None, done.output
    assert machine.measured_bandwidth() == rates["read_gb_s"]
    assert json.loads((cache / "out.json").read_text())["roof"]["tflop_s"] == rates["matmul_tflop_s"]
    assert "TFLOP/s over FLOP a byte" in done.output and "Qwen3-30B-A3B" in done.output
    done = CliRunner().invoke(bench.command, ["--json", str(cache / "absent" / "out.json")])
    assert "cannot be written" in str(done.exception)


def test_the_roof_is_of_best_trials_and_a_matvec_of_its_median():
    rate = bandwidth.Rate("n", "b", "u", 1.0, 2.0, 9)
    assert bandwidth.counts("read_gb_s", rate) == 2.0
    assert bandwidth.counts("matvec_4bit_gb_s", rate) == 1.0


# Where a step's time goes ---------------------------------------------------------------------------------------------


def test_a_profile_counts_every_call_and_every_byte():
    import mlx.core as mx
    from tiny import tiny_config, tiny_weights

    from tinymlx.bench import profile
    from tinymlx.models.config import ModelConfig
    from tinymlx.models.qwen3 import Qwen3

    raw = tiny_config("qwen3", tie_word_embeddings=True)
    model = Qwen3(ModelConfig.from_dict(raw), {name: mx.array(a) for name, a in tiny_weights(raw).items()})
    step_s, parts = profile.profile(model, 33, 0)
    layers = model.config.num_hidden_layers
    calls = {"embed": 1, "head": 1, "linear_residual": 2 * layers}
    assert {p.name: p.calls for p in parts} == {name: calls.get(name, layers) for name in profile.CONTAINS}
    assert step_s > 0 and all(p.seconds > 0 for p in parts)
    everything = model.nbytes_per_token + 33 * model.kv_nbytes_per_token
    assert sum(p.nbytes for p in parts) == pytest.approx(everything, rel=0.05)  # norms are counted at both prices


def test_bench_of_a_model(cache):
    from small_tokenizers import gpt2_pre_tokenizer, train_byte_level
    from tiny import write_checkpoint

    folder = write_checkpoint(cache / "tiny", vocab_size=640)
    train_byte_level(gpt2_pre_tokenizer()).save(str(folder / "tokenizer.json"))
    arguments = ["--model", str(folder), "--context", "7", "--seconds", "0.05"]
    assert "has not been measured" in str(CliRunner().invoke(bench.command, arguments).exception)
    machine.save_measurements({"read_gb_s": 10.0, "matmul_tflop_s": 0.1})
    done = CliRunner().invoke(bench.command, arguments)
    assert done.exception is None and "A call costs" in done.output, done.output
    report = json.loads(CliRunner().invoke(bench.command, [*arguments, "--json", "-"]).output)
    for operation in report["operations"]:
        assert sum(operation["split_s"].values()) == pytest.approx(operation["seconds"])


def test_bench_with_a_learners_functions(cache, monkeypatch):
    from tinymlx.learn.days import find_day

    monkeypatch.chdir(cache)
    mine = find_day("2.1").mine
    mine.parent.mkdir(parents=True)
    mine.write_text("def attainable(intensity, gb_s, tflop_s):\n    return 2.5\n")
    done = CliRunner().invoke(
        bench.command, ["--mine", "2.1", "--seconds", "0.05", "--scale", "0.002", "--json", "-"], catch_exceptions=False
    )
    report = json.loads(done.stdout)
    flops = sizes.flops_per_token(SIZES[0], roofline.CONTEXT)
    assert report["qwen3_4bit"][0]["tokens_per_s"] == pytest.approx(2.5e12 / flops)


def test_the_limit_beside_an_answer(cache):
    from tinymlx.cli.report import at_most, summary
    from tinymlx.engine.generate import Stats

    stats = Stats(5, 0, 1.0, 11, 2.0, weight_bytes_per_token=10**9, kv_bytes_per_token=10**7, context_tokens=105)
    assert at_most(stats) == ""
    machine.save_measurements({"read_gb_s": 20.0})
    assert "5.0 tok/s (at most 10.0)" in summary(stats)
