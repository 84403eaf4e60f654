"""Options that `generate` and `chat` share, named as in mlx-lm."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from tinymlx.errors import UserError

DEFAULT_MODEL = "smollm2"
DEFAULT_MAX_TOKENS = {"generate": 256, "chat": 2048}


def _logit_bias(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[int, float]:
    biases = {}
    for value in values:
        token, _, bias = value.partition("=")
        try:
            biases[int(token)] = float(bias)
        except ValueError:
            raise click.BadParameter(f"{value!r} is not TOKEN_ID=NUMBER", context, parameter) from None
    return biases


def shared_options(command: str) -> Callable:
    """Decorator: model, sampling and memory options of `command`."""
    options = [
        click.option("--model", default=DEFAULT_MODEL, show_default=True, metavar="NAME",
                     help="Folder, .gguf file, `smollm2`, or owner/name[@revision] on the Hugging Face hub."),
        click.option("--adapter-path", type=click.Path(), help="Folder of a LoRA or DoRA adapter in mlx-lm's format."),
        click.option("--system-prompt", help="System message."),
        click.option("-m", "--max-tokens", type=click.IntRange(1), default=DEFAULT_MAX_TOKENS[command], show_default=True,
                     help="Most tokens of an answer."),
        click.option("--temp", type=float, help="Temperature; 0 is greedy. This and the next three default to the model's generation_config."),
        click.option("--top-p", type=float, help="Keep the most likely tokens that together reach this probability."),
        click.option("--top-k", type=int, help="Keep the k most likely tokens; 0 keeps all."),
        click.option("--min-p", type=float, help="Keep tokens at least this many times as likely as the most likely one."),
        click.option("--repetition-penalty", type=float, help="Divide logits of the last tokens by this; 1 is off."),
        click.option("--repetition-context-size", type=int, help="How many last tokens the repetition penalty looks at."),
        click.option("--presence-penalty", type=float, help="Subtract from logits of tokens generated before."),
        click.option("--frequency-penalty", type=float, help="Subtract for each time a token was generated."),
        click.option("--logit-bias", multiple=True, callback=_logit_bias, metavar="ID=NUMBER", help="Add to a token's logit; repeatable."),
        click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; repeatable."),
        click.option("--seed", type=int, help="Draws are a function of the seed and the position; without one they differ each time."),
        click.option("--think/--no-think", "enable_thinking", default=None, help="Qwen3's thinking; default as the chat template has it."),
        click.option("--max-kv-size", type=click.IntRange(2), metavar="TOKENS",
                     help="Most tokens of context, prompt and answer together. Default: what the model and the memory allow."),
        click.option("--prefill-step-size", type=click.IntRange(1), default=512, show_default=True, help="Prompt tokens computed at a time."),
        click.option("--verbose", is_flag=True, help="Say after an answer which kernels served, and why not ours. TINYMLX_KERNELS=auto, ours, mlx or reference chooses."),
    ]  # fmt: skip

    def decorate(function: Callable) -> Callable:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def sampling_params(flags: Mapping[str, Any], generation_config: Mapping[str, Any]):
    """SamplingParams from flags; what is not given comes from generation_config.json, which samples only with `do_sample`."""
    from tinymlx.engine import SamplingParams

    values: dict[str, Any] = {}
    if generation_config.get("do_sample") is True:
        for key in ("temperature", "top_p", "top_k", "min_p"):
            if generation_config.get(key) is not None:
                values[key] = generation_config[key]
        values.setdefault("temperature", 1.0)
    if generation_config.get("repetition_penalty") is not None:
        values["repetition_penalty"] = generation_config["repetition_penalty"]
    try:
        SamplingParams(**values)
    except UserError as error:
        raise UserError(f"generation_config.json: {error}") from None
    given = {"temperature": flags["temp"], "logit_bias": flags["logit_bias"] or None, "stop": flags["stop"] or None}
    same_name = ("top_p", "top_k", "min_p", "repetition_penalty", "repetition_context_size", "presence_penalty", "frequency_penalty",
                 "seed", "max_tokens", "logprobs")  # fmt: skip
    given |= {name: flags.get(name) for name in same_name}
    values |= {name: value for name, value in given.items() if value is not None}
    return SamplingParams(**values)
