"""Benchmarks, one absl-flag binary per question: `python -m benchmarks.attention`, `.matmul`.

Importing the package keeps libtpu quiet where there is no TPU. Python imports a package before its
modules, so this runs before any benchmark imports jax.
"""

from benchmarks import _platform

_platform.quiet_libtpu()
