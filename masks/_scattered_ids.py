"""Tiles of documents whose tokens are scattered, in bounded memory.

Each tile is the set of its ids, and two tiles meet where they share one. Ids that few tiles have are joined
pair by pair, those that many have by a product of incidence matrices, in which they cost least.
"""

from __future__ import annotations

import typing

import numpy as np

from masks import _tile_runs
from masks._classify import TileGrid
from masks._spans import distinct
from masks._tile_runs import TileRuns

# Tiles decided at once, and entries of a join or of an incidence matrix: some 16 MB each.
_AT_ONCE = 2**22
# How many multiplications of a matrix product take as long as a pair of a join.
_PRODUCT_GAIN = 1000


class _TileIds(typing.NamedTuple):
  """Which tiles have which ids, by id and then tile, int64 [n]."""

  ids: np.ndarray
  tiles: np.ndarray

  def pick(self, keep) -> _TileIds:
    return _TileIds(self.ids[keep], self.tiles[keep])


def tiles_of_ids(q_ids: np.ndarray, kv_ids: np.ndarray, grid: TileGrid) -> tuple[TileRuns, TileRuns]:
  """Exact tiles of the rule that ids, [tokens] each, are equal and not negative.

  Args:
    q_ids: Id of each query.
    kv_ids: Id of each key.
    grid: The tiles, of one example and head.

  Returns:
    Tiles with an allowed pair, and tiles allowed throughout, ragged ones within the lengths.
  """
  same = q_ids is kv_ids and grid.block_q == grid.block_kv
  found = []
  for ids_of in (_every_id, _only_id):
    rows = ids_of(q_ids, grid.block_q)
    found.append(_meetings(rows, rows if same else ids_of(kv_ids, grid.block_kv), grid))
  hit, fill = found
  return hit, fill


def _every_id(ids: np.ndarray, block: int) -> _TileIds:
  """The ids of each tile."""
  num_tiles = -(-len(ids) // block)
  keys = ids.astype(np.int64) * num_tiles + np.arange(len(ids)) // block
  return _TileIds(*np.divmod(distinct(keys[ids >= 0]), max(num_tiles, 1)))


def _only_id(ids: np.ndarray, block: int) -> _TileIds:
  """The ids of the tiles all of whose tokens carry one."""
  start = np.arange(0, len(ids), block)
  low, high = (x.reduceat(ids, start) if len(ids) else ids for x in (np.minimum, np.maximum))
  tiles = np.flatnonzero((low == high) & (low >= 0))
  tiles = tiles[np.argsort(low[tiles], kind="stable")]
  return _TileIds(low[tiles], tiles)


def _meetings(rows: _TileIds, cols: _TileIds, grid: TileGrid) -> TileRuns:
  """The tiles whose row and column have an id in common."""
  common = np.intersect1d(distinct(rows.ids), distinct(cols.ids), assume_unique=True)
  # From here on, ids are numbered.
  rows, cols = (
    _TileIds(np.searchsorted(common, x.ids), x.tiles)
    for x in (x.pick(np.isin(x.ids, common)) for x in (rows, cols))
  )
  row_count, col_count = (np.bincount(x.ids, minlength=len(common)) for x in (rows, cols))
  is_frequent = row_count * col_count * _PRODUCT_GAIN > grid.rows * grid.cols
  height = max(1, _AT_ONCE // max(grid.cols, 1))
  found = []
  for first in range(0, max(grid.rows, 1), height):
    here = rows.pick((rows.tiles >= first) & (rows.tiles < first + height))
    here = here._replace(tiles=here.tiles - first)
    met = np.zeros((min(height, grid.rows - first), grid.cols), bool)
    _multiply(here, cols, np.flatnonzero(is_frequent), met)
    _join(here.pick(~is_frequent[here.ids]), cols, met)
    found.append(_tile_runs.from_map(met))
  row = np.concatenate([tiles.row + n * height for n, tiles in enumerate(found)])
  start, stop = (np.concatenate([getattr(tiles, name) for tiles in found]) for name in ("start", "stop"))
  return TileRuns(row, start, stop, grid.rows, grid.cols)


def _multiply(rows: _TileIds, cols: _TileIds, ids: np.ndarray, met: np.ndarray) -> None:
  """Marks the tiles whose row and column share one of `ids`."""
  at_once = max(1, _AT_ONCE // max(met.shape))
  for first in range(0, len(ids), at_once):
    piece = ids[first : first + at_once]
    by_row, by_col = (
      _incidence(side, piece, count) for side, count in zip((rows, cols), met.shape, strict=True)
    )
    met |= by_row.T @ by_col > 0


def _incidence(side: _TileIds, ids: np.ndarray, num_tiles: int) -> np.ndarray:
  """Which of `ids`, sorted, stand in which tiles, float32 [ids, num_tiles]."""
  side = side.pick(np.isin(side.ids, ids))
  matrix = np.zeros((len(ids), num_tiles), np.float32)
  matrix[np.searchsorted(ids, side.ids), side.tiles] = 1
  return matrix


def _join(rows: _TileIds, cols: _TileIds, met: np.ndarray) -> None:
  """Marks the tiles whose row and column share an id, a bounded number of pairs at once."""
  begin = np.searchsorted(cols.ids, rows.ids, "left")
  matches = np.searchsorted(cols.ids, rows.ids, "right") - begin
  done = np.cumsum(matches)
  first = 0
  while first < len(matches):
    before = done[first] - matches[first]
    last = max(first + 1, int(np.searchsorted(done, before + _AT_ONCE, "right")))
    count = matches[first:last]
    entry = np.arange(count.sum()) + np.repeat(begin[first:last] - done[first:last] + count + before, count)
    met[np.repeat(rows.tiles[first:last], count), cols.tiles[entry]] = True
    first = last
