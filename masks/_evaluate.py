"""Tiles decided by evaluating the mask, where bounds leave them open: few of them, and in bounded memory.

Of a rule that does not change when queries and keys move on together (causal, windows, strides, chunks and
what is composed of them), one tile stands for all tiles along its diagonal. Of any rule, a few samples show
that a tile holds an allowed pair or a forbidden one; only tiles that look uniform are evaluated whole.
"""

from __future__ import annotations

import itertools
import math
import typing

import numpy as np

from masks import _tile_runs
from masks._tile_runs import TileRuns

if typing.TYPE_CHECKING:
  from masks._classify import TileGrid
  from masks._mask import Mask

# Elements of the mask evaluated at once.
BOX_ELEMENTS = 2**22
# Pairs per tile that are looked at first.
_SAMPLES = 32


def decide(mask: Mask, grid: TileGrid, open_hit: TileRuns, open_fill: TileRuns) -> tuple[TileRuns, TileRuns]:
  """Decides tiles by evaluation.

  Args:
    mask: Any concrete mask.
    grid: Its tiles.
    open_hit: The tiles of which to find out whether they hold an allowed pair.
    open_fill: The tiles of which to find out whether they are allowed throughout.

  Returns:
    Those of `open_hit` that do, and those of `open_fill` that are; ragged tiles within the lengths.
  """
  classes = _Classes(mask, grid, open_hit | open_fill)
  hit, fill = _evaluate(mask, grid, classes, *(classes.weights(tiles) > 0 for tiles in (open_hit, open_fill)))
  return classes.pick(open_hit, hit), classes.pick(open_fill, fill)


def count_allowed(mask: Mask, grid: TileGrid, tiles: TileRuns) -> int:
  """Allowed pairs in some tiles of a concrete mask."""
  classes = _Classes(mask, grid, tiles)
  counts = np.zeros(len(classes.row), np.int64)
  for at, boxes in _boxes_of(mask, grid, classes.row, classes.col):
    counts[at] = np.count_nonzero(boxes, axis=(1, 2))
  return int((counts * classes.weights(tiles)).sum())


def tile_boxes(mask: Mask, grid: TileGrid, tiles: TileRuns):
  """Evaluates `mask` on runs of tiles, in bounded memory and in order.

  Yields:
    bool [number, block_q, block_kv] of consecutive tiles, False beyond the lengths.
  """
  selected, one = -1, mask
  width = max(1, BOX_ELEMENTS // (grid.block_q * grid.block_kv))
  for row, first, last in zip(*(x.tolist() for x in (tiles.row, tiles.start, tiles.stop)), strict=True):
    group, tile_row = divmod(row, grid.rows)
    if group != selected:
      selected, one = group, mask.select(*divmod(group, grid.lead[1]))
    q_start = tile_row * grid.block_q
    q_stop = min(q_start + grid.block_q, grid.q_len)
    for start in range(first, last, width):
      stop = min(last, start + width)
      kv_start, kv_stop = start * grid.block_kv, min(stop * grid.block_kv, grid.kv_len)
      box = np.zeros((grid.block_q, (stop - start) * grid.block_kv), bool)
      box[: q_stop - q_start, : kv_stop - kv_start] = one.box(q_start, q_stop, kv_start, kv_stop)
      yield box.reshape(grid.block_q, stop - start, grid.block_kv).swapaxes(0, 1)


class _Classes:
  """Tiles that look the same, and one of each, in order of row and column.

  Attributes:
    row: Row of that one, [classes].
    col: Its column.
  """

  def __init__(self, mask: Mask, grid: TileGrid, tiles: TileRuns):
    self._grid = grid
    # Tiles (row, col) and (row + rows, col + cols) of one group are alike.
    self._rows, self._cols = max(grid.rows, 1), 0
    if mask.period is not None:
      step = math.lcm(mask.period, grid.block_q, grid.block_kv)
      if step // grid.block_q < self._rows:
        self._rows, self._cols = step // grid.block_q, step // grid.block_kv
    found = [_first_of_each(self._keys(row, col), row, col) for row, col in tiles.pieces()]
    merged = (np.concatenate(x) if found else np.zeros(0, np.int64) for x in zip(*found, strict=True))
    self.keys, self.row, self.col = _first_of_each(*(list(merged) or [np.zeros(0, np.int64)] * 3))

  def _keys(self, row, col) -> np.ndarray:
    grid = self._grid
    group, row = np.divmod(row, grid.rows)
    # Tiles that the lengths cut off are like no others.
    cut = 2 * ((row + 1) * grid.block_q > grid.q_len) + ((col + 1) * grid.block_kv > grid.kv_len)
    period, row = np.divmod(row, self._rows)
    diagonals = grid.rows // self._rows * self._cols
    diagonal = col - period * self._cols + diagonals
    return ((group * self._rows + row) * (diagonals + grid.cols) + diagonal) * 4 + cut

  def weights(self, tiles: TileRuns) -> np.ndarray:
    """How many of `tiles` belong to each class."""
    counts = np.zeros(len(self.keys), np.int64)
    for row, col in tiles.pieces():
      counts += np.bincount(np.searchsorted(self.keys, self._keys(row, col)), minlength=len(counts))
    return counts

  def pick(self, tiles: TileRuns, wanted: np.ndarray) -> TileRuns:
    """Those of `tiles` whose class is wanted."""
    kept = []
    for row, col in tiles.pieces():
      keep = wanted[np.searchsorted(self.keys, self._keys(row, col))]
      kept.append((row[keep], col[keep]))
    return _tile_runs.of_tiles(kept, tiles.num_rows, tiles.num_cols)


def _first_of_each(keys, row, col):
  order = np.argsort(keys, kind="stable")
  keys, row, col = keys[order], row[order], col[order]
  new = np.append(True, keys[1:] != keys[:-1])[: len(keys)]
  return keys[new], row[new], col[new]


def _evaluate(mask: Mask, grid: TileGrid, classes: _Classes, open_hit, open_fill):
  """Which classes hold an allowed pair and which are allowed throughout, where that is asked for."""
  row, col = classes.row, classes.col
  any_, all_ = np.zeros(len(row), bool), np.ones(len(row), bool)
  for group, piece in _by_group(row // max(grid.rows, 1)):
    one = mask.select(*divmod(group, grid.lead[1]))
    sampled = _sample(one, grid, row[piece] % grid.rows, col[piece])
    any_[piece], all_[piece] = sampled.any(axis=1), sampled.all(axis=1)
  left = np.flatnonzero((open_hit & ~any_) | (open_fill & all_))
  for at, boxes in _boxes_of(mask, grid, row[left], col[left]):
    q_left = grid.q_len - row[left[at]] % grid.rows * grid.block_q
    kv_left = grid.kv_len - col[left[at]] * grid.block_kv
    size = np.minimum(q_left, grid.block_q) * np.minimum(kv_left, grid.block_kv)
    count = np.count_nonzero(boxes, axis=(1, 2))
    any_[left[at]], all_[left[at]] = count > 0, count == size
  return any_, all_


def _by_group(group: np.ndarray):
  """(group, slice) of equal numbers in a sorted array, cut into pieces whose samples are as many as a box."""
  edges = np.flatnonzero(np.append(True, group[1:] != group[:-1])[: len(group)])
  for begin, end in itertools.pairwise([*edges.tolist(), len(group)]):
    for start in range(begin, end, BOX_ELEMENTS // _SAMPLES):
      yield int(group[begin]), slice(start, min(end, start + BOX_ELEMENTS // _SAMPLES))


def _sample(mask: Mask, grid: TileGrid, row, col) -> np.ndarray:
  """The mask at some pairs of each tile, bool [tiles, samples]: corners, diagonals, and elsewhere."""
  line = np.linspace(0, 1, 8)
  rng = np.random.default_rng(0)
  q_part = np.concatenate([line, line, rng.random(_SAMPLES - 16)])
  kv_part = np.concatenate([line, line[::-1], rng.random(_SAMPLES - 16)])
  pairs = []
  for tile, part, block, length in (
    (row, q_part, grid.block_q, grid.q_len),
    (col, kv_part, grid.block_kv, grid.kv_len),
  ):
    start = (tile * block)[:, None]
    size = np.minimum(length - start, block)
    pairs.append((start + np.floor(part * (size - 1) + 0.5).astype(np.int64)).astype(np.int32))
  return np.broadcast_to(np.asarray(mask.allows(*pairs)), pairs[0].shape).astype(bool)


def _boxes_of(mask: Mask, grid: TileGrid, row, col):
  """(indices, boxes) of tiles in any order, in bounded memory."""
  order = np.lexsort((col, row))
  done = 0
  for boxes in tile_boxes(
    mask, grid, _tile_runs.of_tiles([(row[order], col[order])], grid.all_rows, grid.cols)
  ):
    yield order[done : done + len(boxes)], boxes
    done += len(boxes)
