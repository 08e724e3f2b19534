"""Masks of the builders as values: printing, equality, hashing, immutability, pytrees."""

import copy
import dataclasses
import itertools

import jax
import numpy as np
import pytest

import masks


def _diagonal(i, j):
  return i == j


def _every_kind():
  """Masks of every builder, built anew at every call."""
  rng = np.random.default_rng(0)
  flags, ids = rng.random(12) < 0.4, rng.integers(-1, 3, 12)
  blocks = rng.random((1, 2, 3, 4)) < 0.5
  return {
    "chunk(4)": masks.chunk(4),
    "block_causal(4)": masks.block_causal(4),
    "chunk(4).shift(q=3)": masks.chunk(4).shift(q=3),
    "dilated(3, 2)": masks.dilated(3, 2),
    "dilated(3, 2, is_causal=False)": masks.dilated(3, 2, is_causal=False),
    "strided(5)": masks.strided(5),
    "strided(5).shift(q=-1)": masks.strided(5).shift(kv=1),
    "global_tokens(bool[1, 12])": masks.global_tokens(flags),
    "global_tokens(bool[1, 12], kv_is_global=bool[1, 4])": masks.global_tokens(flags, [0, 1, 1, 0]),
    "document(int32[1, 12])": masks.same_group(ids),
    "bigbird(4, num_random_blocks=2, window_blocks=3, num_global_blocks=1, random_range=16, seed=1)": (
      masks.bigbird(4, 2, seed=1)
    ),
    "neighborhood((3, 4), (3, 3))": masks.neighborhood((3, 4), 3),
    "neighborhood((4, 6), (2, 3), dilation=(1, 2), stride=(2, 1), is_causal=(False, True))": (
      masks.neighborhood((4, 6), (2, 3), (1, 2), (2, 1), (False, True))
    ),
    "tree(int32[1, 3], prefix=2)": masks.tree([-1, 0, 0], 2),
    "tree(int32[2, 3], prefix=2)": masks.tree([[-1, 0, 0], [-1, 0, 1]], 2),
    "from_blocks(bool[1, 2, 3, 4], (4, 8))": masks.from_blocks(blocks, (4, 8)),
    "from_blocks(bool[1, 2, 3, 4], (4, 8)).shift()": masks.from_blocks(blocks, (4, 8)).shift(),
    "per_head([causal()] * 2 + [full()])": masks.per_head([masks.causal()] * 2 + [masks.full()]),
    "per_head([chunk(1)] + [chunk(2)] + [chunk(3)] + [chunk(4)] + ...)": (
      masks.per_head([masks.chunk(n) for n in range(1, 9)])
    ),
    "sliding_window(4).shift(q=2)": masks.sliding_window(4).shift(q=2),
    "document(int32[1, 12]).shift(q=2, kv=1)": masks.document(ids).shift(q=2, kv=1),
    "from_function(_diagonal).shift(q=2)": masks.from_function(_diagonal).shift(q=2),
  }


class TestValues:
  def test_masks_print_as_their_builders(self):
    for text, mask in _every_kind().items():
      assert repr(mask) == text

  def test_masks_built_alike_are_equal_and_others_are_not(self):
    first, second = (list(_every_kind().values()) for _ in range(2))
    assert first == second
    assert list(map(hash, first)) == list(map(hash, second))
    assert all(a != b for a, b in itertools.combinations(first, 2))

  def test_arrays_that_differ_in_one_element_give_other_masks(self):
    flags = np.zeros(2000, bool)
    other = flags.copy()
    other[1000] = True
    parents = np.arange(2000) - 1
    branch = parents.copy()
    branch[1000] = 500
    pairs = [
      (masks.global_tokens(flags), masks.global_tokens(other)),
      (masks.from_blocks(flags[None], (1, 1)), masks.from_blocks(other[None], (1, 1))),
      (masks.tree(parents), masks.tree(branch)),
    ]
    for one, two in pairs:
      assert one != two
      assert hash(one) != hash(two)

  def test_masks_are_immutable_and_copy_their_arrays(self):
    flags, blocks = np.zeros(4, bool), np.zeros((2, 2), bool)
    global_, block = masks.global_tokens(flags), masks.from_blocks(blocks, (2, 2))
    flags[:] = blocks[:] = True
    assert not global_.to_dense(4, 4).any()
    assert not block.to_dense(4, 4).any()
    with pytest.raises(dataclasses.FrozenInstanceError):
      global_.q_global = None
    assert copy.deepcopy(global_) == global_

  def test_masks_pass_through_trees(self):
    for mask in _every_kind().values():
      leaves, structure = jax.tree.flatten(mask)
      assert jax.tree.unflatten(structure, leaves) == mask

  def test_equal_masks_share_a_jit_cache_entry(self):
    calls = []

    @jax.jit
    def dense(mask):
      calls.append(mask)
      return np.int32(0)

    for _ in range(2):
      for mask in (masks.strided(5), masks.per_head([masks.chunk(2), masks.full()]), masks.tree([-1, 0])):
        dense(mask)
    assert len(calls) == 3
