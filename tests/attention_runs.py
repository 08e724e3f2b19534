"""The ways to run attention, and the check against the float64 oracle."""

import functools

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from blockattn._compat import interpret_mode
from tests import attention_cases, attention_features  # noqa: F401 (they fill the table)
from tests.attention_case import CASES
from tests.support import BlockSizes, block_sparse_attention, oracle, rel_rms

EMULATED_TPU = pltpu.InterpretParams()

# Name of the implementation and how its kernels run.
RUNS = {
  "reference": ("reference", None),
  "xla": ("xla", None),
  "pallas": ("pallas_tpu", True),
  "pallas, emulated": ("pallas_tpu", EMULATED_TPU),
}
SIZES = BlockSizes(128, 128)


def attend(run, *args, block_sizes=SIZES, **kwargs):
  """`block_sparse_attention` by one of RUNS."""
  name, mode = RUNS[run]
  # Most of the time is the compiler's. Gradients and benchmarks are tested with what a user runs.
  jax.config.update("jax_disable_most_optimizations", True)
  try:
    with interpret_mode(mode):
      return block_sparse_attention(*args, block_sizes=block_sizes, implementation=name, **kwargs)
  finally:
    jax.config.update("jax_disable_most_optimizations", False)
    if mode is EMULATED_TPU:
      pltpu.reset_tpu_interpret_mode_state()  # else a kernel that raised fails all that come after it


def attend_case(by, case, inputs=None, mask=None, **kwargs):
  """The call of a case, with other inputs of the same shape or an equivalent mask."""
  return attend(
    by,
    *(inputs or case.inputs),
    mask or case.mask,
    block_sizes=case.block_sizes,
    **case.options,
    **kwargs,
  )


@functools.cache
def expected(name):
  case = CASES[name]()
  return case, oracle(*case.inputs, case.dense, **case.options)


def assert_attention(got, want, limit):
  """Checks output and lse: rows without key exactly, the others by relative RMS."""
  (out, lse), (want_out, want_lse) = got, want
  out, lse = (np.asarray(x).astype(np.float64) for x in (out, lse))
  assert out.shape == want_out.shape
  assert lse.shape == want_lse.shape
  dead = want_lse == -np.inf
  assert (out[np.moveaxis(dead, -2, -1)] == 0).all()
  np.testing.assert_array_equal(lse == -np.inf, dead)
  np.testing.assert_allclose(lse[~dead], want_lse[~dead], rtol=1e-5, atol=1e-5)
  assert rel_rms(out, want_out) <= limit
