"""Masks as values: equality, hashing, immutability, printing and the algebra's simplifications."""

import copy
import os
import pickle
import subprocess
import sys

import jax
import numpy as np
import pytest

import masks


def _build():
  """One mask of each kind, built anew at every call."""
  dense = np.tril(np.ones((6, 6), bool))
  return [
    masks.full(),
    masks.causal(),
    masks.causal(2),
    masks.sliding_window(3),
    masks.local(None, 2),
    masks.local(1, None),
    masks.document([0, 0, 1, 1, 2, -1]),
    masks.document([0, 0, 1, 1, 2, -1], kv_ids=[0, 0, 1, 1, 2, 2]),
    masks.document([[0] * 6, [1] * 6]),
    masks.prefix(2),
    masks.prefix([2, 3]),
    masks.padding(2),
    masks.padding([2, 3]),
    masks.from_function(_same_pair),
    masks.from_array(dense),
    masks.from_array(np.stack([dense, ~dense])[None]),
    ~masks.causal(),
    masks.causal() & masks.document([0, 0, 1, 1, 2, -1]),
    masks.causal() | masks.prefix(2),
    (masks.causal() | masks.prefix(2)) & ~masks.sliding_window(2),
  ]


def _same_pair(q_idx, kv_idx):
  return q_idx // 2 == kv_idx // 2


@pytest.fixture(params=range(len(_build())), ids=[repr(m) for m in _build()])
def mask(request):
  return _build()[request.param]


class TestEquality:
  def test_masks_built_alike_are_equal_and_hash_alike(self):
    for a, b in zip(_build(), _build(), strict=True):
      assert a == b
      assert hash(a) == hash(b)

  def test_different_masks_are_different_keys(self):
    assert len(set(_build())) == len(_build())
    for n, a in enumerate(_build()):
      assert all(a != b for m, b in enumerate(_build()) if m != n)

  def test_masks_equal_nothing_else(self, mask):
    assert mask != repr(mask)
    assert mask is not None
    assert mask != mask.block_mask(6, 6, 2, 2)

  def test_order_and_repetition_of_operands_do_not_count(self):
    a, b, c = masks.causal(), masks.prefix(2), masks.local(1, None)
    assert (a & b) & c == a & (c & b) == c & b & a & b
    assert (a | b) | c == c | (b | a)
    assert hash((a & b) & c) == hash(c & (b & a))
    assert a & b != a | b
    assert (a & b) | c != a & (b | c)

  def test_one_rule_has_one_value(self):
    assert masks.sliding_window(4) == masks.local(3, 0)
    assert masks.sliding_window(4) != masks.sliding_window(5)
    assert masks.causal(np.int64(3)) == masks.causal(3)
    assert masks.prefix(2) != masks.padding(2)
    assert masks.document([0, 1]) == masks.document(np.array([0, 1], np.int16), kv_ids=[0, 1])
    assert masks.document([0, 1]) == masks.document([[0, 1]])
    assert masks.document([0, 1]) != masks.document([0, 1], kv_ids=[0, 0])
    assert masks.prefix(2) == masks.prefix([2]) != masks.prefix([2, 2])

  def test_functions_are_compared_by_identity(self):
    assert masks.from_function(_same_pair) == masks.from_function(_same_pair)
    other = masks.from_function(lambda q_idx, kv_idx: q_idx // 2 == kv_idx // 2)
    assert masks.from_function(_same_pair) != other


class TestSimplification:
  def test_neutral_and_absorbing_operands(self, mask):
    everything, nothing = masks.full(), ~masks.full()
    assert mask & everything == everything & mask == mask
    assert mask | nothing == nothing | mask == mask
    assert mask & nothing == nothing
    assert mask | everything == everything
    assert mask & mask == mask | mask == mask

  def test_double_complement_is_the_mask(self, mask):
    assert ~~mask == mask
    assert ~mask != mask

  def test_complement_allows_the_rest(self, mask):
    np.testing.assert_array_equal(~mask.to_dense(6, 6), (~mask).to_dense(6, 6))

  def test_batch_and_heads_broadcast(self):
    by_example = masks.padding([1, 2])
    by_head = masks.from_array(np.ones((1, 3, 4, 4), bool))
    both = by_example & by_head
    assert both.lead == (2, 3)
    assert both.to_dense(4, 4).shape == (2, 3, 4, 4)
    np.testing.assert_array_equal(
      both.to_dense(4, 4), np.broadcast_to(by_example.to_dense(4, 4)[:, None], (2, 3, 4, 4))
    )
    for batch, head in np.ndindex(2, 3):
      np.testing.assert_array_equal(both.select(batch, head).to_dense(4, 4), both.to_dense(4, 4)[batch, head])


class TestImmutability:
  def test_attributes_cannot_be_set(self, mask):
    for name in (*vars(mask), "something_new"):
      with pytest.raises(AttributeError):
        setattr(mask, name, None)

  def test_later_changes_of_the_users_array_do_not_count(self):
    ids, dense, limits = np.zeros(4, np.int32), np.ones((4, 4), bool), np.array([3, 4], np.int32)
    built = masks.document(ids), masks.from_array(dense), masks.prefix(limits)
    before = [m.to_dense(4, 4) for m in built]
    ids[2:], dense[:], limits[:] = 1, False, 0
    for mask, expected in zip(built, before, strict=True):
      np.testing.assert_array_equal(mask.to_dense(4, 4), expected)

  def test_arrays_of_a_mask_are_read_only(self):
    for held in (
      masks.document([0, 1]).q_ids,
      masks.prefix([1, 2]).limits,
      masks.from_array(np.ones((2, 2), bool)).dense,
    ):
      with pytest.raises(ValueError, match="read-only"):
        held.array[...] = 0

  @pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
  def test_copies_are_equal(self, mask, duplicate):
    assert duplicate(mask) == mask
    assert hash(duplicate(mask)) == hash(mask)

  def test_pickles_are_equal(self, mask):
    hash(mask)
    again = pickle.loads(pickle.dumps(mask))
    assert again == mask
    assert hash(again) == hash(mask)
    np.testing.assert_array_equal(again.to_dense(6, 6), mask.to_dense(6, 6))

  def test_arrays_of_a_pickle_are_read_only(self):
    again = pickle.loads(pickle.dumps(masks.document([0, 1])))
    assert not again.q_ids.array.flags.writeable

  def test_pickle_hashes_as_built_in_another_process(self, tmp_path):
    mask = masks.document([0, 0, 1]) & ~masks.from_array(np.eye(3, dtype=bool))
    hash(mask)
    (tmp_path / "mask").write_bytes(pickle.dumps(mask))
    code = (
      "import masks, numpy, pickle, sys; mask = pickle.load(open(sys.argv[1], 'rb'));"
      "built = masks.document([0, 0, 1]) & ~masks.from_array(numpy.eye(3, dtype=bool));"
      "assert mask == built and hash(mask) == hash(built)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code, tmp_path / "mask"], env=environment, check=True, timeout=120)


class TestRepr:
  @pytest.mark.parametrize(
    ("mask", "text"),
    [
      (masks.full(), "full()"),
      (~masks.full(), "~full()"),
      (masks.causal(), "causal()"),
      (masks.causal(-3), "causal(offset=-3)"),
      (masks.sliding_window(1), "sliding_window(1)"),
      (masks.local(4, 0), "sliding_window(5)"),
      (masks.local(None, 3), "local(None, 3)"),
      (masks.local(None, None), "local(None, None)"),
      (masks.document([0, 0, 1]), "document(int32[1, 3])"),
      (masks.document([0, 1], kv_ids=[1]), "document(int32[1, 2], kv_ids=int32[1, 1])"),
      (masks.prefix(4), "prefix(4)"),
      (masks.prefix([1, 2]), "prefix([1, 2])"),
      (masks.prefix(range(9)), "prefix(int32[9])"),
      (masks.padding(3), "padding(3)"),
      (masks.padding([3, 1]), "padding([3, 1])"),
      (masks.from_function(_same_pair), "from_function(_same_pair)"),
      (masks.from_array(np.ones((2, 3)) > 0), "from_array(bool[1, 1, 2, 3])"),
      (masks.causal() & masks.prefix(2), "causal() & prefix(2)"),
      (~(masks.causal() & masks.prefix(2)), "~(causal() & prefix(2))"),
      ((masks.causal() | masks.prefix(1)) & masks.prefix(2), "(causal() | prefix(1)) & prefix(2)"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
  )
  def test_repr(self, mask, text):
    assert repr(mask) == text

  def test_repr_of_rules_on_positions_builds_the_mask_again(self):
    for mask in (
      masks.causal(-3) & ~masks.local(2, 1),
      masks.prefix([1, 2]) | masks.sliding_window(4) & masks.padding(3),
      ~(masks.local(None, None) & ~masks.full()) & masks.causal(),
    ):
      assert eval(repr(mask), vars(masks)) == mask


def test_lengths_come_from_the_call():
  mask = masks.causal() & masks.sliding_window(2)
  for q_len, kv_len in ((1, 1), (3, 5), (5, 3)):
    i, j = np.arange(q_len)[:, None], np.arange(kv_len)[None]
    np.testing.assert_array_equal(mask.to_dense(q_len, kv_len), (i - 2 < j) & (j <= i))


def test_function_that_uses_jax_is_evaluated_while_something_else_is_traced():
  mask = masks.from_function(lambda i, j: jax.lax.max(i + 0 * j, j + 0 * i) < 3)
  kinds = []
  jax.jit(lambda x: kinds.append(mask.block_mask(8, 8, 4, 4).kinds) or x)(1)
  np.testing.assert_array_equal(kinds[0], [[1, 0], [0, 0]])
