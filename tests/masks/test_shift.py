"""Shifted masks: the same rule for tokens further on, classified and evaluated like any other."""

import re

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

import masks
from masks import TileKind
from tests.masks import builder_cases, builder_checks

SETTINGS = hypothesis.settings(max_examples=40, deadline=None, derandomize=True)


class TestShift:
  @pytest.mark.parametrize("name", builder_cases.EVERY)
  @SETTINGS
  @hypothesis.given(data=st.data())
  def test_shift_moves_positions(self, name, data):
    case, block = data.draw(builder_cases.EVERY[name]), data.draw(builder_cases.BLOCKS)
    if case.lengths is None:
      least = 0 if name == "bigbird" else -7
      shift = [data.draw(st.integers(least, 9)) for _ in "qk"]
      lengths = data.draw(builder_cases.LENGTHS)
    else:
      shift = [data.draw(st.integers(0, n)) for n in case.lengths]
      lengths = [data.draw(st.integers(0, n - x)) for n, x in zip(case.lengths, shift, strict=True)]
    if name == "neighborhood" and data.draw(st.booleans()):
      shift = [x - 4 for x in shift]
    shifted = case.mask.shift(*shift)
    dense = case.dense(*lengths, *shift)
    builder_checks.assert_elements(shifted, dense)
    builder_checks.assert_kinds(shifted, dense, block)
    if case.is_analytic:
      builder_checks.assert_bounds_leave_nothing_open(shifted, dense, block)
    if name != "array":
      builder_checks.assert_rule(shifted, dense, np.int32)

  def test_rules_on_positions_stay_what_they_are(self):
    assert masks.causal().shift(q=3, kv=1) == masks.causal(2)
    assert masks.full().shift(q=3) == masks.full()
    assert masks.prefix(5).shift(q=9, kv=2) == masks.prefix(3)
    assert masks.prefix([1, 5]).shift(kv=2) == masks.prefix([0, 3])
    assert masks.sliding_window(4).shift(q=3, kv=3) == masks.sliding_window(4)
    assert masks.strided(4).shift(q=3, kv=1) == masks.strided(4).shift(q=2)

  def test_shifts_add_up(self):
    for mask in (masks.sliding_window(4), masks.chunk(3), masks.strided(2), masks.document([0, 0, 1])):
      assert mask.shift(q=2).shift(q=-1, kv=1) == mask.shift(q=1, kv=1)
    assert masks.sliding_window(4).shift(q=2).shift(q=-2) == masks.sliding_window(4)

  def test_chunks_of_a_prefill_make_up_the_mask(self):
    ids = np.repeat([0, 1, 2], [7, 9, 8])
    mask = masks.causal() & (masks.document(ids) | ~masks.prefix(20)) & ~masks.from_function(_diagonal)
    chunks = [mask.shift(q=start).to_dense(8, 24) for start in (0, 8, 16)]
    np.testing.assert_array_equal(np.concatenate(chunks), mask.to_dense(24, 24))
    assert all(mask.shift(q=start).tile_rule(8, 24) is not None for start in (0, 8, 16))

  def test_padding_loses_its_limit_where_keys_are_cut(self):
    mask = masks.padding([3, 8])
    np.testing.assert_array_equal(mask.shift(kv=2).to_dense(1, 3)[:, 0], [[1, 0, 0], [1, 1, 1]])
    with pytest.raises(ValueError, match="`kv_lengths` must be at most the number of keys, 7, got 8"):
      mask.shift(q=2).to_dense(1, 7)

  @pytest.mark.parametrize(
    ("mask", "shift", "lengths", "message"),
    [
      (
        masks.document([0] * 6),
        {"q": 4},
        (3, 6),
        "document(int32[1, 6]) has 6 queries, got 3 from position 4.",
      ),
      (masks.document([0] * 6), {"kv": -1}, (6, 6), "has 6 keys, got 6 from position -1. Shift and lengths"),
      (
        masks.from_array(np.eye(4, dtype=bool)),
        {"q": 2},
        (3, 4),
        "from_array(bool[1, 1, 4, 4]) has 4 queries, got 3 from",
      ),
      (
        masks.tree([-1, 0], 3),
        {"kv": 4},
        (2, 2),
        "tree(int32[1, 2], prefix=3) has 5 keys, got 2 from position 4.",
      ),
      (
        masks.neighborhood(9, 3),
        {"q": 4},
        (6, 9),
        "neighborhood((9,), (3,)) fits 9 queries, got 6 from position 4.",
      ),
      (
        masks.from_blocks(np.eye(2, dtype=bool), (4, 4)),
        {"q": -1},
        (4, 8),
        "fits 5 to 8 queries, got 4 from position -1.",
      ),
      (
        masks.bigbird(4),
        {"kv": -1},
        (4, 4),
        "start at 0, got a shift by q=0 and kv=-1. Shift by at least 0.",
      ),
    ],
  )
  def test_shift_beyond_a_masks_own_tokens_is_an_error_when_used(self, mask, shift, lengths, message):
    with pytest.raises(ValueError, match=re.escape(message)):
      mask.shift(**shift).block_mask(*lengths, 2, 2)

  def test_shift_by_other_than_ints_is_an_error(self):
    with pytest.raises(TypeError, match=re.escape("`q` must be an int, got 1.5 (float).")):
      masks.causal().shift(q=1.5)

  def test_traced_masks_shift_under_jit(self):
    ids, limits = np.repeat([0, 1, 2], [7, 9, 8]), np.array([5, 11])

    @jax.jit
    def dense(ids, limits):
      mask = masks.per_head([masks.document(ids) & masks.causal(), masks.prefix(limits)])
      block_mask = mask.shift(q=8, kv=3).block_mask(10, 20, 4, 4)
      return mask.shift(q=8, kv=3).to_dense(10, 20), block_mask.kinds

    got, kinds = dense(ids, limits)
    mask = masks.per_head([masks.document(ids) & masks.causal(), masks.prefix(limits)])
    expected = mask.to_dense(24, 24)[:, :, 8:18, 3:23]
    np.testing.assert_array_equal(got, expected)
    exact = mask.shift(q=8, kv=3).block_mask(10, 20, 4, 4).kinds
    assert not ((kinds == TileKind.EMPTY) & (exact != TileKind.EMPTY)).any()
    assert not ((kinds == TileKind.FULL) & (exact != TileKind.FULL)).any()

  def test_shifted_masks_pass_through_jit(self):
    masks_in = [masks.document([0, 0, 1, 1]).shift(q=1), masks.local(2, 0).shift(q=1)]
    leaves, structure = jax.tree.flatten(masks_in)
    assert jax.tree.unflatten(structure, leaves) == masks_in
    dense = jax.jit(lambda mask: mask.to_dense(2, 4))(masks_in[0])
    np.testing.assert_array_equal(dense, masks_in[0].to_dense(2, 4))


def _diagonal(i, j):
  return i == j
