"""Architectures, their configuration, and the way from a checkpoint's tensors to a model."""
