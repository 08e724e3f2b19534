import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockattn import BlockCOO
from tests.block_cases import random_coo


def some_blocks(n, block_shape=(2, 3), dtype=np.float32):
  return np.random.default_rng(0).standard_normal((n, *block_shape)).astype(dtype)


@pytest.mark.parametrize(
  ("shape", "block_shape", "dtype"),
  [
    ((8, 12), (4, 4), "float32"),
    ((5, 5), (8, 8), "float32"),
    ((7, 13), (3, 4), "bfloat16"),
    ((7, 13), (3, 4), "int32"),
    ((7, 13), (3, 4), "int8"),
  ],
)
def test_dense_survives_the_round_trip(shape, block_shape, dtype):
  dense = np.random.default_rng(1).integers(-3, 4, shape).astype(dtype)
  dense[: block_shape[0], : block_shape[1]] = 0
  a = BlockCOO.from_dense(dense, block_shape)
  assert a.dtype == dense.dtype
  assert a.shape == shape
  np.testing.assert_array_equal(a.to_dense(), dense)


def test_only_blocks_with_something_in_them_are_stored():
  dense = np.zeros((6, 9), np.float32)
  dense[5, 0], dense[0, 8] = 1, np.nan
  a = BlockCOO.from_dense(dense, (2, 3))
  assert (a.rows.tolist(), a.cols.tolist(), int(a.num_blocks)) == ([0, 2], [2, 0], 2)
  np.testing.assert_array_equal(a.to_dense(), dense)


def check_is_zero_over_the_edge(a):
  inside = np.zeros([size * block for size, block in zip(a.grid_shape, a.block_shape, strict=True)])
  inside[: a.shape[0], : a.shape[1]] = 1
  rows, cols = inside.shape[0] // a.block_shape[0], inside.shape[1] // a.block_shape[1]
  tiles = inside.reshape(rows, a.block_shape[0], cols, a.block_shape[1]).swapaxes(1, 2)
  np.testing.assert_array_equal(np.asarray(a.blocks)[tiles[a.rows, a.cols] == 0], 0)


def test_blocks_are_zero_where_they_hang_over_the_edge():
  check_is_zero_over_the_edge(BlockCOO.from_dense(np.ones((7, 13), np.float32), (3, 4)))


@pytest.mark.parametrize("seed", range(20))
def test_m08_number_of_blocks_is_that_of_the_layout(seed):
  layout = np.random.default_rng(seed).integers(0, 2, (8, 64, 64))
  for head in layout:
    rows, cols = np.nonzero(head)
    a = BlockCOO.from_parts(np.zeros((rows.size, 16, 16), np.int8), rows, cols, (1024, 1024))
    assert a.num_blocks == head.sum()
    assert a.rows.dtype == a.cols.dtype == np.int32


def test_m08_heads_with_different_numbers_of_blocks_are_stacked():
  layout = np.random.default_rng(0).integers(0, 2, (8, 64, 64))
  capacity = layout.sum(axis=(1, 2)).max()
  dense = np.repeat(np.repeat(layout, 16, axis=1), 16, axis=2).astype(np.int8)
  stacked = jax.jit(jax.vmap(lambda d: BlockCOO.from_dense(d, (16, 16), capacity)))(dense)
  np.testing.assert_array_equal(stacked.num_blocks, layout.sum(axis=(1, 2)))
  np.testing.assert_array_equal(jax.jit(jax.vmap(BlockCOO.to_dense))(stacked), dense)


def test_blocks_in_any_order_are_sorted():
  blocks, rows, cols = some_blocks(3), np.array([1, 0, 1]), np.array([1, 1, 0])
  a = BlockCOO.from_parts(blocks, rows, cols, (4, 6), sort=True)
  assert (a.rows.tolist(), a.cols.tolist()) == ([0, 1, 1], [1, 0, 1])
  np.testing.assert_array_equal(a.blocks, blocks[[1, 2, 0]])


@pytest.mark.parametrize("jit", [False, True])
def test_duplicate_blocks_are_summed(jit):
  def build(blocks, rows, cols, num_blocks):
    return BlockCOO.from_parts(blocks, rows, cols, (4, 6), num_blocks=num_blocks, sum_duplicates=True)

  blocks, rows, cols = some_blocks(5), np.array([1, 0, 1, 1, 0]), np.array([1, 1, 0, 1, 1])
  blocks[4] = np.nan  # dead
  a = (jax.jit(build) if jit else build)(blocks, rows, cols, 4)
  want = np.zeros((4, 6), np.float32)
  for block, row, col in zip(blocks[:4], rows, cols, strict=False):
    want[2 * row :, 3 * col :][:2, :3] += block
  assert int(a.num_blocks) == 3
  assert a.capacity == 5
  np.testing.assert_allclose(a.to_dense(), want, rtol=1e-6)
  assert (a.rows[:3].tolist(), a.cols[:3].tolist()) == ([0, 1, 1], [1, 0, 1])


@pytest.mark.parametrize("shape", [(8, 12), (7, 11)])
def test_transpose_is_row_major_again_and_skips_dead_slots(shape):
  a, dense = random_coo(3, shape, (2, 4), capacity=20)
  t = a.transpose()
  np.testing.assert_array_equal(t.to_dense(), dense.T.astype(np.float32))
  live = int(t.num_blocks)
  order = list(zip(t.rows[:live].tolist(), t.cols[:live].tolist(), strict=True))
  assert order == sorted(order)
  np.testing.assert_array_equal(t.transpose().blocks[:live], a.blocks[:live])


def test_i01_places_beyond_int32_are_ordered():
  rows, cols = np.array([0, 99_998, 99_999]), np.array([99_999, 99_999, 0])
  shape = (800_000, 800_000)
  a = BlockCOO(some_blocks(3, (8, 8)), rows, cols, shape)
  t = a.transpose()
  assert (t.rows.tolist(), t.cols.tolist()) == ([0, 99_999, 99_999], [99_999, 0, 99_998])
  with pytest.raises(ValueError, match="row-major order"):
    BlockCOO(some_blocks(3, (8, 8)), rows[::-1], cols[::-1], shape)


def test_dead_slots_are_harmless():
  a, dense = random_coo(3, (8, 12), (2, 4), capacity=20)
  np.testing.assert_array_equal(a.to_dense(), dense.astype(np.float32))
  again = BlockCOO.from_parts(a.blocks, a.rows, a.cols, a.shape, num_blocks=a.num_blocks, sort=True)
  np.testing.assert_array_equal(again.to_dense(), dense.astype(np.float32))


def test_live_count_may_be_traced():
  a, dense = random_coo(3, (8, 12), (2, 4), 1.0, capacity=20)

  @jax.jit
  def first(a, n):
    part = BlockCOO(a.blocks, a.rows, a.cols, a.shape, n)
    return part.transpose().to_dense().T

  for n in (0, 1, 7, 12):
    live = (np.arange(12) < n).reshape(4, 3).repeat(2, 0).repeat(4, 1)
    np.testing.assert_array_equal(first(a, n), np.where(live, dense, 0).astype(np.float32))
  assert first._cache_size() == 1


def test_leading_dimensions_share_the_layout():
  a, dense = random_coo(3, (7, 11), (2, 4))
  both = BlockCOO(jnp.stack([a.blocks, -a.blocks]), a.rows, a.cols, a.shape, a.num_blocks)
  assert "batch=(2,)" in repr(both)
  want = np.stack([dense, -dense]).astype(np.float32)
  np.testing.assert_array_equal(both.to_dense(), want)
  np.testing.assert_array_equal(both.transpose().to_dense(), want.swapaxes(1, 2))


def test_random_has_the_density_and_range_asked_for():
  a = BlockCOO.random(jax.random.key(0), (637, 638), (8, 8), 0.25, jnp.bfloat16)
  assert a.dtype == jnp.bfloat16
  assert abs(int(a.num_blocks) / 6400 - 0.25) < 0.03
  blocks = np.asarray(a.blocks, np.float32)
  assert 0 <= blocks.min() < 0.1
  assert 0.9 < blocks.max() < 1.01
  check_is_zero_over_the_edge(a)


def test_from_dense_under_jit_needs_and_keeps_a_capacity():
  dense = np.ones((4, 6), np.float32)
  a = jax.jit(lambda d: BlockCOO.from_dense(d, (2, 3), capacity=6))(dense)
  assert (a.capacity, int(a.num_blocks), "num_blocks=4" in repr(a)) == (6, 4, True)
  np.testing.assert_array_equal(a.to_dense(), dense)
  with pytest.raises(
    ValueError, match=r"`capacity` must be given for traced values.*got capacity=None. .*4 is"
  ):
    jax.jit(lambda d: BlockCOO.from_dense(d, (2, 3)))(dense)


@pytest.mark.parametrize(("dtype", "poison"), [(np.float32, np.nan), (np.int8, -128)])
def test_traced_dense_with_too_many_blocks_is_poisoned(dtype, poison):
  a = jax.jit(lambda d: BlockCOO.from_dense(d, (2, 3), capacity=3))(np.ones((4, 6), dtype))
  np.testing.assert_array_equal(a.blocks, np.full((3, 2, 3), poison, dtype))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(layout=st.lists(st.booleans(), min_size=12, max_size=12), block=st.just((3, 4)))
def test_any_layout_survives_round_trip_and_transpose(layout, block):
  nonzero = np.array(layout).reshape(4, 3).repeat(2, 0).repeat(2, 1)
  dense = np.where(nonzero, np.arange(48).reshape(8, 6) + 1, 0)
  a = BlockCOO.from_dense(dense, block, capacity=16)
  np.testing.assert_array_equal(a.to_dense(), dense)
  np.testing.assert_array_equal(a.transpose().to_dense(), dense.T)


def test_l02_unsorted_blocks_are_rejected():
  with pytest.raises(ValueError, match=r"row-major order, got \(1, 0\) before \(0, 1\), in slots 1 and 2"):
    BlockCOO(some_blocks(3), np.array([0, 1, 0]), np.array([0, 0, 1]), (4, 6))


def test_l02_duplicate_blocks_are_rejected():
  with pytest.raises(ValueError, match=r"distinct, got two at \(0, 1\), in slots 1 and 2.*sum_duplicates"):
    BlockCOO(some_blocks(3), np.array([0, 0, 0]), np.array([0, 1, 1]), (4, 6))
  with pytest.raises(ValueError, match="distinct"):
    BlockCOO.from_parts(some_blocks(2), np.array([0, 0]), np.array([1, 1]), (4, 6), sort=True)


@pytest.mark.parametrize(
  ("row", "col", "message"), [(2, 0, "`rows` .* got 2 in slot 0"), (0, -1, "`cols` .* got -1")]
)
def test_blocks_outside_of_the_matrix_are_rejected(row, col, message):
  with pytest.raises(ValueError, match=message):
    BlockCOO(some_blocks(1), np.array([row]), np.array([col]), (4, 6))


@pytest.mark.parametrize(
  ("kwargs", "error", "message"),
  [
    ({"blocks": np.zeros((2, 3))}, ValueError, r"`blocks` must be \[..., n, bm, bn\]"),
    ({"blocks": np.zeros((1, 2, 3), bool)}, TypeError, "`blocks` must be numbers, got bool"),
    ({"shape": (4,)}, ValueError, "`shape` must be the two sizes"),
    ({"shape": (0, 6)}, ValueError, "`shape` must be the two sizes"),
    ({"rows": np.zeros(3, int)}, ValueError, r"`rows` must have one entry for each slot.*\(3,\) and 1 slots"),
    ({"cols": np.zeros(1)}, TypeError, "`cols` must hold integers, got cols.dtype=float64"),
    ({"num_blocks": 2}, ValueError, "`num_blocks` must lie between 0 and the capacity, got num_blocks=2"),
    ({"num_blocks": 0.5}, TypeError, "`num_blocks` must be an integer scalar"),
  ],
)
def test_wrong_parts_are_rejected(kwargs, error, message):
  parts = {
    "blocks": some_blocks(1),
    "rows": np.zeros(1, int),
    "cols": np.zeros(1, int),
    "shape": (4, 6),
  }
  with pytest.raises(error, match=message):
    BlockCOO(**parts | kwargs)


def test_wrong_sizes_are_rejected():
  dense = np.ones((4, 6), np.float32)
  with pytest.raises(ValueError, match=r"`dense` must be \[M, N\] .* got dense.shape=\(1, 4, 6\)"):
    BlockCOO.from_dense(dense[None], (2, 3))
  with pytest.raises(ValueError, match=r"two sizes of at least 1, got .*block_shape=\(0, 3\)"):
    BlockCOO.from_dense(dense, (0, 3))
  with pytest.raises(ValueError, match=r"got capacity=3 and 4 blocks. Use 4"):
    BlockCOO.from_dense(dense, (2, 3), capacity=3)
  with pytest.raises(ValueError, match=r"`density` must lie in \[0, 1\], got density=1.5"):
    BlockCOO.random(jax.random.key(0), (4, 6), (2, 3), 1.5)
