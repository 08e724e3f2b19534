"""BlockMask: its maps on small examples, batch and heads in front, statistics, pictures and value semantics."""

import jax
import numpy as np
import pytest

import masks
from masks import TileKind
from tests.support import peak_bytes


def _every_other(q_idx, kv_idx):
  return (q_idx + kv_idx) % 2 == 0


class TestMaps:
  def test_causal(self):
    block_mask = masks.causal().block_mask(5, 6, 2, 2)
    assert block_mask.shape == (5, 6)
    assert (block_mask.block_q, block_mask.block_kv, block_mask.lead) == (2, 2, (1, 1))
    np.testing.assert_array_equal(block_mask.kinds, [[1, 0, 0], [2, 1, 0], [1, 1, 1]])
    assert block_mask.kinds.dtype == np.int8
    np.testing.assert_array_equal(block_mask.num_active, [1, 2, 3])
    np.testing.assert_array_equal(block_mask.prefetch_i, [[0, 1, 1], [1, 1, 2], [2, 2, 2]])
    np.testing.assert_array_equal(block_mask.prefetch_j, [[0, 0, 0], [0, 1, 0], [0, 1, 2]])
    # Distinct partial tiles: the triangle, both keys for the one query of the ragged row, one key for it.
    np.testing.assert_array_equal(block_mask.partial_ids, [[0, -1, -1], [-1, 0, -1], [1, 1, 2]])
    np.testing.assert_array_equal(
      block_mask.partial_tiles, [[[1, 0], [1, 1]], [[1, 1], [0, 0]], [[1, 0], [0, 0]]]
    )
    np.testing.assert_array_equal(block_mask.prefetch_mask, [[0, 0, 0], [0, 0, 1], [1, 1, 2]])

  def test_maps_wrap_to_the_first_tile_of_all(self):
    block_mask = masks.from_array(np.eye(4, dtype=bool)[::-1][:, ::-1] & (np.arange(4) == 1))
    block_mask = block_mask.block_mask(4, 4, 1, 1)
    assert (block_mask.prefetch_i == 1).all()
    assert (block_mask.prefetch_j == 1).all()

  def test_mask_without_active_tile(self):
    block_mask = (~masks.full()).block_mask(4, 6, 2, 2)
    assert not block_mask.kinds.any()
    for index in (block_mask.prefetch_i, block_mask.prefetch_j, block_mask.prefetch_mask):
      assert index.shape == (2, 3)
      assert not index.any()
    assert block_mask.partial_tiles.shape == (1, 2, 2)
    assert not block_mask.partial_tiles.any()
    assert block_mask.sparsity() == 1
    for schedule, outer in ((block_mask.schedule, 2), (block_mask.column_schedule, 3)):
      steps = schedule.expand(np)
      np.testing.assert_array_equal(steps.outer, range(outer))
      assert not steps.inner.any()
      assert (steps.kinds == TileKind.EMPTY).all()
      assert steps.is_first.all()
      assert steps.is_last.all()

  def test_mask_of_full_tiles_only(self):
    block_mask = masks.full().block_mask(4, 4, 2, 2)
    assert (block_mask.kinds == TileKind.FULL).all()
    assert not block_mask.prefetch_mask.any()
    assert (block_mask.partial_ids == -1).all()
    assert not block_mask.partial_tiles.any()

  def test_tile_larger_than_the_mask_is_partial(self):
    block_mask = masks.full().block_mask(3, 5, 128, 128)
    assert block_mask.kinds.tolist() == [[TileKind.PARTIAL]]
    (tile,) = block_mask.partial_tiles
    assert tile[:3, :5].all()
    assert tile.sum() == 15

  def test_batch_and_heads_stand_in_front(self):
    dense = np.random.default_rng(0).random((2, 3, 6, 8)) < 0.3
    block_mask = masks.from_array(dense).block_mask(6, 8, 2, 4)
    assert block_mask.lead == (2, 3)
    assert block_mask.kinds.shape == block_mask.prefetch_i.shape == (2, 3, 3, 2)
    assert block_mask.num_active.shape == (2, 3, 3)
    for batch, head in np.ndindex(2, 3):
      alone = masks.from_array(dense[batch, head]).block_mask(6, 8, 2, 4)
      for name in ("kinds", "num_active", "prefetch_i", "prefetch_j"):
        np.testing.assert_array_equal(getattr(block_mask, name)[batch, head], getattr(alone, name))
      stored = block_mask.partial_tiles[block_mask.prefetch_mask[batch, head]]
      np.testing.assert_array_equal(stored, alone.partial_tiles[alone.prefetch_mask])

  def test_only_the_axis_that_differs_stands_in_front(self):
    by_example = masks.document([[0, 0, 1, 1], [0, 1, 2, 3]]).block_mask(4, 4, 2, 2)
    by_head = masks.from_array(np.ones((1, 3, 4, 4), bool)).block_mask(4, 4, 2, 2)
    assert by_example.kinds.shape == (2, 2, 2)
    assert by_head.kinds.shape == (3, 2, 2)

  def test_equal_tiles_of_different_heads_are_stored_once(self):
    tile = np.tril(np.ones((4, 4), bool))
    block_mask = masks.from_array(np.stack([tile, tile])[None]).block_mask(4, 4, 4, 4)
    assert len(block_mask.partial_tiles) == 1
    assert block_mask.partial_ids.tolist() == [[[0]], [[0]]]


class TestSchedule:
  def test_row_and_column_order_of_a_window(self):
    block_mask = masks.sliding_window(3).block_mask(8, 8, 2, 2)
    rows, cols = (s.expand(np) for s in (block_mask.schedule, block_mask.column_schedule))
    np.testing.assert_array_equal(rows.outer, [0, 1, 1, 2, 2, 3, 3])
    np.testing.assert_array_equal(rows.inner, [0, 0, 1, 1, 2, 2, 3])
    np.testing.assert_array_equal(rows.is_first, [1, 1, 0, 1, 0, 1, 0])
    np.testing.assert_array_equal(rows.is_last, [1, 0, 1, 0, 1, 0, 1])
    np.testing.assert_array_equal(cols.outer, [0, 0, 1, 1, 2, 2, 3])
    np.testing.assert_array_equal(cols.inner, [0, 1, 1, 2, 2, 3, 3])

  def test_expands_alike_on_the_host_and_under_jit(self):
    mask = masks.document([[0] * 20 + [1] * 17 + [-1] * 3, [2] * 40]) & masks.causal()
    block_mask = mask.block_mask(40, 40, 4, 8)
    for schedule in (block_mask.schedule, block_mask.column_schedule):
      for a, b in zip(schedule.expand(np), jax.jit(lambda s: s.expand())(schedule), strict=True):
        assert a.dtype == b.dtype == np.int32
        np.testing.assert_array_equal(a, b)

  def test_runs_of_a_causal_mask_are_two_per_row(self):
    schedule = masks.causal().block_mask(8192, 8192, 128, 128).schedule
    assert schedule.num_steps == 64 * 65 // 2
    assert len(schedule.outer) == 2 * 64 - 1


class TestStats:
  def test_counts(self):
    stats = masks.causal().block_mask(512, 512, 128, 128).stats()
    assert (stats.num_tiles, stats.num_full, stats.num_partial, stats.num_active) == (16, 6, 4, 10)
    assert stats.num_allowed == 512 * 513 // 2
    assert stats.element_density == 513 / 1024
    assert stats.tile_sparsity == 6 / 16
    assert stats.active_per_row == (1, 2.5, 4)
    assert stats.useful_flops == pytest.approx(512 * 513 / 2 / (10 * 128**2))
    assert (stats.partial_tiles_stored, stats.partial_bytes) == (0, 0)

  def test_stored_tiles_and_their_bytes(self):
    stats = masks.from_array(np.tri(512, dtype=bool)).block_mask(512, 512, 128, 128).stats()
    assert (stats.partial_tiles_stored, stats.partial_bytes) == (1, 128 * 128)
    assert masks.from_array(np.ones((4, 4), bool)).block_mask(4, 4, 2, 2).stats().partial_bytes == 0

  def test_counts_over_batch_and_heads(self):
    mask = masks.padding([2, 4]) & masks.from_array(np.ones((1, 3, 4, 4), bool))
    stats = mask.block_mask(4, 4, 2, 2).stats()
    assert stats.num_tiles == 2 * 3 * 4
    assert stats.num_allowed == 3 * (4 * 2 + 4 * 4)
    assert stats.element_density == 0.75

  @pytest.mark.parametrize("length", [1, 100, 128, 129])
  @pytest.mark.parametrize("mask", [masks.full(), ~masks.full(), masks.causal()], ids=repr)
  def test_shares_are_between_0_and_1(self, mask, length):
    block_mask = mask.block_mask(length, length, 128, 128)
    stats = block_mask.stats()
    for share in (stats.element_density, stats.tile_sparsity, stats.useful_flops):
      assert 0 <= share <= 1
    assert block_mask.sparsity() == stats.tile_sparsity


class TestPicture:
  def test_small_mask(self):
    lines = str(masks.causal().block_mask(6, 6, 2, 2)).splitlines()
    assert lines[0] == "BlockMask(causal(), q_len=6, kv_len=6, block_q=2, block_kv=2)"
    assert lines[1].startswith("6 of 9 tiles active (66.7%): 3 full, 3 partial; per row 1 to 3")
    assert lines[2:] == ["█ full, ▒ partial, · empty", "▒··", "█▒·", "██▒"]

  def test_large_mask_is_scaled_down(self):
    lines = str(masks.causal().block_mask(2**17, 2**17, 128, 128)).splitlines()
    assert "one character is 32 x 16 tiles" in lines[2]
    picture = lines[3:]
    assert [len(line) for line in picture] == [64] * 32
    assert picture[0] == "▒▒" + "·" * 62
    assert picture[-1] == "█" * 62 + "▒▒"

  @pytest.mark.parametrize("tiles", [65, 100, 127])
  def test_scaled_cells_count_every_tile_once(self, tiles):
    mask = masks.document(np.arange(tiles) // (tiles // 2 + 1))
    picture = str(mask.block_mask(tiles, tiles, 1, 1)).splitlines()[3:]
    assert [len(line) for line in picture] == [64] * 32
    assert {picture[0][0], picture[-1][-1]} == {"█"}
    assert {picture[0][-1], picture[-1][0]} == {"·"}

  def test_each_example_and_head_has_a_picture(self):
    text = str(masks.padding([2, 4]).block_mask(2, 4, 2, 2))
    assert text.splitlines()[3:] == ["batch 0, head 0", "█·", "batch 1, head 0", "██"]


class TestValue:
  def test_equal_calls_share_one_result(self):
    first = (masks.causal() & masks.document([0, 1, 2])).block_mask(3, 3, 2, 2)
    assert (masks.document([0, 1, 2]) & masks.causal()).block_mask(3, 3, 2, 2) is first
    assert masks.causal().block_mask(3, 3, 2, 2) is not first

  def test_equal_when_built_from_equal_masks_for_the_same_lengths_and_tiles(self):
    built = [
      mask.block_mask(*lengths, *tiles)
      for mask in (masks.causal(), masks.full())
      for lengths in ((8, 8), (8, 6))
      for tiles in ((2, 2), (2, 4))
    ]
    assert len(set(built)) == len(built)
    assert built[0] != built[0].mask

  def test_is_a_pytree_without_leaves(self):
    block_mask = masks.causal().block_mask(8, 8, 2, 2)
    leaves, structure = jax.tree.flatten(block_mask)
    assert leaves == []
    assert jax.tree.unflatten(structure, []) == block_mask

  def test_attributes_cannot_be_set(self):
    block_mask = masks.causal().block_mask(8, 8, 2, 2)
    with pytest.raises(AttributeError):
      block_mask.mask = masks.full()

  def test_repr(self):
    text = repr(masks.causal().block_mask(8, 6, 4, 2))
    assert text == "BlockMask(causal(), q_len=8, kv_len=6, block_q=4, block_kv=2)"


class TestFunctions:
  def test_tiles_are_evaluated_in_bounded_memory(self):
    length = 8192
    peak, block_mask = peak_bytes(
      lambda: masks.from_function(_every_other).block_mask(length, length, 512, 512)
    )
    assert block_mask.stats().num_partial == (length // 512) ** 2
    assert peak < length * length  # bytes of the dense mask

  def test_other_operands_leave_few_tiles_to_evaluate(self):
    shapes = []

    def counted(q_idx, kv_idx):
      shapes.append(np.broadcast_shapes(np.shape(q_idx), np.shape(kv_idx)))
      return np.asarray((q_idx + kv_idx) % 2 == 0)

    mask = masks.sliding_window(100) & masks.from_function(counted)
    block_mask = mask.block_mask(8192, 8192, 128, 128)
    assert block_mask.active.num_tiles == 127
    assert sum(rows * cols for rows, cols in shapes) <= 127 * 128 * 128

  @pytest.mark.parametrize("length", [4, 7])
  def test_function_is_called_within_the_lengths(self, length):
    def bounded(q_idx, kv_idx):
      assert 0 <= np.min(q_idx) <= np.max(q_idx) < length
      assert 0 <= np.min(kv_idx) <= np.max(kv_idx) < length
      return np.asarray(q_idx >= kv_idx)

    kinds = masks.from_function(bounded).block_mask(length, length, 2, 4).kinds
    np.testing.assert_array_equal(kinds, masks.causal().block_mask(length, length, 2, 4).kinds)

  def test_function_that_reads_an_array_has_stored_tiles(self):
    table = np.arange(16) % 3
    mask = masks.from_function(lambda q_idx, kv_idx: table[q_idx] == table[kv_idx])
    block_mask = mask.block_mask(16, 16, 4, 4)
    assert block_mask.tile_rule is None
    assert len(block_mask.partial_tiles) == 3
    np.testing.assert_array_equal(mask.to_dense(16, 16), table[:, None] == table)

  def test_function_that_ignores_a_position_broadcasts(self):
    mask = masks.from_function(lambda q_idx, kv_idx: q_idx % 2 == 0)
    np.testing.assert_array_equal(mask.to_dense(3, 2), [[1, 1], [0, 0], [1, 1]])
    np.testing.assert_array_equal(mask.block_mask(4, 2, 1, 2).kinds, [[2], [0], [2], [0]])
