"""Windows and causal masks against brute force and against jax.nn's meaning of the same numbers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import masks
from tests.support import grid_of


@pytest.mark.parametrize("offset", [-7, -1, 0, 1, 7])
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (4, 9), (9, 4)])
def test_causal_with_offset(offset, q_len, kv_len):
  i, j = grid_of(q_len, kv_len)
  np.testing.assert_array_equal(masks.causal(offset).to_dense(q_len, kv_len), j <= i + offset)


@pytest.mark.parametrize("left", [None, 0, 1, 20])
@pytest.mark.parametrize("right", [None, 0, 1, 20])
def test_local_is_the_window_of_jax_nn(left, right):
  length = 8
  q = jnp.zeros((1, length, 1, length))
  v = jnp.eye(length)[None, :, None]
  unbounded = (length if left is None else left, length if right is None else right)
  weights = jax.nn.dot_product_attention(q, q, v, local_window_size=unbounded)
  dense = masks.local(left, right).to_dense(length, length)
  np.testing.assert_array_equal(dense, np.asarray(weights[0, :, 0]) > 0)


def test_sliding_window_is_causal():
  window, causal = masks.sliding_window(5), masks.causal()
  np.testing.assert_array_equal((window & causal).to_dense(9, 9), window.to_dense(9, 9))


@pytest.mark.parametrize(("q_len", "kv_len"), [(30, 30), (17, 40), (40, 17)])
def test_streaming_window_keeps_the_first_keys(q_len, kv_len):
  i, j = grid_of(q_len, kv_len)
  mask = masks.causal() & (masks.prefix(4) | masks.sliding_window(6))
  np.testing.assert_array_equal(mask.to_dense(q_len, kv_len), (j <= i) & ((j < 4) | (i - 6 < j)))
  assert mask.spans(q_len, kv_len).count == 2


def test_compositions_of_windows_stay_two_numbers_per_query():
  mask = masks.causal() & masks.local(100, None) & masks.document([0] * 500 + [1] * 524)
  assert mask.tile_rule(1024, 1024).test.num_q == 2


@pytest.mark.parametrize("block", [1, 2, 3, 8])
def test_tile_kinds_of_every_small_window(block):
  length = 11
  i, j = grid_of(length, length)
  for left, right in itertools.product((None, 0, 1, 4), (None, 0, 3, 10)):
    mask = masks.local(left, right)
    dense = np.ones((length, length), bool)
    dense &= True if left is None else j >= i - left
    dense &= True if right is None else j <= i + right
    kinds = mask.block_mask(length, length, block, block).kinds
    for row, col in np.ndindex(kinds.shape):
      tile = dense[row * block : (row + 1) * block, col * block : (col + 1) * block]
      whole = tile.all() and tile.size == block * block
      assert kinds[row, col] == (2 if whole else int(tile.any()))
