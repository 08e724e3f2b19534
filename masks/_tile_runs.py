"""TileRuns: a set of tiles stored as runs of consecutive tiles per tile row, and set algebra on it.

The tile rows of all batch and head entries stand below each other. Rows of causal, window and document
masks hold one or two runs, so a set costs O(rows) where a dense tile map costs O(rows * columns).
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

# Tiles decided at once: the temporary arrays then take some 10 MB.
_TILES_AT_ONCE = 2**17


@dataclasses.dataclass(frozen=True)
class TileRuns:
  """Tiles [start, stop) of tile row `row`, for each run; runs are in order and do not touch.

  Attributes:
    row: [n] int64, non-decreasing.
    start: [n] int64, first tile column of the run.
    stop: [n] int64, one past its last tile column.
    num_rows: Tile rows, over all batch and head entries.
    num_cols: Tile columns.
  """

  row: np.ndarray
  start: np.ndarray
  stop: np.ndarray
  num_rows: int
  num_cols: int

  @property
  def num_tiles(self) -> int:
    """Tiles in the set."""
    return int((self.stop - self.start).sum())

  def __and__(self, other: TileRuns) -> TileRuns:
    """Tiles in both sets."""
    return _combine(self, other, need=2)

  def __or__(self, other: TileRuns) -> TileRuns:
    """Tiles in either set."""
    return _combine(self, other, need=1)

  def __invert__(self) -> TileRuns:
    """Tiles not in the set."""
    rows = np.arange(self.num_rows, dtype=np.int64)
    starts = np.sort(np.concatenate([self._key(rows, 0), self._key(self.row, self.stop)]))
    stops = np.sort(np.concatenate([self._key(self.row, self.start), self._key(rows, self.num_cols)]))
    return self._from_keys(starts, stops)

  def __sub__(self, other: TileRuns) -> TileRuns:
    """Tiles of this set that are not in the other."""
    return self & ~other

  def transposed(self, groups: int) -> TileRuns:
    """The set by columns: the columns of each of `groups` equal parts of the rows stand below each other.

    A run along a column begins at a tile whose upper neighbour is not in the set, and ends below one whose
    lower neighbour is not; so this takes time in the number of runs, not of tiles.
    """
    rows = self.num_rows // max(groups, 1)
    # One more row per group, in which runs that reach the last one end.
    row = self.row + self.row // max(rows, 1)
    above = TileRuns(row, self.start, self.stop, groups * (rows + 1), self.num_cols)
    below = dataclasses.replace(above, row=row + 1)
    first, stop = (edges._column_keys(rows + 1) for edges in (above - below, below - above))
    outer, start = np.divmod(first, rows + 1)
    return TileRuns(outer, start, stop - outer * (rows + 1), groups * self.num_cols, rows)

  def _column_keys(self, rows: int) -> np.ndarray:
    """Sorted keys of all tiles, by group, column and row."""
    row, col = self.tile_indices()
    group, row = np.divmod(row, rows)
    return np.sort((group * self.num_cols + col) * rows + row)

  def tile_indices(self) -> tuple[np.ndarray, np.ndarray]:
    """(row, column) of every tile in row order, int64."""
    lengths = self.stop - self.start
    first = np.cumsum(lengths) - lengths
    cols = np.arange(lengths.sum()) - np.repeat(first - self.start, lengths)
    return np.repeat(self.row, lengths), cols

  def pieces(self):
    """`tile_indices` in pieces of runs, of bounded size if the runs are."""
    part = (np.cumsum(self.stop - self.start) - 1) // _TILES_AT_ONCE
    edges = np.flatnonzero(np.append(True, part[1:] != part[:-1])[: len(part)])
    for begin, end in itertools.pairwise([*edges.tolist(), len(part)]):
      runs = (getattr(self, name)[begin:end] for name in ("row", "start", "stop"))
      yield TileRuns(*runs, self.num_rows, self.num_cols).tile_indices()

  def _key(self, row, col) -> np.ndarray:
    return row * (self.num_cols + 1) + col

  def _from_keys(self, starts, stops) -> TileRuns:
    keep = starts < stops
    row, start = np.divmod(starts[keep], self.num_cols + 1)
    return TileRuns(row, start, stops[keep] - self._key(row, 0), self.num_rows, self.num_cols)


def all_tiles(num_rows: int, num_cols: int) -> TileRuns:
  """The set of every tile."""
  return ~no_tiles(num_rows, num_cols)


def no_tiles(num_rows: int, num_cols: int) -> TileRuns:
  """The empty set."""
  none = np.zeros(0, np.int64)
  return TileRuns(none, none, none, num_rows, num_cols)


def covered(row, start, stop, need, num_rows: int, num_cols: int) -> TileRuns:
  """Tiles that at least `need` of the given intervals cover.

  Args:
    row: [n] int, tile row of each interval.
    start: [n] int, first tile column.
    stop: [n] int, one past the last; intervals with stop <= start count for nothing.
    need: [num_rows] int or int, at least 1.
    num_rows: Tile rows.
    num_cols: Tile columns.

  Returns:
    The set of covered tiles.
  """
  result = no_tiles(num_rows, num_cols)
  keep = stop > start
  row, start, stop = (np.asarray(x)[keep].astype(np.int64) for x in (row, start, stop))
  edges = np.concatenate([result._key(row, start), result._key(row, stop)])
  delta = np.repeat([1, -1], len(row))
  order = np.argsort(edges, kind="stable")
  edges, depth = edges[order], np.cumsum(delta[order])
  last = np.append(edges[1:] != edges[:-1], True)[: len(edges)]
  edges, depth = edges[last], depth[last]
  enough = depth >= np.broadcast_to(need, (num_rows,))[edges // (num_cols + 1)]
  before = np.concatenate([[False], enough[:-1]])[: len(enough)]
  return result._from_keys(edges[enough & ~before], edges[~enough & before])


def from_sorted(row, start, stop, num_rows: int, num_cols: int) -> TileRuns:
  """The union of runs [start, stop), none empty, in order of row, start and stop."""
  new = np.ones(len(row), bool)
  new[1:] = (row[1:] != row[:-1]) | (start[1:] > stop[:-1])
  begin = np.flatnonzero(new)
  end = np.append(begin, len(row))[1:] - 1
  return TileRuns(row[begin], start[begin], stop[end], num_rows, num_cols)


def from_map(tiles) -> TileRuns:
  """The set of the True entries of a [rows, cols] map."""
  return of_tiles([np.nonzero(tiles)], *tiles.shape)


def of_tiles(parts: list, num_rows: int, num_cols: int) -> TileRuns:
  """The set of the tiles of (row, col) pairs of arrays, none twice, together in order of row and column."""
  none = np.zeros(0, np.int64)
  row, col = map(np.concatenate, zip((none, none), *parts, strict=True))
  return from_sorted(row, col, col + 1, num_rows, num_cols)


def _combine(a: TileRuns, b: TileRuns, need: int) -> TileRuns:
  pairs = ((a.row, b.row), (a.start, b.start), (a.stop, b.stop))
  return covered(*(np.concatenate(p) for p in pairs), need, a.num_rows, a.num_cols)
