import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from blockattn import BlockCOO, dsd_matmul
from blockattn._compat import interpret_mode
from blockattn._kernels import _limits, dsd
from tests.block_cases import random_coo
from tests.support import rel_rms, tolerance

# (shape of a, block of a, density, columns of b, block_n)
CASES = {
  "aligned": ((64, 128), (32, 32), 1.0, 96, None),
  "ragged": ((70, 50), (16, 8), 0.4, 200, 128),
  "rows_without_block": ((64, 48), (16, 16), 0.2, 24, None),
  "no_block": ((64, 48), (16, 16), 0.0, 24, None),
  "block_larger_than_matrix": ((20, 12), (128, 128), 1.0, 300, 256),
}


def some_b(k_len, n_len, dtype="float32", seed=1):
  return jnp.asarray(np.random.default_rng(seed).standard_normal((k_len, n_len)), dtype)


def oracle(dense, b):
  return dense @ np.asarray(b).astype(np.float64)


@pytest.mark.parametrize("case", CASES)
def test_product_is_that_of_the_dense_matrix(interpret, case):
  shape, block_shape, density, n_len, block_n = CASES[case]
  a, dense = random_coo(0, shape, block_shape, density, capacity=20)
  b = some_b(shape[1], n_len)
  got = dsd_matmul(a, b, block_n=block_n)
  assert got.dtype == b.dtype
  assert rel_rms(got, oracle(dense, b)) <= tolerance("float32")
  empty = ~dense.any(axis=1)
  np.testing.assert_array_equal(np.asarray(got)[empty], 0)


def test_bfloat16_accumulates_in_float32():
  a, dense = random_coo(0, (16, 4096), (16, 128), 0.9, dtype="bfloat16")
  b = some_b(4096, 40, "bfloat16")
  got = dsd_matmul(a, b, preferred_element_type=jnp.float32)
  assert rel_rms(got, oracle(dense, b)) <= tolerance("float32")


def test_result_has_the_promoted_dtype():
  a, dense = random_coo(0, (32, 64), (16, 16), dtype="bfloat16")
  b = some_b(64, 40)
  got = dsd_matmul(a, b)
  assert got.dtype == jnp.float32
  assert rel_rms(got, oracle(dense, b)) <= tolerance("float32")
  got = dsd_matmul(a, b.astype("bfloat16"))
  assert got.dtype == jnp.bfloat16
  assert rel_rms(got, oracle(dense, b.astype("bfloat16"))) <= tolerance("bfloat16")


def test_rows_of_b_without_a_block_are_not_read(interpret):
  a, dense = random_coo(5, (64, 48), (16, 16), 0.2, capacity=20)
  unread = ~dense.any(axis=0)
  assert unread.any()
  b = some_b(48, 24)
  got = dsd_matmul(a, jnp.where(unread[:, None], jnp.nan, b))
  assert rel_rms(got, oracle(dense, b)) <= tolerance("float32")


def test_matrix_without_slots_is_zero():
  a, _ = random_coo(0, (48, 32), (16, 16), 0.0)
  assert a.capacity == 0
  np.testing.assert_array_equal(dsd_matmul(a, some_b(32, 16)[None]), np.zeros((1, 48, 16)))


def test_traced_live_count_is_one_program(interpret):
  a, dense = random_coo(0, (64, 48), (16, 16), 1.0, capacity=20)
  b = some_b(48, 24)

  @jax.jit
  def f(a, n):
    return dsd_matmul(BlockCOO(a.blocks, a.rows, a.cols, a.shape, n), b)

  for n in (0, 5, 12):
    live = (np.arange(12) < n).reshape(4, 3).repeat(16, 0).repeat(16, 1)
    assert rel_rms(f(a, n), oracle(np.where(live, dense, 0), b)) <= tolerance("float32")
  assert f._cache_size() == 1


def test_m10_all_ones_layout_is_the_dense_product():
  block = 32
  rng = np.random.default_rng(80)
  dense, b = rng.standard_normal((64, 128)), rng.standard_normal((128, 96)).astype(np.float32)
  a = BlockCOO.from_dense(dense.astype(np.float32), (block, block))
  assert int(a.num_blocks) == 64 * 128 // block**2
  want = dense.astype(np.float32).astype(np.float64) @ b
  assert rel_rms(dsd_matmul(a, b), want) <= tolerance("float32")


def test_leading_dimensions_broadcast():
  a, dense = random_coo(0, (48, 40), (16, 8))
  scales = np.array([1, -2, 3], np.float32)[:, None, None, None]
  batch = BlockCOO(a.blocks * scales, a.rows, a.cols, a.shape, a.num_blocks)
  b = jnp.stack([some_b(40, 24, seed=seed) for seed in range(2)])[:, None]
  got = dsd_matmul(batch, b)
  assert got.shape == (2, 3, 48, 24)
  assert rel_rms(got, oracle(scales[..., 0] * dense, b)) <= tolerance("float32")


def test_m08_stacked_matrices_with_different_numbers_of_blocks(interpret):
  pairs = [random_coo(seed, (48, 40), (16, 8), 0.2 * seed, capacity=16) for seed in range(3)]
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(a for a, _ in pairs))
  b = some_b(40, 24)
  got = jax.jit(jax.vmap(dsd_matmul, in_axes=(0, None)))(stacked, b)
  want = np.stack([oracle(dense, b) for _, dense in pairs])
  assert rel_rms(got, want) <= tolerance("float32")


def test_l01_sizes_share_a_process():
  for size in (64, 160):
    a, dense = random_coo(size, (size, size), (32, 32))
    b = some_b(size, 24)
    assert rel_rms(dsd_matmul(a, b), oracle(dense, b)) <= tolerance("float32")


@pytest.mark.parametrize("capacity", [None, 40])
@pytest.mark.parametrize("density", [0, 0.2, 1])
def test_l02_l09_each_output_block_is_one_run_of_steps_in_range(density, capacity):
  a, _ = random_coo(4, (80, 48), (16, 8), density, capacity=capacity)
  schedule, num_steps = map(np.asarray, dsd.make_schedule(a))
  live = schedule[0]
  assert live == a.num_blocks
  rows, cols = schedule[1 : 1 + live] >> 16, schedule[1 : 1 + live] & 0xFFFF
  np.testing.assert_array_equal(rows, a.rows[:live])
  np.testing.assert_array_equal(cols, a.cols[:live])
  empty = schedule[1 + a.capacity :][: num_steps - live]
  steps = np.concatenate([rows, empty])
  assert len(steps) == num_steps
  changes = 1 + np.count_nonzero(np.diff(steps))
  assert changes == np.unique(steps).size == a.grid_shape[0]
  assert schedule[1 + a.capacity :].min() >= 0
  assert schedule[1 + a.capacity :].max() < a.grid_shape[0]


def test_l04_modes_and_runs_agree_to_the_bit():
  a, _ = random_coo(0, (64, 48), (16, 16), 0.5, capacity=20)
  b = some_b(48, 24)
  results = []
  for mode in (True, pltpu.InterpretParams(), True):
    with interpret_mode(mode):
      results.append(np.asarray(dsd_matmul(a, b)))
  np.testing.assert_array_equal(results[0], results[1])
  np.testing.assert_array_equal(results[0], results[2])


def export(a, b):
  with interpret_mode(False):
    return jax.export.export(jax.jit(dsd_matmul), platforms=["tpu"])(a, b)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("n_len", [64, 128, 256])
def test_l06_lowers_for_tpu(n_len, dtype):
  a, _ = random_coo(0, (300, 200), (64, 128), 1.0, dtype=dtype)
  assert export(a, some_b(200, n_len, dtype)).out_avals[0].shape == (300, n_len)


def test_l08_x64_changes_nothing():
  a, _ = random_coo(0, (32, 64), (16, 16), dtype="bfloat16")
  b = some_b(64, 40, "bfloat16")
  want = dsd_matmul(a, b)
  with jax.enable_x64(True):
    got = dsd_matmul(a, b)
    export(a, b)
    schedule, num_steps = dsd.make_schedule(a)
  assert schedule.dtype == num_steps.dtype == jnp.int32
  np.testing.assert_array_equal(got, want)


def test_block_n_is_wide_and_even():
  bf16 = (jnp.bfloat16,) * 3
  assert dsd.choose_block_n((512, 512), 16384, 16384, bf16) == 2048
  assert dsd.choose_block_n((512, 512), 16384, 100, bf16) == 100
  assert dsd.choose_block_n((512, 512), 16384, 2100, bf16) == 1152
  for block_shape in ((128, 128), (512, 512), (1024, 512)):
    block_n = dsd.choose_block_n(block_shape, 5000, 10**5, bf16)
    assert dsd.vmem_bytes(block_shape, block_n, 5000, bf16) <= _limits.VMEM_BYTES


def test_m10_unsupported_block_is_named():
  a, _ = random_coo(0, (64, 128), (4, 4))
  with pytest.raises(ValueError, match=r"`rows of a block` must be a multiple of 8 .* got rows of a block=4"):
    dsd_matmul(a, some_b(128, 96))


def test_too_many_blocks_for_smem_are_named():
  n = 300_000
  rows, cols = np.divmod(np.arange(n), 1000)
  a = BlockCOO(jax.ShapeDtypeStruct((n, 8, 8), jnp.float32), rows, cols, (2400, 8000))
  with pytest.raises(ValueError, match=r"fit into \d+ bytes of SMEM, got 300000 blocks that need 1201204"):
    dsd_matmul(a, jax.ShapeDtypeStruct((8000, 128), jnp.float32))


@pytest.mark.parametrize(
  ("kwargs", "error", "message"),
  [
    ({"a": np.ones((64, 48))}, TypeError, "`a` must be a BlockCOO, got ndarray"),
    ({"b": np.ones((48, 24), np.float16)}, TypeError, "`b.dtype` must be float32 or bfloat16, got float16"),
    ({"b": np.ones((48, 24), np.int32)}, TypeError, "got int32"),
    ({"b": np.ones((50, 24), np.float32)}, ValueError, "as many rows as `a` has columns, got 50 rows and 48"),
    ({"b": np.ones(48, np.float32)}, ValueError, r"must be matrices .*\(48,\)"),
    ({"b": np.ones((48, 0), np.float32)}, ValueError, r"at least one element, .*\(48, 0\)"),
    ({"block_n": 100}, ValueError, "`block_n` must be a multiple of 128 .* got block_n=100. Use 128"),
    ({"preferred_element_type": np.int8}, TypeError, "`preferred_element_type` must be .* got int8"),
  ],
)
def test_wrong_operands_are_rejected(kwargs, error, message):
  a, _ = random_coo(0, (64, 48), (16, 16))
  with pytest.raises(error, match=message):
    dsd_matmul(**{"a": a, "b": some_b(48, 300)} | kwargs)


def test_leading_dimensions_must_broadcast():
  a, _ = random_coo(0, (64, 48), (16, 16))
  batch = BlockCOO(jnp.stack([a.blocks] * 2), a.rows, a.cols, a.shape, a.num_blocks)
  with pytest.raises(ValueError, match=r"must be equal or 1, got \(2,\) and \(3,\)"):
    dsd_matmul(batch, jnp.ones((3, 48, 24)))
