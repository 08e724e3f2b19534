"""Forward attention: every case over every implementation, against the float64 oracle."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

import masks
from blockattn._compat import interpret_mode
from masks import _tile_runs
from tests.attention_cases import CASES, EMULATED
from tests.support import (
  BlockSizes,
  block_sparse_attention,
  draw,
  oracle,
  poison_unread_keys,
  rel_rms,
  tolerance,
)

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
  # The interpreter's programs run once, and most of their time is the compiler's.
  jax.config.update("jax_disable_most_optimizations", mode is not None)
  try:
    with interpret_mode(mode):
      return block_sparse_attention(*args, block_sizes=block_sizes, implementation=name, **kwargs)
  finally:
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(params=["reference", "xla", "pallas"])
def run(request):
  return request.param


@functools.cache
def _expected(name):
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


@pytest.mark.parametrize(
  ("name", "by"), [(n, r) for n in CASES for r in RUNS if r != "pallas, emulated" or n in EMULATED]
)
def test_forward_matches_the_oracle(name, by):
  case, want = _expected(name)
  got = attend(
    by,
    *case.inputs,
    case.mask,
    block_sizes=case.block_sizes,
    return_lse=True,
    **case.options,
  )
  assert got[0].dtype == case.inputs[0].dtype
  assert got[1].dtype == jnp.float32
  assert_attention(got, want, tolerance(case.inputs[0].dtype, case.amplitude))
