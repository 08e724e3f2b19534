import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

import masks
from blockattn import sdd_matmul
from blockattn._compat import interpret_mode
from blockattn._kernels import _limits, _matmul, sdd
from tests.support import rel_rms, tolerance

# (M, K, N, tiles, mask)
CASES = {
  "causal": (256, 16, 256, (64, 128), masks.causal()),
  "ragged": (200, 33, 300, (64, 128), masks.causal(50) & masks.sliding_window(90)),
  "full": (96, 16, 130, None, masks.full()),
}


def operands(m_len, k_len, n_len, dtype="float32"):
  rng = np.random.default_rng(0)
  x, y = rng.standard_normal((m_len, k_len)), rng.standard_normal((k_len, n_len))
  return jnp.asarray(x, dtype), jnp.asarray(y, dtype)


def oracle(x, y, mask):
  x, y = (np.asarray(a).astype(np.float64) for a in (x, y))
  return np.where(mask.to_dense(x.shape[-2], y.shape[-1]), x @ y, 0)


def check(a, x, y, mask, dtype="float32"):
  """The right values where the mask allows them, and exactly 0 elsewhere, also over the edges."""
  want, got = oracle(x, y, mask), np.asarray(a.to_dense(), np.float64)
  assert rel_rms(got, want) <= tolerance(dtype)
  np.testing.assert_array_equal(got[..., ~mask.to_dense(*a.shape)], 0)
  np.testing.assert_allclose(np.asarray(a.blocks, np.float64).sum(), got.sum(), rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("case", CASES)
def test_active_tiles_are_those_of_the_dense_product(interpret, case):
  m_len, k_len, n_len, tiles, mask = CASES[case]
  x, y = operands(m_len, k_len, n_len)
  a = sdd_matmul(x, y, mask, block_shape=tiles)
  kinds = mask.block_mask(m_len, n_len, *a.block_shape).kinds
  assert a.num_blocks == a.capacity == np.count_nonzero(kinds)
  np.testing.assert_array_equal(np.stack([a.rows, a.cols]), np.nonzero(kinds))
  check(a, x, y, mask)


def test_inner_dimension_is_cut(interpret, monkeypatch):
  monkeypatch.setattr(_limits, "VMEM_BYTES", 500_000)
  x, y = operands(128, 300, 128)  # cut into 128 + 128 + 44
  check(sdd_matmul(x, y, masks.causal()), x, y, masks.causal())


def test_bfloat16_accumulates_in_float32():
  x, y = operands(128, 4096, 128, "bfloat16")
  a = sdd_matmul(x, y, masks.full(), preferred_element_type=jnp.float32)
  check(a, x, y, masks.full())
  assert sdd_matmul(x, y, masks.full()).dtype == jnp.bfloat16


def test_block_mask_brings_its_tiles():
  x, y = operands(256, 16, 256)
  a = sdd_matmul(x, y, masks.causal().block_mask(256, 256, 64, 128))
  assert a.block_shape == (64, 128)
  check(a, x, y, masks.causal())


def test_mask_without_active_tile_has_no_blocks():
  x, y = operands(128, 16, 256)
  a = sdd_matmul(x[None], y, masks.causal(-500), block_shape=(64, 128))
  assert a.blocks.shape == (1, 0, 64, 128)
  np.testing.assert_array_equal(a.to_dense(), np.zeros((1, 128, 256)))


def test_leading_dimensions_broadcast():
  x, y = operands(128, 16, 128)
  batch = jnp.stack([x, 2 * x, -x])
  a = sdd_matmul(batch[None], y, masks.causal(), block_shape=(64, 128))
  assert a.blocks.shape == (1, 3, 2, 64, 128)
  check(a, batch[None], y, masks.causal())


def test_garbage_in_masked_rows_does_not_leak(interpret):
  x, y = operands(100, 40, 150)
  x = jnp.concatenate([x, jnp.full((28, 40), jnp.nan)])
  mask = masks.from_function(lambda i, j: (i < 100) & (j < i))
  a = sdd_matmul(x, y, mask, block_shape=(64, 128))
  got = np.asarray(a.to_dense())
  assert rel_rms(got[:100], oracle(x[:100], y, mask)) <= tolerance("float32")
  np.testing.assert_array_equal(got[100:], 0)


def test_l04_modes_agree_to_the_bit():
  x, y = operands(256, 16, 256)
  blocks = []
  for mode in (True, pltpu.InterpretParams()):
    with interpret_mode(mode):
      blocks.append(np.asarray(sdd_matmul(x, y, masks.causal(), block_shape=(64, 128)).blocks))
  np.testing.assert_array_equal(*blocks)


def export(x, y, mask=None):
  def f(x, y):
    return sdd_matmul(x, y, mask or masks.causal(), block_shape=(64, 128)).blocks

  with interpret_mode(False):
    return jax.export.export(jax.jit(f), platforms=["tpu"])(x, y)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("k_len", [64, 128, 256])
def test_l06_lowers_for_tpu(k_len, dtype):
  assert export(*operands(200, k_len, 300, dtype)).out_avals[0].shape[1:] == (64, 128)


def test_l08_x64_changes_nothing():
  x, y = operands(100, 16, 200, "bfloat16")
  want = sdd_matmul(x, y, masks.causal(), block_shape=(64, 128))
  with jax.enable_x64(True):
    got = sdd_matmul(x, y, masks.causal(), block_shape=(64, 128))
    export(x, y)
  assert got.rows.dtype == got.cols.dtype == np.int32
  np.testing.assert_array_equal(got.blocks, want.blocks)


@pytest.mark.parametrize("mask", [masks.causal(), masks.sliding_window(9), masks.full()])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_l09_schedule_is_in_range_and_fetches_no_tile_twice(size, mask):
  block_mask = mask.block_mask(8 * size, 8 * size, 8, 8)
  rows, cols = np.nonzero(block_mask.kinds)
  ids = block_mask.partial_ids[rows, cols]
  schedule = sdd.make_schedule(rows, cols, ids)
  places, following = schedule.reshape(2, -1)
  assert schedule.dtype == np.int32
  np.testing.assert_array_equal(places >> 16, rows)
  np.testing.assert_array_equal(places & 0xFFFF, cols)
  np.testing.assert_array_equal((following & 1) == 1, ids >= 0)
  np.testing.assert_array_equal((following >> 1)[ids >= 0], ids[ids >= 0])
  assert 0 <= (following >> 1).min()
  assert (following >> 1).max() < len(block_mask.partial_tiles)
  needed = ids[ids >= 0]
  fetched = 1 + np.count_nonzero(np.diff(following >> 1))
  assert fetched == 1 + np.count_nonzero(np.diff(needed))


@pytest.mark.parametrize("k_len", [64, 128, 200, 1024, 5000, 16384, 10007])
def test_block_k_fits_and_divides_where_it_can(k_len):
  def num_bytes(k):
    return _matmul.vmem_bytes((512, 512), k, k_len, (jnp.bfloat16,) * 3)

  block_k = _matmul.choose_block_k(k_len, num_bytes)
  assert num_bytes(block_k) <= _limits.VMEM_BYTES
  assert block_k == k_len or block_k % 128 == 0
  assert k_len % block_k == 0 or k_len % 128


@pytest.mark.parametrize(
  ("kwargs", "error", "message"),
  [
    (
      {"mask": np.ones((256, 256), bool)},
      TypeError,
      r"`mask` must be .*got ndarray. Wrap an array in masks.from",
    ),
    (
      {"mask": masks.causal().block_mask(512, 512, 128, 128)},
      ValueError,
      r"got a BlockMask for \(512, 512\) and a product of shape \(256, 256\)",
    ),
    (
      {"mask": masks.causal().block_mask(256, 256, 128, 128), "block_shape": (64, 128)},
      ValueError,
      r"tile size of the BlockMask, got block_shape=\(64, 128\) and tiles of \(128, 128\)",
    ),
    ({"block_shape": (4, 128)}, ValueError, "`block_q` must be a multiple of 8 .* got block_q=4. Use 8"),
    ({"block_shape": (8, 100)}, ValueError, "`block_kv` must be a multiple of 128 .* got block_kv=100"),
    (
      {"mask": masks.document(np.repeat([[0], [1]], 256, axis=1))},
      ValueError,
      r"distinguishes \(batch, heads\) = ",
    ),
    (
      {"x": np.ones((256, 17), np.float32)},
      ValueError,
      "as many rows as `x` has columns, got 16 rows and 17",
    ),
    ({"y": np.ones((16, 256), np.int8)}, TypeError, "`y.dtype` must be float32 or bfloat16, got int8"),
  ],
)
def test_wrong_operands_are_rejected(kwargs, error, message):
  x, y = operands(256, 16, 256)
  with pytest.raises(error, match=message):
    sdd_matmul(**{"x": x, "y": y, "mask": masks.causal()} | kwargs)


def test_masks_with_traced_arrays_are_rejected():
  x, y = operands(256, 16, 256)
  with pytest.raises(
    NotImplementedError, match=r"must be known when the program is built.*block_sparse_attention"
  ):
    jax.jit(lambda ids: sdd_matmul(x, y, masks.document(ids)))(np.zeros(256, np.int32))


def test_too_many_tiles_for_smem_are_named():
  x = jax.ShapeDtypeStruct((2**14, 8), jnp.float32)
  y = jax.ShapeDtypeStruct((8, 2**14), jnp.float32)
  with pytest.raises(ValueError, match=r"SMEM, got 262144 active tiles that need 2097152 bytes. Use larger"):
    sdd_matmul(x, y, masks.full(), block_shape=(8, 128))
