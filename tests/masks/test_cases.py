"""Reports against other attention libraries (CASES.md) that masks alone can answer, by case id."""

import jax.numpy as jnp
import numpy as np
import pytest

import masks
from masks import TileKind
from tests.support import grid_of


def _allowed(mask, q_len, kv_len, dense):
  np.testing.assert_array_equal(mask.to_dense(q_len, kv_len), dense)
  assert mask.block_mask(q_len, kv_len, 128, 128).stats().num_allowed == dense.sum()


class TestEmpty:
  def test_rows_without_key_are_not_active_e01(self):
    dense = np.tril(np.ones((256, 256), bool))
    dense[[5, 200]] = False
    block_mask = masks.from_array(dense).block_mask(256, 256, 1, 128)
    assert np.flatnonzero(block_mask.num_active == 0).tolist() == [5, 200]
    steps = block_mask.schedule.expand(np)
    assert steps.kinds[np.isin(steps.outer, [5, 200])].tolist() == [TileKind.EMPTY] * 2

  def test_bottom_right_causal_has_empty_rows_in_visited_tiles_e03(self):
    i, j = grid_of(192, 128)
    _allowed(masks.causal(-64), 192, 128, j <= i - 64)
    kinds = masks.causal(-64).block_mask(192, 128, 128, 128).kinds
    assert kinds.tolist() == [[TileKind.PARTIAL], [TileKind.PARTIAL]]

  def test_second_half_of_the_keys_has_128_rows_without_key_e05(self):
    dense = masks.causal(-128).to_dense(256, 128)
    np.testing.assert_array_equal(dense.any(axis=1), np.arange(256) >= 128)

  def test_keys_without_query_keep_one_empty_step_e07(self):
    mask = masks.document([1] * 256, kv_ids=[0] * 200 + [1] * 184)
    block_mask = mask.block_mask(256, 384, 128, 128)
    assert block_mask.kinds.tolist() == [[0, 1, 2], [0, 1, 2]]
    steps = block_mask.column_schedule.expand(np)
    np.testing.assert_array_equal(steps.outer, [0, 1, 1, 2, 2])
    np.testing.assert_array_equal(steps.kinds, [0, 1, 1, 2, 2])

  @pytest.mark.parametrize(
    ("q_len", "kv_len", "kinds"), [(200, 256, [[1, 1], [1, 1]]), (256, 200, [[1, 1], [2, 1]])]
  )
  def test_ragged_lengths_are_told_apart_e09(self, q_len, kv_len, kinds):
    mask, (i, j) = masks.causal(56), grid_of(q_len, kv_len)
    _allowed(mask, q_len, kv_len, j <= i + 56)
    assert mask.block_mask(q_len, kv_len, 128, 128).kinds.tolist() == kinds
    assert mask.block_mask(200, 200, 8, 8).stats().num_full > 0


class TestAlign:
  def test_causal_is_top_left_and_bottom_right_by_offset_a02(self):
    top_left = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]
    bottom_right = [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    np.testing.assert_array_equal(masks.causal().to_dense(2, 5), top_left)
    np.testing.assert_array_equal(masks.causal(5 - 2).to_dense(2, 5), bottom_right)
    assert masks.causal(4 - 4) == masks.causal()

  @pytest.mark.parametrize(
    ("q_len", "kv_len", "counts"),
    [(128, 384, (49152, 8256, 41024)), (384, 128, (49152, 41024, 8256))],
  )
  def test_allowed_pairs_of_unequal_lengths_a01(self, q_len, kv_len, counts):
    for mask, count in zip((masks.full(), masks.causal(), masks.causal(kv_len - q_len)), counts, strict=True):
      assert mask.to_dense(q_len, kv_len).sum() == count

  @pytest.mark.parametrize("right", [10**9, 10**9 - 128, 2**31 - 1, 2**40, None])
  def test_window_beyond_the_keys_is_not_clamped_before_it_is_shifted_a05(self, right):
    mask = masks.local(None, right)
    assert mask.to_dense(256, 128).all()
    block_mask = mask.block_mask(256, 128, 128, 128)
    assert (block_mask.kinds == TileKind.FULL).all()
    assert block_mask.tile_rule.test.num_q == 0

  @pytest.mark.parametrize("offset", [10**9, 2**31, 2**63, -(10**9), -(2**31), -(2**63)])
  def test_offset_beyond_int32_means_all_or_nothing_a05(self, offset):
    dense = masks.causal(offset).to_dense(256, 128)
    assert dense.all() if offset > 0 else not dense.any()
    i, j = grid_of(4, 4)
    assert masks.causal(offset).allows(i.astype(np.int32), j.astype(np.int32)).all() == (offset > 0)


class TestWindow:
  @pytest.mark.parametrize("window", [1, 16, 128])
  def test_window_counts_the_token_itself_w01(self, window):
    i, j = grid_of(512, 512)
    dense = masks.sliding_window(window).to_dense(512, 512)
    np.testing.assert_array_equal(dense.sum(axis=1), np.minimum(np.arange(512) + 1, window))
    np.testing.assert_array_equal(dense, (i - window < j) & (j <= i))

  @pytest.mark.parametrize("window", [512, 513, 10**9 + 1])
  def test_window_of_the_whole_length_is_causal_w02(self, window):
    mask, causal = masks.sliding_window(window), masks.causal()
    np.testing.assert_array_equal(mask.to_dense(512, 512), causal.to_dense(512, 512))
    got, want = (m.block_mask(512, 512, 128, 128) for m in (mask, causal))
    np.testing.assert_array_equal(got.kinds, want.kinds)
    for name in ("schedule", "column_schedule"):
      for a, b in zip(*(getattr(m, name).expand(np) for m in (got, want)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert got.tile_rule.test == want.tile_rule.test

  @pytest.mark.parametrize(("left", "right"), [(0, 0), (31, 0), (0, 31)])
  def test_window_needs_no_other_mask_w04(self, left, right):
    i, j = grid_of(256, 256)
    _allowed(masks.local(left, right), 256, 256, (i - left <= j) & (j <= i + right))

  @pytest.mark.parametrize(
    ("build", "message"),
    [
      (lambda: masks.local(-3, 0), "`left` must be at least 0, got left=-3. Use None for no limit"),
      (lambda: masks.local(5, -2), "`right` must be at least 0, got right=-2. Use None"),
      (lambda: masks.sliding_window(0), "`window` must be at least 1 .* got window=0"),
      (lambda: masks.sliding_window(-1), "`window` must be at least 1 .* got window=-1"),
    ],
  )
  def test_negative_windows_are_errors_w06(self, build, message):
    with pytest.raises(ValueError, match=message):
      build()

  def test_first_tile_of_later_rows_is_not_tile_0_w08(self):
    steps = masks.sliding_window(101).block_mask(1024, 1024, 128, 128).schedule.expand(np)
    first = steps.inner[steps.is_first == 1]
    np.testing.assert_array_equal(first, np.maximum(np.arange(8) - 1, 0))


class TestDocument:
  def test_padding_sees_and_is_seen_by_nothing_d01(self):
    mask = masks.document([3] * 100 + [7] * 60 + [-1] * 40) & masks.causal()
    dense = mask.to_dense(200, 200)
    assert dense.sum() == 6880
    assert not dense[160:].any()
    assert not dense[:, 160:].any()

  def test_id_0_is_a_document_like_any_other_d01(self):
    mask = masks.document([3] * 100 + [7] * 60 + [0] * 40) & masks.causal()
    assert mask.to_dense(200, 200).sum() == 7700

  def test_full_is_neutral_beside_documents_d03(self):
    doc, causal, full = masks.document([0] * 90 + [1] * 166), masks.causal(), masks.full()
    combined = [doc & causal, causal & doc, doc & causal & full, (full & doc) & causal]
    assert len(set(combined)) == 1
    i, j = grid_of(256, 256)
    for mask in combined:
      np.testing.assert_array_equal(mask.to_dense(256, 256), ((i < 90) == (j < 90)) & (j <= i))
    assert doc & full == doc
    assert hash(doc & full) == hash(doc)

  def test_statistics_count_elements_within_the_lengths_d05(self):
    mask = masks.document_from_lengths([10, 10, 20, 20, 20, 20]) & masks.causal()
    block_mask = mask.block_mask(100, 100, 128, 128)
    stats = block_mask.stats()
    assert stats.num_allowed == 950
    assert stats.element_density == 950 / 10000
    assert (stats.num_partial, stats.num_full) == (1, 0)
    assert block_mask.sparsity() == 0
    assert 0 < stats.useful_flops == 950 / 128**2

  def test_padding_on_the_left_d06(self):
    dense = (masks.document([-1] * 37 + [1] * 219) & masks.causal()).to_dense(256, 256)
    i, j = grid_of(256, 256)
    np.testing.assert_array_equal(dense, (j <= i) & (i >= 37) & (j >= 37))

  def test_ids_need_not_be_sorted_d08(self):
    ids = np.repeat([0, 1, 0, 2], [70, 130, 30, 90])
    mask = masks.document(ids) & masks.causal()
    dense = mask.to_dense(320, 320)
    i, j = grid_of(320, 320)
    np.testing.assert_array_equal(dense, (ids[i] == ids[j]) & (j <= i))
    assert dense.sum() == 17660
    assert dense[200:230, :70].all()
    kinds = mask.block_mask(320, 320, 128, 128).kinds
    np.testing.assert_array_equal(kinds, [[1, 0, 0], [1, 1, 0], [0, 1, 1]])


class TestBlockMaskMetadata:
  def test_neither_masks_nor_block_masks_can_be_sliced_m03(self):
    for mask in (masks.causal(), masks.causal().block_mask(1024, 1024, 256, 256)):
      with pytest.raises(TypeError, match="not subscriptable"):
        mask[512:768]
    # What a slice of the rows means is an offset.
    rows = masks.causal(512).to_dense(256, 1024)
    np.testing.assert_array_equal(rows, masks.causal().to_dense(1024, 1024)[512:768])

  def test_column_counts_are_those_of_the_lengths_asked_for_m01(self):
    steps = masks.causal().block_mask(1024, 1024, 128, 128).column_schedule.expand(np)
    np.testing.assert_array_equal(np.bincount(steps.outer), np.arange(8, 0, -1))

  def test_lazy_and_stored_masks_have_the_same_tiles_m05(self):
    lazy, stored = masks.causal(), masks.from_array(np.tril(np.ones((512, 512), bool)))
    got, want = (m.block_mask(512, 512, 128, 128) for m in (stored, lazy))
    np.testing.assert_array_equal(got.kinds, want.kinds)
    np.testing.assert_array_equal(got.partial_tiles, want.partial_tiles)
    assert len(got.partial_tiles) == 1

  def test_pattern_finer_than_the_tile_m07(self):
    i, j = grid_of(256, 256)
    mask = masks.from_function(lambda q_idx, kv_idx: q_idx // 4 == kv_idx // 4)
    _allowed(mask, 256, 256, i // 4 == j // 4)
    assert mask.to_dense(256, 256).sum() == 1024

  @pytest.mark.parametrize("convert", [np.asarray, jnp.asarray])
  @pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32"])
  def test_boolean_and_01_arrays_keep_their_pairs_m12(self, convert, dtype):
    mask = masks.from_array(convert(np.tril(np.ones((128, 128))).astype(dtype)))
    assert mask.to_dense(128, 128).sum() == 8256

  def test_additive_masks_are_refused_m12(self):
    additive = np.where(np.tri(128, dtype=bool), 0, -np.inf).astype(np.float32)
    with pytest.raises(TypeError, match=r"bool or 0/1 integers, got float32\. .* pass array == 0"):
      masks.from_array(additive)
    assert masks.from_array(additive == 0).to_dense(128, 128).sum() == 8256


class TestHash:
  def test_arrays_of_equal_bytes_differ_by_shape_k01(self):
    wide, tall = (masks.from_array(np.zeros(s, bool)) for s in ((128, 256), (256, 128)))
    assert wide != tall
    assert len({wide, tall}) == 2
    assert wide.block_mask(128, 256, 128, 128).shape == (128, 256)
    assert tall.block_mask(256, 128, 128, 128).shape == (256, 128)

  def test_ids_of_equal_bytes_differ_by_value_k01(self):
    signed, unsigned = (masks.document(np.frombuffer(b"\xc8", dtype)) for dtype in (np.int8, np.uint8))
    assert signed != unsigned
    assert not signed.to_dense(1, 1).any()
    assert unsigned.to_dense(1, 1).all()
    assert masks.document(np.array([5], np.int8)) == masks.document(np.array([5], np.int64))

  def test_partial_tiles_are_told_apart_by_content_k03(self):
    dense = np.ones((256, 128), bool)
    dense[[0, 128], 0] = False
    dense[128 + 64, 64] = False
    assert repr(dense[:128]) == repr(dense[128:])  # what the tutorial compares
    block_mask = masks.from_array(dense).block_mask(256, 128, 128, 128)
    assert len(block_mask.partial_tiles) == 2
    assert block_mask.partial_ids.tolist() == [[0], [1]]
    np.testing.assert_array_equal(block_mask.partial_tiles.reshape(256, 128), dense)
    assert masks.from_array(dense[:128]) != masks.from_array(dense[128:])
