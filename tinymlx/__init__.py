"""tinymlx: run, serve and fine-tune Qwen3 in unified memory.

Importing this package imports neither MLX nor transformers. It only arranges that a fast BLAS is loaded when `mlx.core` is
first imported on a Linux CPU (`tinymlx.blas`), because a BLAS loaded later is not used.
"""

__version__ = "0.1.0"
