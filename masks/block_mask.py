"""BlockMask: the tiles of a mask for given lengths, the contract between masks and kernels."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from masks import _checks, _classify, _draw
from masks._classify import TileGrid
from masks._mask import Mask, squeeze_lead
from masks._schedule import Schedule
from masks._stats import MaskStats
from masks._tile_rule import TileRule
from masks._tile_runs import TileRuns
from masks.tile_kind import TileKind


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BlockMask:
  """The tiles of a mask: which are active, which are full, and in which order kernels visit them.

  `Mask.block_mask` builds it. It stores runs of tiles, so that it stays small at a million tokens; the
  dense maps below are made when asked for. Batch and heads stand in front of their shapes where the mask
  distinguishes them. Equal when built from equal masks for the same lengths and tile sizes.

  Attributes:
    mask: The mask it was built from.
    grid: Lengths, tile sizes and lead.
    active: Tiles that hold an allowed pair.
    full: Tiles that are allowed throughout.

  >>> import masks
  >>> block_mask = masks.causal().block_mask(q_len=6, kv_len=6, block_q=2, block_kv=2)
  >>> block_mask.kinds
  array([[1, 0, 0],
         [2, 1, 0],
         [2, 2, 1]], dtype=int8)
  >>> block_mask.num_active, round(block_mask.sparsity(), 2)
  (array([1, 2, 3], dtype=int32), 0.33)
  """

  mask: Mask
  grid: TileGrid
  active: TileRuns
  full: TileRuns

  q_len = property(lambda self: self.grid.q_len, doc="Number of queries.")
  kv_len = property(lambda self: self.grid.kv_len, doc="Number of keys.")
  block_q = property(lambda self: self.grid.block_q, doc="Queries per tile.")
  block_kv = property(lambda self: self.grid.block_kv, doc="Keys per tile.")
  lead = property(lambda self: self.grid.lead, doc="(batch, heads) that the mask distinguishes.")
  shape = property(lambda self: (self.q_len, self.kv_len), doc="(queries, keys).")

  def __eq__(self, other):
    if not isinstance(other, BlockMask):
      return NotImplemented
    return self.grid == other.grid and self.mask == other.mask

  def __hash__(self):
    return hash((self.grid, self.mask))

  @functools.cached_property
  def kinds(self) -> np.ndarray:
    """`TileKind` of each tile, int8 [rows, cols]."""
    kinds = np.full((self.grid.all_rows, self.grid.cols), TileKind.EMPTY, np.int8)
    kinds[self.active.tile_indices()] = TileKind.PARTIAL
    kinds[self.full.tile_indices()] = TileKind.FULL
    return self._with_lead(kinds)

  @functools.cached_property
  def num_active(self) -> np.ndarray:
    """Active tiles of each row of tiles, int32 [rows]."""
    lengths = self.active.stop - self.active.start
    counts = np.bincount(self.active.row, lengths, minlength=self.grid.all_rows)
    return squeeze_lead(counts.astype(np.int32).reshape(*self.lead, self.grid.rows))

  @property
  def prefetch_i(self) -> np.ndarray:
    """Row of the next active tile, int32 [rows, cols].

    "Next" is the first in row order at or after the tile, wrapping to the first of all; 0 without any.
    """
    return self._next_active[0]

  @property
  def prefetch_j(self) -> np.ndarray:
    """Column of the next active tile, int32 [rows, cols]; see `prefetch_i`."""
    return self._next_active[1]

  @functools.cached_property
  def prefetch_mask(self) -> np.ndarray:
    """Index into `partial_tiles` of the next PARTIAL tile, int32 [rows, cols]; see `prefetch_i`."""
    return self._with_lead(_next_value(self.partial_ids, self.partial_ids >= 0, self.grid))

  @functools.cached_property
  def partial_tiles(self) -> np.ndarray:
    """The distinct PARTIAL tiles, bool [n, block_q, block_kv], False beyond the lengths.

    In order of first appearance. A mask without PARTIAL tile has one that is all False, so that
    `prefetch_mask` is always in range.
    """
    return self._partial[0]

  @functools.cached_property
  def partial_ids(self) -> np.ndarray:
    """Index into `partial_tiles` of each PARTIAL tile and -1 elsewhere, int32 [rows, cols]."""
    ids = np.full((self.grid.all_rows, self.grid.cols), -1, np.int32)
    ids[self.partial.tile_indices()] = self._partial[1]
    return self._with_lead(ids)

  @functools.cached_property
  def partial(self) -> TileRuns:
    """Active tiles that are not full."""
    return self.active - self.full

  @functools.cached_property
  def tile_rule(self) -> TileRule | None:
    """How a kernel computes PARTIAL tiles; None if it has to fetch them from `partial_tiles`."""
    return self.mask.tile_rule(self.q_len, self.kv_len)

  @functools.cached_property
  def schedule(self) -> Schedule:
    """Active tiles in row order: the rows of all groups, below each other, are the output tiles."""
    row, start, stop, kinds = self._runs
    return Schedule.build(row, start, stop, kinds, self.grid.all_rows)

  @functools.cached_property
  def column_schedule(self) -> Schedule:
    """Active tiles in column order, the columns of all groups being the output tiles."""
    tiles = [
      np.stack([*runs.tile_indices(), np.full(runs.num_tiles, kind)])
      for runs, kind in ((self.partial, TileKind.PARTIAL), (self.full, TileKind.FULL))
    ]
    row, col, kinds = np.concatenate(tiles, axis=1)
    group, row = np.divmod(row, max(self.grid.rows, 1))
    outer = group * self.grid.cols + col
    order = np.lexsort((row, outer))
    outer, row, kinds = outer[order], row[order], kinds[order]
    new = np.ones(len(row), bool)
    new[1:] = (np.diff(outer) != 0) | (np.diff(row) != 1) | (np.diff(kinds) != 0)
    begin = np.flatnonzero(new)
    stop = row[begin] + np.diff(np.append(begin, len(row)))
    num_outer = self.grid.groups * self.grid.cols
    return Schedule.build(outer[begin], row[begin], stop, kinds[begin], num_outer)

  def sparsity(self) -> float:
    """Share of the tiles that are EMPTY, in [0, 1]."""
    return self.stats().tile_sparsity

  def stats(self) -> MaskStats:
    """Counts of tiles and elements, and what partial tiles cost."""
    return MaskStats.of(self)

  def __repr__(self):
    return (
      f"BlockMask({self.mask!r}, q_len={self.q_len}, kv_len={self.kv_len}, block_q={self.block_q}, "
      f"block_kv={self.block_kv})"
    )

  def __str__(self):
    return _draw.text(self)

  @functools.cached_property
  def _runs(self):
    """Runs of active tiles with one kind, in row order: (row, start, stop, kind)."""
    pairs = ((self.partial, TileKind.PARTIAL), (self.full, TileKind.FULL))
    row, start, stop = (
      np.concatenate([getattr(runs, name) for runs, _ in pairs]) for name in ("row", "start", "stop")
    )
    kinds = np.concatenate([np.full(len(runs.row), kind) for runs, kind in pairs])
    order = np.lexsort((start, row))
    return row[order], start[order], stop[order], kinds[order]

  @functools.cached_property
  def _next_active(self) -> tuple[np.ndarray, np.ndarray]:
    row, col = np.indices((self.grid.rows, self.grid.cols), dtype=np.int32)
    lead = (self.grid.groups, 1, 1)
    active = self.kinds != TileKind.EMPTY
    row, col = (_next_value(np.tile(x, lead), active, self.grid) for x in (row, col))
    return self._with_lead(row), self._with_lead(col)

  @functools.cached_property
  def _partial(self) -> tuple[np.ndarray, np.ndarray]:
    """The distinct partial tiles and, for each partial tile in row order, which of them it is."""
    known: dict[bytes, int] = {}
    ids = []
    for _, _, _, boxes in _classify.tile_boxes(self.mask, self.grid, self.partial):
      packed = np.packbits(boxes.reshape(len(boxes), -1), axis=1)
      ids += [known.setdefault(tile.tobytes(), len(known)) for tile in packed]
    size = self.block_q * self.block_kv
    tiles = np.zeros((max(1, len(known)), self.block_q, self.block_kv), bool)
    for content, index in known.items():
      bits = np.unpackbits(np.frombuffer(content, np.uint8), count=size)
      tiles[index] = bits.reshape(self.block_q, self.block_kv)
    return tiles, np.array(ids, np.int32)

  def _with_lead(self, tiles: np.ndarray) -> np.ndarray:
    return squeeze_lead(tiles.reshape(*self.lead, self.grid.rows, self.grid.cols))


@functools.lru_cache(maxsize=32)
def build_block_mask(
  mask: Mask, q_len: int, kv_len: int, block_q: int, block_kv: int
) -> BlockMask:
  """See `Mask.block_mask`, which checks the lengths."""
  for name, value in (("block_q", block_q), ("block_kv", block_kv)):
    if _checks.integer(name, value) < 1:
      raise ValueError(f"`{name}` must be at least 1, got {name}={value}.")
  grid = TileGrid(int(q_len), int(kv_len), int(block_q), int(block_kv), mask.lead)
  return BlockMask(mask, grid, *_classify.classify(mask, grid))


def _next_value(values: np.ndarray, wanted: np.ndarray, grid: TileGrid) -> np.ndarray:
  """Of each group's flattened tiles, the value at the next wanted one, wrapping; 0 without any."""
  values, wanted = (x.reshape(grid.groups, -1) for x in (values, wanted))
  result = np.zeros(values.shape, np.int32)
  for group in range(grid.groups):
    where = np.flatnonzero(wanted[group])
    if where.size:
      following = np.searchsorted(where, np.arange(values.shape[1])) % where.size
      result[group] = values[group, where[following]]
  return result

