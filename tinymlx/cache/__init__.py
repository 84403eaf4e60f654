"""Data structures of the K/V cache, shared by the engine, which fills them, and the models, which read them."""

from tinymlx.cache.pool import PAGE_SIZE, KVView, PagePool

__all__ = ["PAGE_SIZE", "KVView", "PagePool"]
