"""HostBlockMask: the block mask of a concrete mask, classified on the host and stored as runs of tiles."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np

from masks import _classify, _draw, _evaluate
from masks._classify import TileGrid
from masks._mask import Mask, squeeze_lead
from masks._schedule import Schedule
from masks._stats import MaskStats
from masks._tile_rule import TileRule
from masks._tile_runs import TileRuns
from masks.block_mask import BlockMask
from masks.tile_kind import TileKind


@functools.lru_cache(maxsize=32)
def build(mask: Mask, grid: TileGrid) -> HostBlockMask:
  """Classifies the tiles of a concrete mask; equal calls share one result."""
  return HostBlockMask(mask, grid, *_classify.classify(mask, grid))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class HostBlockMask(BlockMask):
  """Tiles stored as runs, so that a million tokens take kilobytes; dense maps are made when asked for.

  Attributes:
    mask: See `BlockMask`.
    grid: See `BlockMask`.
    active: Tiles that hold an allowed pair.
    full: Tiles that are allowed throughout.
  """

  mask: Mask
  grid: TileGrid
  active: TileRuns
  full: TileRuns
  may_overflow = False
  overflow = False

  def __eq__(self, other):
    if not isinstance(other, HostBlockMask):
      return NotImplemented
    return self.grid == other.grid and self.mask == other.mask

  def __hash__(self):
    return hash((self.grid, self.mask))

  @functools.cached_property
  def kinds(self) -> np.ndarray:
    kinds = np.full((self.grid.all_rows, self.grid.cols), TileKind.EMPTY, np.int8)
    kinds[self.active.tile_indices()] = TileKind.PARTIAL
    kinds[self.full.tile_indices()] = TileKind.FULL
    return self._with_lead(kinds)

  @functools.cached_property
  def num_active(self) -> np.ndarray:
    lengths = self.active.stop - self.active.start
    counts = np.bincount(self.active.row, lengths, minlength=self.grid.all_rows)
    return squeeze_lead(counts.astype(np.int32).reshape(*self.lead, self.grid.rows))

  @property
  def prefetch_i(self) -> np.ndarray:
    return self._next_active[0]

  @property
  def prefetch_j(self) -> np.ndarray:
    return self._next_active[1]

  @functools.cached_property
  def prefetch_mask(self) -> np.ndarray:
    return self._with_lead(_next_value(self.partial_ids, self.partial_ids >= 0, self.grid))

  @functools.cached_property
  def partial_tiles(self) -> np.ndarray:
    return self._partial[0]

  @functools.cached_property
  def partial_ids(self) -> np.ndarray:
    ids = np.full((self.grid.all_rows, self.grid.cols), -1, np.int32)
    ids[self.partial.tile_indices()] = self._partial[1]
    return self._with_lead(ids)

  @functools.cached_property
  def partial(self) -> TileRuns:
    """Active tiles that are not full."""
    return self.active - self.full

  @functools.cached_property
  def tile_rule(self) -> TileRule | None:
    return self.mask.tile_rule(self.q_len, self.kv_len)

  @functools.cached_property
  def schedule(self) -> Schedule:
    return _schedule(self.partial, self.full)

  @functools.cached_property
  def column_schedule(self) -> Schedule:
    return _schedule(*(tiles.transposed(self.grid.groups) for tiles in (self.partial, self.full)))

  def stats(self) -> MaskStats:
    return MaskStats.of(self)

  def __str__(self):
    return _draw.text(self)

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
    for boxes in _evaluate.tile_boxes(self.mask, self.grid, self.partial):
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


def _schedule(partial: TileRuns, full: TileRuns) -> Schedule:
  """The runs of active tiles with one kind, by output tile."""
  row, start, stop = (
    np.concatenate([getattr(runs, name) for runs in (partial, full)]) for name in ("row", "start", "stop")
  )
  kinds = np.repeat([TileKind.PARTIAL, TileKind.FULL], [len(partial.row), len(full.row)])
  order = np.lexsort((start, row))
  return Schedule.build(row[order], start[order], stop[order], kinds[order], partial.num_rows)


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
