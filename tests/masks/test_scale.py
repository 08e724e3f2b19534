"""Reports of CASES.md on indices, time and memory of long masks, and lengths of zero, by case id."""

import resource
import time

import jax.numpy as jnp
import numpy as np
import pytest

import masks
from masks import TileKind
from tests.support import peak_bytes

MIB = 2**20


def _assert_maps_in_range(block_mask, xp=np):
  """Every index that a kernel may follow is one of a tile, in row order and in column order."""
  rows, cols = block_mask.grid.rows, block_mask.grid.cols
  for index, end in (
    (block_mask.prefetch_i, rows),
    (block_mask.prefetch_j, cols),
    (block_mask.prefetch_mask, len(block_mask.partial_tiles)),
  ):
    assert index.dtype == np.int32
    assert ((index >= 0) & (index < end)).all()
  for schedule, outer, inner in (
    (block_mask.schedule, rows, cols),
    (block_mask.column_schedule, cols, rows),
  ):
    steps = schedule.expand(xp)
    assert all(x.dtype == np.int32 and len(x) == schedule.num_steps for x in steps)
    assert ((steps.outer >= 0) & (steps.outer < outer)).all()
    assert ((steps.inner >= 0) & (steps.inner < inner)).all()


class TestIndices:
  def test_tile_numbers_beyond_int32_products_i01(self):
    length = 65536 * 128

    def build():
      block_mask = masks.sliding_window(128).block_mask(length, length, 128, 128)
      return block_mask, block_mask.schedule.expand(np), block_mask.column_schedule.expand(np)

    peak, (block_mask, by_row, by_col) = peak_bytes(build)
    assert block_mask.active.num_tiles == 131071
    for steps in (by_row, by_col):
      assert len(steps.outer) == 131071
      for index in (steps.outer, steps.inner):
        assert index.min() == 0
        assert index.max() == 65535
    flat = by_row.outer.astype(np.int64) * 65536 + by_row.inner
    assert flat[-1] == 2**32 - 1
    assert (np.diff(flat) > 0).all()
    assert peak < 512 * MIB  # a map of the tiles as int8 has 4 GiB

  @pytest.mark.parametrize("offset", [0, 65536 - 32])
  def test_few_queries_and_many_keys_i03(self, offset):
    block_mask = masks.causal(offset).block_mask(32, 65536, 32, 128)
    _assert_maps_in_range(block_mask)
    _assert_maps_in_range(block_mask, jnp)
    assert block_mask.num_active.tolist() == [1 if offset == 0 else 512]

  @pytest.mark.parametrize("rows", [1, 2, 3, 5, 7])
  @pytest.mark.parametrize("cols", [1, 2, 3, 5, 7])
  def test_maps_are_in_range_for_any_number_of_tiles_l09(self, rows, cols):
    q_len, kv_len = rows * 8 - 3, cols * 8 - 3
    rng = np.random.default_rng(rows * 10 + cols)
    ids = (np.sort(rng.integers(-1, 3, n)) for n in (q_len, kv_len))
    for mask in (
      masks.causal(),
      masks.causal(kv_len - q_len),
      masks.sliding_window(5),
      masks.document(*ids),
      masks.full(),
      ~masks.full(),
      masks.from_array(rng.random((q_len, kv_len)) < 0.02),
    ):
      _assert_maps_in_range(mask.block_mask(q_len, kv_len, 8, 8))


class TestScale:
  """The limits on time are the ones of CASES.md; a build takes some tenth of them."""

  @pytest.mark.parametrize("name", ["schedule", "column_schedule"])
  def test_causal_over_a_million_tokens_s01(self, name):
    masks.causal(1).block_mask(256, 256, 128, 128)  # imports what it needs
    begin, rss = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def build():
      block_mask = masks.causal().block_mask(2**20, 2**20, 512, 512)
      return block_mask.active.num_tiles, getattr(block_mask, name).num_steps

    peak, counts = peak_bytes(build)
    assert counts == (2098176, 2098176)
    assert time.process_time() - begin < 5
    assert peak < 256 * MIB
    extra = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss
    assert extra * 1024 < 256 * MIB

  def test_documents_over_131072_tokens_s01(self):
    ids = np.sort(np.random.default_rng(0).integers(0, 300, 2**17))
    begin = time.process_time()

    def build():
      block_mask = (masks.causal() & masks.document(ids)).block_mask(2**17, 2**17, 512, 512)
      return block_mask.schedule.num_steps, block_mask.column_schedule.num_steps

    peak, counts = peak_bytes(build)
    tiles = np.unique(np.stack([np.arange(2**17) // 512, ids]), axis=1)
    by_hand = {
      (row, col)
      for id_ in range(300)
      for of_id in [tiles[0, tiles[1] == id_].tolist()]
      for row in of_id
      for col in of_id
      if col <= row
    }
    assert counts == (len(by_hand),) * 2
    assert time.process_time() - begin < 5
    assert peak < 256 * MIB

  def test_length_that_is_no_multiple_of_the_tile_s03(self):
    begin = time.process_time()

    def build():
      block_mask = masks.causal().block_mask(93600, 93600, 128, 128)
      return block_mask, block_mask.schedule.expand(np), block_mask.column_schedule.num_steps

    peak, (block_mask, steps, by_column) = peak_bytes(build)
    assert (block_mask.grid.rows, block_mask.grid.cols) == (732, 732)
    assert len(steps.outer) == by_column == 268278
    last = steps.outer == 731
    assert (steps.kinds[last] == TileKind.PARTIAL).all()
    assert (steps.kinds[steps.inner == 731] == TileKind.PARTIAL).all()
    assert time.process_time() - begin < 2
    assert peak < 128 * MIB

  def test_grid_of_a_narrow_window_is_linear_in_the_length_s08(self):
    block_mask = masks.sliding_window(5).block_mask(25000, 25000, 128, 128)
    assert block_mask.schedule.num_steps == 196 + 195
    assert block_mask.column_schedule.num_steps == 196 + 195


class TestZero:
  @pytest.mark.parametrize(("q_len", "kv_len"), [(0, 5), (5, 0), (0, 0)])
  @pytest.mark.parametrize(
    "mask",
    [masks.full(), ~masks.full(), masks.causal(), masks.sliding_window(3), masks.prefix(0)],
    ids=repr,
  )
  def test_lengths_of_zero_have_no_tiles_z01(self, mask, q_len, kv_len):
    _assert_nothing(mask, q_len, kv_len)

  @pytest.mark.parametrize(("q_len", "kv_len"), [(0, 5), (5, 0), (0, 0)])
  def test_arrays_and_ids_of_length_zero_z01(self, q_len, kv_len):
    for mask in (
      masks.document([0] * q_len, kv_ids=[0] * kv_len),
      masks.from_array(np.zeros((q_len, kv_len), bool)),
      masks.from_function(lambda i, j: i == j),
    ):
      _assert_nothing(mask, q_len, kv_len)

  @pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (1, 5)])
  def test_one_query_z01(self, q_len, kv_len):
    block_mask = masks.causal(kv_len - q_len).block_mask(q_len, kv_len, 128, 128)
    assert block_mask.kinds.tolist() == [[TileKind.PARTIAL]]
    assert block_mask.stats().num_allowed == kv_len


def _assert_nothing(mask, q_len, kv_len):
  assert mask.to_dense(q_len, kv_len).shape == (q_len, kv_len)
  block_mask = mask.block_mask(q_len, kv_len, 2, 2)
  rows, cols = -(-q_len // 2), -(-kv_len // 2)
  assert block_mask.kinds.shape == (rows, cols)
  assert block_mask.prefetch_i.shape == block_mask.prefetch_mask.shape == (rows, cols)
  assert block_mask.num_active.tolist() == [0] * rows
  assert block_mask.schedule.num_steps == rows
  assert block_mask.column_schedule.num_steps == cols
  assert block_mask.sparsity() == 0
  assert block_mask.stats().num_allowed == 0
  assert block_mask.partial_tiles.shape == (1, 2, 2)
  assert "0 of 0 tiles active" in str(block_mask)
