"""sparsify_mask against a loop over the blocks, where the tutorial's own loop is wrong."""

import jax.numpy as jnp
import numpy as np
import pytest

import masks


def _by_loop(mask, block_shape):
  """The five results of the tutorial, by a walk over the blocks from the last to the first."""
  rows, cols = (-(-n // b) for n, b in zip(mask.shape, block_shape, strict=True))
  padded = np.zeros((rows * block_shape[0], cols * block_shape[1]), mask.dtype)
  padded[: mask.shape[0], : mask.shape[1]] = mask

  def block_at(i, j):
    top, left = i * block_shape[0], j * block_shape[1]
    return padded[top : top + block_shape[0], left : left + block_shape[1]]

  block_mask = np.zeros((rows, cols), mask.dtype)
  maps = np.zeros((3, rows, cols), np.int32)  # prefetch_mask, prefetch_i, prefetch_j
  data, number = [], {}
  order = [(i, j) for i in reversed(range(rows)) for j in reversed(range(cols))]
  for i, j in order:
    if block_at(i, j).any():
      block_mask[i, j] = 1
      number[i, j] = next((n for n, x in enumerate(data) if (x == block_at(i, j)).all()), len(data))
      if number[i, j] == len(data):
        data.append(block_at(i, j))
  following = min(number, default=None)  # the first in row order: where the last ones wrap to
  for at in order:
    if at in number:
      following = at
    if following is not None:
      maps[:, *at] = (number[following], *following)
  if not data:
    data = [np.zeros(block_shape, mask.dtype)]
  return block_mask, *maps, np.stack(data)


def _assert_right(mask, block_shape):
  got, want = masks.sparsify_mask(mask, block_shape), _by_loop(np.asarray(mask), block_shape)
  for name, a, b in zip(got._fields, got, want, strict=True):
    assert a.dtype == b.dtype, name
    np.testing.assert_array_equal(a, b, err_msg=name)
  return got


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "float32"])
@pytest.mark.parametrize("shape", [(8, 8), (16, 8), (8, 24), (13, 9), (1, 1), (3, 40)])
@pytest.mark.parametrize("density", [0, 0.02, 0.3, 1])
def test_equals_a_loop(dtype, shape, density):
  rng = np.random.default_rng(0)
  for block_shape in ((1, 1), (4, 4), (8, 2), (3, 5), (64, 64)):
    _assert_right((rng.random(shape) < density).astype(dtype), block_shape)


def test_blocks_that_print_alike_are_told_apart():
  mask = np.ones((256, 128), np.int32)
  mask[[0, 128], 0] = 0
  mask[192, 64] = 0
  assert repr(mask[:128]) == repr(mask[128:])
  sparse = _assert_right(mask, (128, 128))
  assert len(sparse.mask_data) == 2
  np.testing.assert_array_equal(sparse.mask_data[sparse.prefetch_mask[:, 0]].reshape(256, 128), mask)


def test_equal_blocks_are_stored_once():
  mask = np.kron(np.array([[1, 0], [1, 1]]), np.array([[1, 0], [2, 3]]))
  sparse = _assert_right(mask, (2, 2))
  np.testing.assert_array_equal(sparse.mask_data, [[[1, 0], [2, 3]]])


def test_mask_of_zeros_has_maps_of_zeros_in_range():
  sparse = _assert_right(np.zeros((6, 9), np.int8), (2, 4))
  assert sparse.block_mask.shape == (3, 3)
  assert not any(x.any() for x in sparse)
  assert sparse.mask_data.shape == (1, 2, 4)


def test_last_block_is_followed_by_the_first_nonzero_one():
  mask = np.zeros((4, 4), np.int32)
  mask[1, 2] = 5
  sparse = _assert_right(mask, (1, 1))
  assert (sparse.prefetch_i == 1).all()
  assert (sparse.prefetch_j == 2).all()


def test_ragged_edges_are_filled_with_zeros():
  sparse = _assert_right(np.ones((3, 3), bool), (2, 2))
  np.testing.assert_array_equal(sparse.mask_data[sparse.prefetch_mask[1, 1]], [[True, False], [False, False]])


def test_takes_jax_arrays():
  mask = np.tril(np.ones((8, 8), np.int32))
  for a, b in zip(
    masks.sparsify_mask(jnp.asarray(mask), (4, 4)), masks.sparsify_mask(mask, (4, 4)), strict=True
  ):
    np.testing.assert_array_equal(a, b)


def test_mask_without_elements():
  sparse = masks.sparsify_mask(np.zeros((0, 4), bool), (2, 2))
  assert sparse.block_mask.shape == sparse.prefetch_i.shape == (0, 2)
  assert sparse.mask_data.shape == (1, 2, 2)


def test_agrees_with_the_block_mask_of_the_array():
  dense = np.random.default_rng(1).random((40, 56)) < 0.02
  sparse = masks.sparsify_mask(dense, (8, 8))
  block_mask = masks.from_array(dense).block_mask(40, 56, 8, 8)
  np.testing.assert_array_equal(sparse.block_mask, block_mask.kinds > 0)
  np.testing.assert_array_equal(sparse.prefetch_i, block_mask.prefetch_i)
  np.testing.assert_array_equal(sparse.prefetch_j, block_mask.prefetch_j)
