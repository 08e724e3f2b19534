"""Random compositions of masks, lengths and tiles against brute force over the dense mask."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import masks
from masks import TileKind

SETTINGS = hypothesis.settings(max_examples=150, deadline=None, derandomize=True)


def _every_third(q_idx, kv_idx):
  return (q_idx + kv_idx) % 3 == 0


def _ids(draw, batch, length):
  ids = np.array(draw(st.lists(st.integers(-1, 3), min_size=batch * length, max_size=batch * length)))
  ids = ids.reshape(batch, length).astype(np.int64)
  return np.sort(ids, axis=1) if draw(st.booleans()) else ids


@st.composite
def _leaf(draw, q_len, kv_len):
  kind = draw(st.integers(0, 9))
  if kind == 0:
    return masks.full(), np.ones((q_len, kv_len), bool)
  i, j = np.arange(q_len)[:, None], np.arange(kv_len)[None]
  if kind == 1:
    offset = draw(st.integers(-5, 5))
    return masks.causal(offset), j <= i + offset
  if kind == 2:
    window = draw(st.integers(1, 12))
    return masks.sliding_window(window), (i - window < j) & (j <= i)
  if kind == 3:
    left, right = (draw(st.none() | st.integers(0, 6)) for _ in range(2))
    dense = np.ones((q_len, kv_len), bool)
    if left is not None:
      dense &= j >= i - left
    if right is not None:
      dense &= j <= i + right
    return masks.local(left, right), dense
  if kind in (4, 5):
    batch = 1 if kind == 4 else 2
    q_ids, kv_ids = _ids(draw, batch, q_len), _ids(draw, batch, kv_len)
    dense = (q_ids[:, :, None] == kv_ids[:, None]) & (q_ids[:, :, None] >= 0)
    return masks.document(q_ids, kv_ids), dense[:, None]
  if kind == 6:
    n = draw(st.integers(0, kv_len + 3))
    return masks.prefix(n), np.broadcast_to(j < n, (q_len, kv_len))
  if kind == 7:
    lengths = np.array([draw(st.integers(0, kv_len)) for _ in range(2)])
    dense = np.broadcast_to(j < lengths[:, None, None], (2, q_len, kv_len))
    return masks.padding(lengths), dense[:, None]
  if kind == 8:
    return masks.from_function(_every_third), (i + j) % 3 == 0
  seed = draw(st.integers(0, 2**16))
  array = np.random.default_rng(seed).random((q_len, kv_len)) < draw(st.sampled_from([0.1, 0.6, 1]))
  return masks.from_array(array), array


@st.composite
def _tree(draw, q_len, kv_len, depth):
  operator = draw(st.sampled_from(["leaf", "&", "|", "~"])) if depth else "leaf"
  if operator == "leaf":
    return draw(_leaf(q_len, kv_len))
  mask, dense = draw(_tree(q_len, kv_len, depth - 1))
  if operator == "~":
    return ~mask, ~dense
  other, other_dense = draw(_tree(q_len, kv_len, depth - 1))
  if operator == "&":
    return mask & other, dense & other_dense
  return mask | other, dense | other_dense


@st.composite
def _case(draw):
  q_len, kv_len = draw(st.integers(1, 30)), draw(st.integers(1, 30))
  mask, dense = draw(_tree(q_len, kv_len, depth=3))
  block = draw(st.integers(1, 9)), draw(st.integers(1, 9))
  block_mask = mask.block_mask(q_len, kv_len, *block)
  # Neutral and absorbing operands may simplify a batch away, so the mask can be smaller in front.
  dense = np.broadcast_to(dense, (*np.broadcast_shapes(dense.shape[:-2], (1, 1)), q_len, kv_len))
  return mask, dense, block_mask


def _tiles(dense, block_mask):
  """[batch, heads, rows, cols, block_q, block_kv], False beyond the lengths."""
  grid = block_mask.grid
  pad = [(0, 0), (0, 0), (0, -grid.q_len % grid.block_q), (0, -grid.kv_len % grid.block_kv)]
  padded = np.pad(dense, pad)
  shape = (*dense.shape[:2], grid.rows, grid.block_q, grid.cols, grid.block_kv)
  return padded.reshape(shape).swapaxes(3, 4)


def _expected_kinds(dense, block_mask):
  tiles = _tiles(dense, block_mask)
  return tiles.any((-1, -2)).astype(int) + tiles.all((-1, -2))


@SETTINGS
@hypothesis.given(_case())
def test_to_dense_equals_brute_force(case):
  mask, dense, block_mask = case
  got = mask.to_dense(block_mask.q_len, block_mask.kv_len)
  got = got.reshape(*mask.lead, *got.shape[-2:])
  np.testing.assert_array_equal(np.broadcast_to(got, dense.shape), dense)


@SETTINGS
@hypothesis.given(_case())
def test_tile_kinds_are_exact(case):
  mask, dense, block_mask = case
  kinds = block_mask.kinds.reshape(*mask.lead, block_mask.grid.rows, block_mask.grid.cols)
  expected = _expected_kinds(dense, block_mask)
  np.testing.assert_array_equal(np.broadcast_to(kinds, expected.shape), expected)
  np.testing.assert_array_equal(block_mask.num_active, (block_mask.kinds > 0).sum(-1))
  assert 0 <= block_mask.sparsity() <= 1


@SETTINGS
@hypothesis.given(_case())
def test_stats_count_allowed_pairs(case):
  mask, _, block_mask = case
  stats = block_mask.stats()
  dense = mask.to_dense(block_mask.q_len, block_mask.kv_len)
  assert stats.num_allowed == dense.sum()
  assert stats.element_density == pytest.approx(dense.mean())


@SETTINGS
@hypothesis.given(_case())
def test_stored_partial_tiles_are_distinct_and_right(case):
  mask, dense, block_mask = case
  tiles = _tiles(
    np.broadcast_to(dense[: mask.lead[0], : mask.lead[1]], (*mask.lead, *dense.shape[2:])), block_mask
  )
  ids = block_mask.partial_ids.reshape(tiles.shape[:4])
  stored = block_mask.partial_tiles
  assert len({tile.tobytes() for tile in stored}) == len(stored)
  for at in np.argwhere(ids >= 0):
    np.testing.assert_array_equal(stored[ids[tuple(at)]], tiles[tuple(at)])
  np.testing.assert_array_equal(ids >= 0, block_mask.kinds.reshape(ids.shape) == TileKind.PARTIAL)


@SETTINGS
@hypothesis.given(_case())
def test_prefetch_maps_point_to_the_next_active_tile(case):
  _, _, block_mask = case
  rows, cols = block_mask.grid.rows, block_mask.grid.cols
  shape = (-1, rows * cols)
  maps = (block_mask.prefetch_i, block_mask.prefetch_j, block_mask.prefetch_mask)
  next_i, next_j, next_mask = (x.reshape(shape) for x in maps)
  kinds, ids = (x.reshape(shape) for x in (block_mask.kinds, block_mask.partial_ids))
  assert all(x.dtype == np.int32 for x in maps)
  for group in range(len(kinds)):
    for at in range(rows * cols):
      order = [*range(at, rows * cols), *range(at)]
      active = next((t for t in order if kinds[group, t]), 0)
      assert (next_i[group, at], next_j[group, at]) == divmod(active, cols)
      stored = next((ids[group, t] for t in order if ids[group, t] >= 0), 0)
      assert next_mask[group, at] == stored < len(block_mask.partial_tiles)


@SETTINGS
@hypothesis.given(_case())
def test_schedules_visit_active_tiles_once_and_outputs_contiguously(case):
  _, _, block_mask = case
  kinds = block_mask.kinds.reshape(-1, block_mask.grid.rows, block_mask.grid.cols)
  for schedule, by_outer in (
    (block_mask.schedule, kinds),
    (block_mask.column_schedule, kinds.swapaxes(1, 2)),
  ):
    by_outer = by_outer.reshape(-1, by_outer.shape[-1])
    steps = schedule.expand(np)
    visits = np.zeros(by_outer.shape, int)
    active = steps.kinds != TileKind.EMPTY
    np.add.at(visits, (steps.outer[active], steps.inner[active]), 1)
    np.testing.assert_array_equal(visits, by_outer > 0)
    np.testing.assert_array_equal(by_outer[steps.outer[active], steps.inner[active]], steps.kinds[active])
    # Every output tile has one run of steps, empty ones a single EMPTY step.
    np.testing.assert_array_equal(np.unique(steps.outer), np.arange(len(by_outer)))
    assert (np.diff(steps.outer) >= 0).all()
    np.testing.assert_array_equal(np.bincount(steps.outer), np.maximum((by_outer > 0).sum(1), 1))
    assert steps.is_first.sum() == steps.is_last.sum() == len(by_outer)
    np.testing.assert_array_equal(steps.is_first, np.diff(steps.outer, prepend=-1) != 0)


@SETTINGS
@hypothesis.given(_case())
def test_tile_rule_computes_the_mask(case):
  mask, _, block_mask = case
  rule = block_mask.tile_rule
  if rule is None:
    assert "from_array" in repr(mask)
    return
  dense = mask.to_dense(block_mask.q_len, block_mask.kv_len).reshape(*mask.lead, *block_mask.shape)
  q_idx, kv_idx = np.arange(block_mask.q_len)[:, None], np.arange(block_mask.kv_len)[None]
  for batch, head in np.ndindex(*mask.lead):
    tokens = [
      x[min(batch, x.shape[0] - 1), min(head, x.shape[1] - 1)] for x in (rule.q_tokens, rule.kv_tokens)
    ]
    got = rule.test(q_idx, kv_idx, [x[:, None] for x in tokens[0]], [x[None] for x in tokens[1]])
    np.testing.assert_array_equal(np.broadcast_to(got, dense.shape[2:]), dense[batch, head])
