"""What a mask must be, given its elements: assertions that tests of builders share."""

import numpy as np

from masks._classify import TileGrid


def tile_map(tiles, grid):
  """A set of tiles as bool [batch, heads, rows, cols]."""
  result = np.zeros((grid.all_rows, grid.cols), bool)
  result[tiles.tile_indices()] = True
  return result.reshape(*grid.lead, grid.rows, grid.cols)


def tiles_of(dense, grid, reduction):
  tiles = np.zeros((*grid.lead, grid.rows, grid.cols), bool)
  for row, col in np.ndindex(grid.rows, grid.cols):
    q, kv = row * grid.block_q, col * grid.block_kv
    tile = dense[:, :, q : q + grid.block_q, kv : kv + grid.block_kv]
    tiles[:, :, row, col] = reduction(tile, axis=(2, 3))
  return tiles


def assert_elements(mask, dense):
  got = mask.to_dense(*dense.shape[2:])
  got = got.reshape(*mask.lead, *dense.shape[2:])
  np.testing.assert_array_equal(np.broadcast_to(got, dense.shape), dense)


def assert_kinds(mask, dense, block):
  grid = TileGrid(*dense.shape[2:], *block, dense.shape[:2])
  kinds = mask.block_mask(*dense.shape[2:], *block).kinds
  complete = tile_map(grid.complete(), grid)
  expected = tiles_of(dense, grid, np.any).astype(int) + (tiles_of(dense, grid, np.all) & complete)
  kinds = kinds.reshape(*mask.lead, grid.rows, grid.cols)
  np.testing.assert_array_equal(np.broadcast_to(kinds, expected.shape), expected)


def assert_bounds_leave_nothing_open(mask, dense, block):
  grid = TileGrid(*dense.shape[2:], *block, dense.shape[:2])
  bounds = mask.tile_bounds(grid)
  for names, reduction in ((("may_hit", "must_hit"), np.any), (("may_fill", "must_fill"), np.all)):
    for name in names:
      got = tile_map(getattr(bounds, name), grid)
      np.testing.assert_array_equal(got, tiles_of(dense, grid, reduction), name)


def assert_rule(mask, dense, dtype):
  rule = mask.tile_rule(*dense.shape[2:])
  assert rule is not None
  assert rule.q_tokens.dtype == rule.kv_tokens.dtype == np.int32
  q_idx, kv_idx = np.arange(dense.shape[2], dtype=dtype)[:, None], np.arange(dense.shape[3], dtype=dtype)
  for at in np.ndindex(*dense.shape[:2]):
    q_tokens, kv_tokens = (
      x[tuple(min(i, n - 1) for i, n in zip(at, x.shape, strict=False))]
      for x in (rule.q_tokens, rule.kv_tokens)
    )
    got = rule.test(q_idx, kv_idx, [x[:, None] for x in q_tokens], list(kv_tokens))
    np.testing.assert_array_equal(np.broadcast_to(got, dense.shape[2:]), dense[at])


def assert_bounds_hold(mask, dense, block):
  grid = TileGrid(*dense.shape[2:], *block, dense.shape[:2])
  bounds = mask.tile_bounds(grid)
  for must, may, reduction in (("must_hit", "may_hit", np.any), ("must_fill", "may_fill", np.all)):
    tiles = tiles_of(dense, grid, reduction)
    assert not (tile_map(getattr(bounds, must), grid) & ~tiles).any(), must
    assert not (~tile_map(getattr(bounds, may), grid) & tiles).any(), may
