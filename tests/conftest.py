"""Environment, jax configuration and the `interpret` fixture of all tests."""

import os

# Before jax loads. The tests run on the CPU, and libtpu only compiles: it must not look for a TPU,
# ask a metadata server, lock out the other test processes, or write its log to the terminal.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
os.environ.setdefault("TPU_STDERR_LOG_LEVEL", "3")
os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import pytest
from jax.experimental.pallas import tpu as pltpu

from blockattn._compat import interpret_mode

# The interpreter that emulates TPU memory calls back into Python, which now and then hangs for good
# when the CPU computes in the background (jax-ml/jax#25861).
jax.config.update("jax_cpu_enable_async_dispatch", False)


@pytest.fixture(params=["plain", "tpu"])
def interpret(request):
  """Runs the test in the plain interpreter, then in the one that emulates TPU memory."""
  with interpret_mode(True if request.param == "plain" else pltpu.InterpretParams()):
    yield request.param
  if request.param == "tpu":
    pltpu.reset_tpu_interpret_mode_state()  # else a kernel that raised fails all that come after it
