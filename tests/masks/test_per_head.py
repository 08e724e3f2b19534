"""per_head: every head its own mask, one test in the kernel, equal heads classified once."""

import numpy as np

import masks
from tests.masks import builder_checks


class TestPerHead:
  HEADS = (
    masks.causal(),
    masks.sliding_window(3),
    masks.document([0, 0, 1, 1, 1, 2, 2, 2, 2]),
    masks.causal(),
    ~masks.sliding_window(2),
    masks.full(),
  )

  def _assert_heads(self, mask, heads, block=(2, 4)):
    dense = np.stack([np.broadcast_to(m.to_dense(9, 9), (9, 9)) for m in heads])[None]
    builder_checks.assert_elements(mask, dense)
    builder_checks.assert_kinds(mask, dense, block)
    return dense

  def test_heads_of_intervals_share_one_test(self):
    mask = masks.per_head(self.HEADS)
    dense = self._assert_heads(mask, self.HEADS)
    builder_checks.assert_bounds_leave_nothing_open(mask, dense, (4, 2))
    builder_checks.assert_rule(mask, dense, np.int32)
    assert type(mask.tile_rule(9, 9).test).__name__ == "SpanTest"
    builder_checks.assert_rule(~mask & masks.causal(2), ~dense & masks.causal(2).to_dense(9, 9), np.int32)

  def test_heads_of_one_kind_differ_in_their_numbers_only(self):
    heads = [masks.neighborhood((3, 3), 2, stride=n) for n in (1, 2, 1)]
    mask = masks.per_head(heads)
    dense = self._assert_heads(mask, heads)
    builder_checks.assert_rule(mask, dense, np.int32)
    assert mask.tile_rule(9, 9).test == heads[0].tile_rule(9, 9).test

  def test_heads_of_several_kinds_are_gated(self):
    heads = [masks.dilated(2, 3), masks.causal(), masks.dilated(3, 2), masks.neighborhood((3, 3), 3)]
    mask = masks.per_head([*heads, heads[0]])
    builder_checks.assert_rule(mask, self._assert_heads(mask, [*heads, heads[0]]), np.int32)

  def test_too_many_kinds_of_test_are_stored(self):
    heads = [masks.dilated(2, n) for n in range(2, 7)]
    mask = masks.per_head(heads)
    self._assert_heads(mask, heads)
    assert mask.tile_rule(9, 9) is None
    stored = masks.per_head([masks.causal(), masks.from_array(np.eye(9, dtype=bool))])
    assert stored.tile_rule(9, 9) is None

  def test_equal_heads_are_classified_once(self, monkeypatch):
    calls = []
    own = masks.strided(3)
    bounds = type(own).tile_bounds
    monkeypatch.setattr(type(own), "tile_bounds", lambda m, grid: calls.append(m) or bounds(m, grid))
    mask = masks.per_head([own, masks.causal()] * 16)
    mask.block_mask(9, 9, 2, 2)
    assert len(calls) == 1
    assert mask.lead == (1, 32)

  def test_equal_heads_count_as_often_as_they_stand(self):
    mask = masks.per_head([masks.causal()] * 3)
    assert mask.tile_rule(9, 9).q_tokens.shape[1] == 1
    assert mask.block_mask(9, 9, 2, 2).stats().num_allowed == 3 * 45

  def test_batches_and_heads_combine(self):
    documents = masks.document([[0, 0, 1, 1, 1, 2, 2, 2, 2], [0] * 9])
    mask = masks.per_head([documents, masks.dilated(2, 3)])
    expected = np.stack([documents.to_dense(9, 9), np.tile(masks.dilated(2, 3).to_dense(9, 9), (2, 1, 1))], 1)
    assert mask.lead == (2, 2)
    builder_checks.assert_elements(mask, expected)
    builder_checks.assert_kinds(mask, expected, (4, 3))
    builder_checks.assert_rule(mask, expected, np.int32)

  def test_shift_moves_every_head(self):
    mask = masks.per_head(self.HEADS).shift(q=4, kv=1)
    expected = np.stack([m.to_dense(9, 9)[4:, 1:] for m in self.HEADS])
    np.testing.assert_array_equal(mask.to_dense(5, 8), expected)
