"""Exact tiles of masks that are no intervals: of one example and head, then of all below each other."""

from __future__ import annotations

import typing

import numpy as np

from masks import _tile_runs
from masks._classify import TileBounds, TileGrid
from masks._tile_runs import TileRuns


def exact(
  grid: TileGrid,
  lead: tuple[int, int],
  tiles_of: typing.Callable[[int, int], tuple[TileRuns, TileRuns]],
) -> TileBounds:
  """Bounds that leave nothing open.

  Args:
    grid: The tiles.
    lead: (batch, heads) that the mask distinguishes; each 1 or as in the grid.
    tiles_of: Function (batch, head) -> tiles with an allowed pair, and tiles that are allowed
      throughout, ragged ones within the lengths. Called once for each entry of `lead`.

  Returns:
    The bounds.
  """
  entries = [tuple(i if n > 1 else 0 for i, n in zip(at, lead, strict=True)) for at in np.ndindex(*grid.lead)]
  tiles = {entry: tiles_of(*entry) for entry in dict.fromkeys(entries)}
  hit, fill = (_below([tiles[entry][k] for entry in entries]) for k in (0, 1))
  return TileBounds.exact(grid, hit, fill)


def _below(groups: list[TileRuns]) -> TileRuns:
  rows, cols = groups[0].num_rows, groups[0].num_cols
  row = np.concatenate([tiles.row + n * rows for n, tiles in enumerate(groups)])
  start, stop = (np.concatenate([getattr(t, name) for t in groups]) for name in ("start", "stop"))
  return TileRuns(row, start, stop, rows * len(groups), cols)


def token_ranges(length: int, block: int) -> tuple[np.ndarray, np.ndarray]:
  """First token of each tile and one past its last, int64."""
  start = np.arange(0, length, block, dtype=np.int64)
  return start, np.minimum(start + block, length)


def product(rows, cols) -> TileRuns:
  """The tiles (row, col) for which rows[row] and cols[col]."""
  one_row = _tile_runs.from_map(np.asarray(cols)[None])
  at = np.flatnonzero(rows)
  count = len(one_row.row)
  start, stop = (np.tile(x, len(at)) for x in (one_row.start, one_row.stop))
  return TileRuns(np.repeat(at, count), start, stop, len(rows), len(cols))


def touched(row, start, stop, grid: TileGrid) -> TileRuns:
  """Tiles of tile row `row` that hold a key of [start, stop), for each of such intervals."""
  row, first, last = _touched_cols(row, start, stop, grid)
  return _tile_runs.covered(row, first, last, 1, grid.rows, grid.cols)


def touched_sorted(row, start, stop, grid: TileGrid) -> TileRuns:
  """`touched` for intervals in order of row, start and stop, which saves sorting them."""
  return _tile_runs.from_sorted(*_touched_cols(row, start, stop, grid), grid.rows, grid.cols)


def _touched_cols(row, start, stop, grid: TileGrid):
  start, stop = np.maximum(start, 0), np.minimum(stop, grid.kv_len)
  keep = start < stop
  return row[keep], start[keep] // grid.block_kv, -(-stop[keep] // grid.block_kv)


def contained(row, start, stop, grid: TileGrid) -> TileRuns:
  """Tiles of tile row `row` all of whose keys lie in the union of its intervals [start, stop)."""
  start, stop = np.maximum(start, 0), np.minimum(stop, grid.kv_len)
  keys = _tile_runs.covered(row, start, stop, 1, grid.rows, grid.kv_len)
  last = np.where(keys.stop == grid.kv_len, grid.cols, keys.stop // grid.block_kv)
  first = -(-keys.start // grid.block_kv)
  return _tile_runs.covered(keys.row, first, last, 1, grid.rows, grid.cols)


def decide(candidates: TileRuns, test: typing.Callable) -> tuple[TileRuns, TileRuns]:
  """Decides tile by tile, in bounded memory.

  Args:
    candidates: The tiles that may hold an allowed pair.
    test: Function (rows, cols) of int arrays -> (hit, fill), bool for each of these tiles.

  Returns:
    The tiles with `hit`, and those with `fill`.
  """
  found: tuple[list, list] = ([], [])
  for row, col in candidates.pieces():
    for tiles, keep in zip(found, test(row, col), strict=True):
      tiles.append((row[keep], col[keep]))
  hit, fill = (_tile_runs.of_tiles(x, candidates.num_rows, candidates.num_cols) for x in found)
  return hit, fill
