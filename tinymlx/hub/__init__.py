"""Model files: where they are, what they hold, whether they are whole. Imports nothing of tinymlx but errors.

    name -> resolve -> ModelSource -> open_checkpoint -> Checkpoint.read(tensor)
                                   -> load_tokenizer

The names here cost neither MLX nor huggingface_hub to import.
"""

from tinymlx.hub.download import CachedModel, cached_models
from tinymlx.hub.source import ModelSource, resolve

__all__ = ["CachedModel", "ModelSource", "cached_models", "resolve"]
