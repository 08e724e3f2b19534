"""Packed documents: batches, keys of their own, many runs per id, and ids given as lengths."""

import jax.numpy as jnp
import numpy as np
import pytest

import masks
from masks import TileKind


def _brute(q_ids, kv_ids):
  q_ids, kv_ids = np.asarray(q_ids), np.asarray(kv_ids)
  return (q_ids[..., :, None] == kv_ids[..., None, :]) & (q_ids[..., :, None] >= 0)


def _assert_exact(mask, dense, block):
  """`mask` and its tiles are those of the dense mask [batch, q_len, kv_len] or [q_len, kv_len]."""
  q_len, kv_len = dense.shape[-2:]
  np.testing.assert_array_equal(mask.to_dense(q_len, kv_len), dense)
  got = mask.block_mask(q_len, kv_len, block, block)
  want = masks.from_array(dense if dense.ndim == 2 else dense[:, None]).block_mask(
    q_len, kv_len, block, block
  )
  np.testing.assert_array_equal(got.kinds, want.kinds)
  assert got.stats().num_allowed == dense.sum()


def test_ids_per_example():
  ids = np.array([[0, 0, 1, 1, 1, 2], [5, 5, 5, 5, -1, -1]])
  mask = masks.document(ids)
  assert mask.lead == (2, 1)
  _assert_exact(mask, _brute(ids, ids), 2)
  np.testing.assert_array_equal(mask.select(1, 0).to_dense(6, 6), _brute(ids[1], ids[1]))


def test_ids_of_the_keys_differ():
  q_ids, kv_ids = [1, 1, 2], [0, 1, 2, 2, -1]
  _assert_exact(masks.document(q_ids, kv_ids), _brute(q_ids, kv_ids), 2)


@pytest.mark.parametrize("batched", ["queries", "keys"])
def test_one_set_of_ids_for_a_batch_of_others(batched):
  one, many = np.array([0, 1, 1]), np.array([[0, 1, 1], [1, 0, -1]])
  q_ids, kv_ids = (many, one) if batched == "queries" else (one, many)
  _assert_exact(masks.document(q_ids, kv_ids), _brute(*np.broadcast_arrays(q_ids, kv_ids)), 2)


@pytest.mark.parametrize("convert", [list, np.int8, np.int64, np.uint32, jnp.asarray])
def test_ids_of_any_integer_type(convert):
  ids = [0, 0, 3, 3, 3, 100]
  given = ids if convert is list else convert(ids) if convert is jnp.asarray else np.array(ids, convert)
  assert masks.document(given) == masks.document(ids)


def test_negative_ids_are_padding_whatever_their_number():
  ids = [-1, -1, 0, -7, -7, -(2**31)]
  dense = masks.document(ids).to_dense(6, 6)
  assert np.argwhere(dense).tolist() == [[2, 2]]


@pytest.mark.parametrize("padding", ["none", "some", "all"])
def test_all_tokens_of_one_document_or_none(padding):
  ids = {"none": [4] * 6, "some": [4] * 5 + [-1], "all": [-1] * 6}[padding]
  block_mask = masks.document(ids).block_mask(6, 6, 3, 3)
  expected = {"none": [[2, 2], [2, 2]], "some": [[2, 1], [1, 1]], "all": [[0, 0], [0, 0]]}[padding]
  assert block_mask.kinds.tolist() == expected


@pytest.mark.parametrize("num_runs", [8, 9, 20])
@pytest.mark.parametrize("other", [None, masks.causal(), ~masks.causal(-3)], ids=repr)
def test_ids_that_reappear_often_stay_exact(num_runs, other):
  """Beyond 8 runs of one id, tiles are found by joining ids and computed from the ids themselves."""
  rng = np.random.default_rng(num_runs)
  ids = np.repeat(np.arange(num_runs * 2) % 2, rng.integers(1, 5, num_runs * 2))
  ids[rng.random(len(ids)) < 0.1] = -1
  mask, dense = masks.document(ids), _brute(ids, ids)
  if other is not None:
    mask, dense = mask & other, dense & other.to_dense(len(ids), len(ids))
  for block in (1, 3, 8):
    _assert_exact(mask, dense, block)


def test_ids_in_random_order_have_computed_tiles():
  ids = np.random.default_rng(0).integers(-1, 40, (2, 300))
  mask = masks.document(ids)
  assert mask.spans(300, 300) is None
  _assert_exact(mask, _brute(ids, ids), 32)
  rule = mask.block_mask(300, 300, 32, 32).tile_rule
  assert (rule.test.num_q, rule.test.num_kv) == (1, 1)


def test_tiles_within_one_document_are_full_and_across_documents_empty():
  ids = np.repeat(np.arange(4), 256)
  kinds = masks.document(ids).block_mask(1024, 1024, 128, 128).kinds
  np.testing.assert_array_equal(kinds, np.kron(np.eye(4), np.full((2, 2), TileKind.FULL)))


class TestLengths:
  def test_documents_stand_one_behind_the_other(self):
    assert masks.document_from_lengths([2, 3, 1]) == masks.document([0, 0, 1, 1, 1, 2])

  def test_the_rest_is_padding(self):
    assert masks.document_from_lengths([2, 1], total=5) == masks.document([0, 0, 1, -1, -1])

  def test_documents_may_be_empty(self):
    assert masks.document_from_lengths([0, 2, 0, 1]) == masks.document([1, 1, 3])
    assert not masks.document_from_lengths([], total=3).to_dense(3, 3).any()
    assert masks.document_from_lengths([]).to_dense(0, 0).shape == (0, 0)


class TestKeyLimits:
  @pytest.mark.parametrize("build", [masks.prefix, masks.padding])
  def test_keys_below_the_limit_of_each_example(self, build):
    limits = [0, 3, 7]
    dense = np.broadcast_to(np.arange(7) < np.array(limits)[:, None, None], (3, 5, 7))
    _assert_exact(build(limits), dense, 2)
    _assert_exact(build(3), dense[1], 2)
    assert build(np.int64(3)) == build(3) == build(jnp.int32(3))

  def test_prefix_may_exceed_the_keys(self):
    assert masks.prefix(100).to_dense(2, 3).all()

  def test_prefix_lm(self):
    mask = (masks.causal() | masks.prefix([2, 0])) & masks.padding([3, 4])
    i, j = np.arange(4)[:, None], np.arange(4)[None]
    dense = np.stack([((j <= i) | (j < 2)) & (j < 3), j <= i])
    _assert_exact(mask, dense, 2)
