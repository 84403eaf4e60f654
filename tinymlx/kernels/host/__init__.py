"""Metal kernels on any CPU: run, and checked. Read `checker.py` first.

A kernel is native code once compiled here: check only files that you trust.
"""

from tinymlx.kernels.host.checker import KINDS, Finding, Kernel, Place, Report, Traffic, check_text, run_text
from tinymlx.kernels.host.compiler import CompileError

__all__ = ["KINDS", "CompileError", "Finding", "Kernel", "Place", "Report", "Traffic", "check_text", "run_text"]
