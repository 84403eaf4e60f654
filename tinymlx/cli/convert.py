"""tinymlx convert: quantise, dequantise or cast a model into a folder."""

from pathlib import Path
from typing import Any

import click


@click.command()
@click.option(
    "--model",
    "--hf-path",
    "model",
    required=True,
    metavar="NAME",
    help="Folder, .gguf file, `smollm2`, or owner/name[@revision] on the Hugging Face hub.",
)
@click.option(
    "--mlx-path",
    default="mlx_model",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder to write; it must not exist, or be empty.",
)
@click.option("-q", "--quantize", is_flag=True, help="Quantise the weights.")
@click.option("--q-bits", type=int, help="Bits a weight: 2, 3, 4, 5, 6 or 8. Default 4.")
@click.option("--q-group-size", type=int, help="Weights that share a scale: 32, 64 or 128. Default 64.")
@click.option("--q-mode", type=click.Choice(["affine", "mxfp4"]), default="affine", show_default=True)
@click.option(
    "--quant-predicate",
    type=click.Choice(["mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6"]),
    help="Give sensitive layers the second number of bits and all others the first.",
)
@click.option("-d", "--dequantize", is_flag=True, help="Turn quantised weights back into floats.")
@click.option(
    "--dtype",
    type=click.Choice(["float16", "bfloat16", "float32"]),
    help="Of weights that are not quantised. Default: the config's torch_dtype, or as they are.",
)
def command(model: str, mlx_path: Path, **flags: Any) -> None:
    """Convert a model into a folder that tinymlx and mlx-lm load, with SHA-256 sums that are checked on loading."""
    from tinymlx.hub import resolve
    from tinymlx.models.convert import Options, convert

    options = Options(**flags)
    summary = convert(resolve(model), mlx_path, options)
    click.echo(f"{summary.folder}: {summary.nbytes / 1e9:.2f} GB, {summary.bits_per_weight:.2f} bits a weight")
