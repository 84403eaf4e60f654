"""From a model to streamed text."""

from tinymlx.engine.generate import Chunk, Session, Stats, Stopped
from tinymlx.engine.sampling import SamplingParams

__all__ = ["Chunk", "SamplingParams", "Session", "Stats", "Stopped"]
