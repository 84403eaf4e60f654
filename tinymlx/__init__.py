"""tinymlx: run, serve and fine-tune Qwen3 in unified memory.

Importing this package imports neither MLX nor transformers. It only arranges that a fast BLAS is loaded when `mlx.core` is
first imported on a Linux CPU (`tinymlx.blas`), because a BLAS loaded later is not used.
"""

import sys

__version__ = "0.1.0"


class _BlasBeforeMlx:
    """An import finder that finds nothing: it notices the first import of `mlx.core`, has the BLAS loaded, and leaves."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "mlx.core":
            if cls in sys.meta_path:
                sys.meta_path.remove(cls)
            from tinymlx import blas

            blas.load()
        return None


if sys.platform == "linux" and "mlx.core" not in sys.modules:
    sys.meta_path.insert(0, _BlasBeforeMlx)
