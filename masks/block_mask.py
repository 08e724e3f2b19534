"""BlockMask: the tiles of a mask for given lengths, the contract between masks and kernels."""

from __future__ import annotations

import typing

from masks._classify import TileGrid
from masks._mask import Mask
from masks._schedule import DeviceSchedule, Schedule
from masks._stats import MaskStats
from masks._tile_rule import TileRule


class BlockMask:
  """The tiles of a mask: which are active, which are full, and in which order kernels visit them.

  `Mask.block_mask` builds it. Batch and heads stand in front of the shapes below where the mask
  distinguishes them. Arrays are NumPy, or JAX for masks that hold traced arrays. A block mask is a pytree;
  without traced arrays it has no leaves and counts as a static value, equal when built from equal masks
  for the same lengths and tile sizes.

  Attributes:
    mask: The mask it was built from.
    grid: Lengths, tile sizes and lead.
    kinds: `masks.TileKind` of each tile, int8 [rows, cols].
    num_active: Active tiles of each row of tiles, int32 [rows].
    prefetch_i: Row of the next active tile, int32 [rows, cols]: the first in row order at or after the tile,
      wrapping to the first of all; 0 without any.
    prefetch_j: Column of the next active tile, likewise.
    prefetch_mask: Index into partial_tiles of the next PARTIAL tile, likewise.
    partial_tiles: The distinct PARTIAL tiles, bool [n, block_q, block_kv], False beyond the lengths, in order
      of first appearance. A mask without PARTIAL tile has one that is all False, so that prefetch_mask is
      always in range.
    partial_ids: Index into partial_tiles of each PARTIAL tile and -1 elsewhere, int32 [rows, cols].
    tile_rule: How a kernel computes PARTIAL tiles; None if it has to fetch them from partial_tiles.
    schedule: Active tiles in row order; the rows of all groups, below each other, are the output tiles.
    column_schedule: Active tiles in column order; the columns of all groups are the output tiles.
    may_overflow: Whether the mask may need more steps than its `capacity` (see `Mask.block_mask`).
    overflow: Whether it does, bool [].

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
  kinds: typing.Any
  num_active: typing.Any
  prefetch_i: typing.Any
  prefetch_j: typing.Any
  prefetch_mask: typing.Any
  partial_tiles: typing.Any
  partial_ids: typing.Any
  tile_rule: TileRule | None
  schedule: Schedule | DeviceSchedule
  column_schedule: Schedule | DeviceSchedule
  may_overflow: bool
  overflow: typing.Any

  q_len = property(lambda self: self.grid.q_len, doc="Number of queries.")
  kv_len = property(lambda self: self.grid.kv_len, doc="Number of keys.")
  block_q = property(lambda self: self.grid.block_q, doc="Queries per tile.")
  block_kv = property(lambda self: self.grid.block_kv, doc="Keys per tile.")
  lead = property(lambda self: self.grid.lead, doc="(batch, heads) that the mask distinguishes.")
  shape = property(lambda self: (self.q_len, self.kv_len), doc="(queries, keys).")

  def sparsity(self) -> float:
    """Share of the tiles that are EMPTY, in [0, 1]."""
    return self.stats().tile_sparsity

  def stats(self) -> MaskStats:
    """Counts of tiles and elements, and what partial tiles cost."""
    raise NotImplementedError

  def __repr__(self):
    return (
      f"BlockMask({self.mask!r}, q_len={self.q_len}, kv_len={self.kv_len}, block_q={self.block_q}, "
      f"block_kv={self.block_kv})"
    )
