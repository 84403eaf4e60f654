"""Make the golden values: logits and greedy tokens of tiny random models, from transformers in float32 on a CPU.

    python tests/golden/make_golden.py            # writes tests/golden/data/*.npz and manifest.json
    python tests/golden/make_golden.py --check    # computes them again and compares

Needs torch and transformers in the versions that manifest.json records (see README.md beside this file), not tinymlx.

Each `<case>.npz` holds, for the case's checkpoint (regenerated from its seed by tests/tiny.py):
    logits_<L>   [rows, vocab] float32   logits after the prompt of L tokens, at positions rows_of(L)
    greedy       [64] int32              greedy continuation of the 33-token prompt, every step from the whole sequence
    logits_last  [vocab] float32         the logits that chose the 64th token: the longest context
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import tiny  # noqa: E402
from golden.cases import CASES, NEW_TOKENS, PROMPT_LENGTHS, Case, rows_of  # noqa: E402

DATA = HERE / "data"
MIN_MARGIN = 1e-2  # of the best token over the next one, on every greedy step: float32 noise is below 1e-4
MIN_ROUTER_MARGIN = 1e-4  # of the last chosen expert's probability over the first one left out
MIN_DISTINCT = 12  # a path that repeats a few tokens would hide faults


def load(folder: Path) -> torch.nn.Module:
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    wrong = {key: value for key, value in info.items() if value}
    if wrong:
        raise SystemExit(f"{folder}: transformers did not load this checkpoint cleanly: {wrong}")
    return model.eval()


def router_margins(model: torch.nn.Module) -> list[float]:
    """Filled by each later forward pass: the smallest gap between the last chosen expert and the first left out."""
    margins: list[float] = []

    def record(router, inputs, output):
        probabilities = torch.softmax(output[0], dim=-1).sort(dim=-1, descending=True).values
        margins.append(float((probabilities[:, router.top_k - 1] - probabilities[:, router.top_k]).min()))

    for module in model.modules():
        if type(module).__name__ == "Qwen3MoeTopKRouter":
            module.register_forward_hook(record)
    return margins


@torch.no_grad()
def compute(case: Case, folder: Path) -> tuple[dict[str, np.ndarray], dict]:
    """The arrays and the figures (margins, spread) of one case."""
    tiny.write_checkpoint(folder, model_type=case.model_type, seed=case.seed, **case.overrides)
    model = load(folder)
    vocab = model.config.vocab_size
    sampled = case.sampled_vocab or vocab
    margins = router_margins(model)

    def logits(tokens: list[int]) -> torch.Tensor:
        return model(torch.tensor([tokens]), use_cache=False).logits[0]

    arrays = {}
    for length in PROMPT_LENGTHS:
        tokens = tiny.prompt(length, sampled, case.seed)
        arrays[f"logits_{length}"] = logits(tokens)[list(rows_of(length))].numpy()
    greedy, gaps = [], []
    padding_ahead = 0
    for _ in range(NEW_TOKENS):
        last = logits(tokens + greedy)[-1]
        padding_ahead += int(last.argmax()) >= sampled
        best = torch.topk(last[:sampled], 2)
        gaps.append(float(best.values[0] - best.values[1]))
        greedy.append(int(best.indices[0]))
    arrays["greedy"] = np.array(greedy, np.int32)
    arrays["logits_last"] = last.numpy()

    # transformers' own cache must agree with it on the same path; a window's cache too.
    if sampled == vocab:
        prompt = torch.tensor([tokens])
        cached = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),  # else guessed: prompt tokens equal to the pad token are hidden
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert cached[0, len(tokens) :].tolist() == greedy, "transformers: cached generation differs from uncached"
    double = model.double()(torch.tensor([tokens + greedy[:-1]]), use_cache=False).logits[0, -1].float()
    figures = {
        "smallest_margin": round(min(gaps), 5),
        "distinct_greedy_tokens": len(set(greedy)),
        "logits_std": round(float(last.std()), 3),
        "largest_logit": round(float(last.abs().max()), 3),
        "float32_noise": float(f"{float((double - last).abs().max() / last.abs().max()):.1e}"),
    }
    if case.sampled_vocab:
        figures["steps_where_padding_leads"] = padding_ahead
    if margins:
        figures["smallest_router_margin"] = float(f"{min(margins):.2g}")
    return arrays, figures


def weak(figures: dict) -> bool:
    """Whether rounding could move a choice, or the path shows too little."""
    return (
        figures["smallest_margin"] < MIN_MARGIN
        or figures.get("smallest_router_margin", 1.0) < MIN_ROUTER_MARGIN
        or figures["distinct_greedy_tokens"] < MIN_DISTINCT
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the stored values instead of writing them")
    parser.add_argument("--find-seeds", action="store_true", help="for a weak case, print the first seed that is not")
    parser.add_argument("cases", nargs="*", help="names of cases (default: all)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    DATA.mkdir(exist_ok=True)
    names = options.cases or list(CASES)
    manifest_file = DATA / "manifest.json"
    manifest = json.loads(manifest_file.read_text()) if manifest_file.exists() else {"cases": {}}
    failed = []
    for name in names:
        case = CASES[name]
        with tempfile.TemporaryDirectory() as folder:
            arrays, figures = compute(case, Path(folder))
        print(name, figures, "WEAK" if weak(figures) else "", flush=True)
        if weak(figures):
            failed.append(name)
            for seed in range(1, 200 if options.find_seeds else 0):
                other = Case(case.model_type, case.overrides, seed, case.sampled_vocab)
                with tempfile.TemporaryDirectory() as folder:
                    found = compute(other, Path(folder))[1]
                if not weak(found):
                    print(f"    seed {seed}: {found}", flush=True)
                    break
        elif options.check:
            stored = np.load(DATA / f"{name}.npz")
            largest = max(float(np.abs(stored[key] - arrays[key]).max()) for key in arrays)
            print(f"    largest difference from the stored values: {largest:.1e}")
            if largest > 1e-4 or set(stored) != set(arrays):
                failed.append(name)
        else:
            np.savez_compressed(DATA / f"{name}.npz", **arrays)
            manifest["cases"][name] = figures
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")
    if not options.check:
        manifest["versions"] = {
            "torch": torch.__version__.split("+")[0],
            "transformers": transformers.__version__,
            "numpy": np.__version__,
        }
        manifest["cases"] = {name: manifest["cases"][name] for name in CASES if name in manifest["cases"]}
        manifest_file.write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()
