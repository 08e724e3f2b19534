import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

import masks
from blockattn import masked_matmul
from blockattn._compat import interpret_mode
from blockattn._kernels import _limits
from blockattn._kernels import masked_matmul as kernel
from tests.support import rel_rms, tolerance

# (M, K, N, tiles, mask)
CASES = {
  "causal": (256, 16, 256, (64, 128), masks.causal()),
  "window": (256, 16, 256, (64, 128), masks.sliding_window(9)),
  "empty": (256, 16, 256, (64, 128), masks.causal(-500)),
  "ragged": (200, 33, 300, (64, 128), masks.causal(50) & masks.sliding_window(90)),
  "full": (96, 16, 130, None, masks.full()),
}


def operands(m_len, k_len, n_len, dtype="float32"):
  rng = np.random.default_rng(0)
  x, y = rng.standard_normal((m_len, k_len)), rng.standard_normal((k_len, n_len))
  return jnp.asarray(x, dtype), jnp.asarray(y, dtype)


def check(got, x, y, mask, dtype="float32"):
  """The right values where the mask allows them, and exactly 0 elsewhere."""
  x, y = (np.asarray(a).astype(np.float64) for a in (x, y))
  allowed = mask.to_dense(x.shape[-2], y.shape[-1])
  assert rel_rms(got, np.where(allowed, x @ y, 0)) <= tolerance(dtype)
  np.testing.assert_array_equal(np.asarray(got)[..., ~allowed], 0)


@pytest.mark.parametrize("case", CASES)
def test_product_is_the_dense_one_under_the_mask(interpret, case):
  m_len, k_len, n_len, tiles, mask = CASES[case]
  x, y = operands(m_len, k_len, n_len)
  got = masked_matmul(x, y, mask, block_shape=tiles)
  assert got.shape == (m_len, n_len)
  check(got, x, y, mask)


def test_inner_dimension_is_cut(interpret, monkeypatch):
  monkeypatch.setattr(_limits, "VMEM_BYTES", 250_000)
  x, y = operands(200, 300, 256)  # cut into 128 + 128 + 44
  mask = masks.causal(-20)
  check(masked_matmul(x, y, mask, block_shape=(64, 128)), x, y, mask)


def test_bfloat16_accumulates_in_float32():
  x, y = operands(128, 4096, 128, "bfloat16")
  got = masked_matmul(x, y, masks.causal(), preferred_element_type=jnp.float32)
  check(got, x, y, masks.causal())
  assert masked_matmul(x, y, masks.causal()).dtype == jnp.bfloat16


def test_empty_tiles_read_nothing(interpret):
  x, y = operands(256, 16, 256)
  mask = masks.from_function(lambda i, j: (i >= 128) & (j < 100))
  got = masked_matmul(x.at[:128].set(jnp.nan), y.at[:, 128:].set(jnp.nan), mask, block_shape=(64, 128))
  check(got, x, y, mask)


def test_leading_dimensions_broadcast():
  x, y = operands(128, 16, 256)
  batch = jnp.stack([x, 2 * x, -x])
  check(masked_matmul(batch, y[None], masks.causal(), block_shape=(64, 128)), batch, y, masks.causal())


def test_block_mask_brings_its_tiles():
  x, y = operands(256, 16, 256)
  block_mask = masks.causal().block_mask(256, 256, 64, 128)
  check(masked_matmul(x, y, block_mask), x, y, masks.causal())


def test_l01_sizes_share_a_process():
  for size in (256, 384):
    x, y = operands(size, 16, size)
    check(masked_matmul(x, y, masks.causal(), block_shape=(64, 128)), x, y, masks.causal())


def test_l04_modes_agree_to_the_bit():
  x, y = operands(256, 16, 256)
  results = []
  for mode in (True, pltpu.InterpretParams()):
    with interpret_mode(mode):
      results.append(np.asarray(masked_matmul(x, y, masks.causal(), block_shape=(64, 128))))
  np.testing.assert_array_equal(*results)


def export(x, y):
  def f(x, y):
    return masked_matmul(x, y, masks.causal(), block_shape=(64, 128))

  with interpret_mode(False):
    return jax.export.export(jax.jit(f), platforms=["tpu"])(x, y)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("k_len", [64, 128, 256])
def test_l06_lowers_for_tpu(k_len, dtype):
  assert export(*operands(200, k_len, 300, dtype)).out_avals[0].shape == (200, 300)


def test_l08_x64_changes_nothing():
  x, y = operands(100, 16, 200, "bfloat16")
  want = masked_matmul(x, y, masks.causal(), block_shape=(64, 128))
  with jax.enable_x64(True):
    got = masked_matmul(x, y, masks.causal(), block_shape=(64, 128))
    export(x, y)
  np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("mask", [masks.causal(), masks.sliding_window(9), masks.causal(-99)])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_l09_schedule_holds_the_prefetch_maps(size, mask):
  block_mask = mask.block_mask(8 * size, 8 * size, 8, 8)
  schedule = kernel.make_schedule(block_mask)
  assert schedule.dtype == np.int32
  kinds, places = schedule.reshape(2, size, size)
  np.testing.assert_array_equal(kinds & 3, block_mask.kinds)
  np.testing.assert_array_equal(kinds >> 2, block_mask.prefetch_mask)
  np.testing.assert_array_equal(places >> 16, block_mask.prefetch_i)
  np.testing.assert_array_equal(places & 0xFFFF, block_mask.prefetch_j)
  assert 0 <= places.min()
  assert max((places >> 16).max(), (places & 0xFFFF).max()) < size
  assert 0 <= (kinds >> 2).min()
  assert (kinds >> 2).max() < len(block_mask.partial_tiles)


def test_empty_tiles_cause_no_fetch_of_their_own():
  # The block of x that each tile asks for: it changes once per active tile, and once at the wrap.
  block_mask = masks.causal().block_mask(64, 64, 8, 8)
  places = kernel.make_schedule(block_mask)[64:]
  assert np.count_nonzero(np.diff(places)) + 1 == np.count_nonzero(block_mask.kinds)


@pytest.mark.parametrize(
  ("kwargs", "error", "message"),
  [
    ({"mask": np.ones((256, 256), bool)}, TypeError, r"`mask` must be .*got ndarray"),
    ({"mask": masks.causal().block_mask(8, 8, 8, 8)}, ValueError, r"got a BlockMask for \(8, 8\)"),
    ({"block_shape": (12, 128)}, ValueError, r"`block_q` must be a multiple of 8 .*got block_q=12. Use 16"),
    ({"y": np.ones((17, 256), np.float32)}, ValueError, "got 17 rows and 16"),
    ({"x": np.ones((256, 16), np.float16)}, TypeError, r"`x.dtype` must be float32 or bfloat16, got float16"),
  ],
)
def test_wrong_operands_are_rejected(kwargs, error, message):
  x, y = operands(256, 16, 256)
  with pytest.raises(error, match=message):
    masked_matmul(**{"x": x, "y": y, "mask": masks.causal()} | kwargs)


def test_too_many_tiles_for_smem_are_named():
  x = jax.ShapeDtypeStruct((2**14, 8), jnp.float32)
  y = jax.ShapeDtypeStruct((8, 2**14), jnp.float32)
  with pytest.raises(ValueError, match=r"SMEM, got 262144 tiles that need 2097152 bytes. Use larger tiles"):
    masked_matmul(x, y, masks.causal(), block_shape=(8, 128))
