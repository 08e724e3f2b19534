"""MaskStats: how sparse a block mask is, and what its partial tiles cost."""

from __future__ import annotations

import dataclasses
import typing

from masks import _evaluate

if typing.TYPE_CHECKING:
  from masks._host_block_mask import HostBlockMask


@dataclasses.dataclass(frozen=True)
class MaskStats:
  """Counts of a block mask over all its batch and head entries.

  Attributes:
    num_tiles: Tiles in all.
    num_full: FULL tiles.
    num_partial: PARTIAL tiles.
    num_allowed: Allowed (query, key) pairs.
    element_density: Allowed pairs as a share of all pairs, in [0, 1].
    tile_sparsity: EMPTY tiles as a share of all tiles, in [0, 1].
    active_per_row: (least, mean, most) active tiles in a row of tiles.
    useful_flops: Allowed pairs as a share of the pairs in active tiles: what tiling does not waste.
    partial_tiles_stored: Distinct partial tiles that kernels must fetch; 0 if they compute them.
    partial_bytes: Bytes of these as int8.
  """

  num_tiles: int
  num_full: int
  num_partial: int
  num_allowed: int
  element_density: float
  tile_sparsity: float
  active_per_row: tuple[int, float, int]
  useful_flops: float
  partial_tiles_stored: int
  partial_bytes: int

  @classmethod
  def of(cls, block_mask: HostBlockMask) -> MaskStats:
    """Counts `block_mask`."""
    grid, active = block_mask.grid, block_mask.active.num_tiles
    num_tiles = grid.all_rows * grid.cols
    allowed = _count_allowed(block_mask)
    pairs = grid.groups * grid.q_len * grid.kv_len
    rows = block_mask.num_active
    stored = 0 if block_mask.tile_rule is not None else int(block_mask.partial_ids.max(initial=-1)) + 1
    return cls(
      num_tiles=num_tiles,
      num_full=block_mask.full.num_tiles,
      num_partial=block_mask.partial.num_tiles,
      num_allowed=allowed,
      element_density=allowed / max(pairs, 1),
      tile_sparsity=1 - active / num_tiles if num_tiles else 0.0,
      active_per_row=(int(rows.min()), float(rows.mean()), int(rows.max())) if rows.size else (0, 0.0, 0),
      useful_flops=allowed / (active * grid.block_q * grid.block_kv) if active else 1.0,
      partial_tiles_stored=stored,
      partial_bytes=stored * grid.block_q * grid.block_kv,
    )

  @property
  def num_active(self) -> int:
    """Active tiles: FULL and PARTIAL."""
    return self.num_full + self.num_partial

  def __str__(self):
    least, mean, most = self.active_per_row
    return (
      f"{self.num_active:,} of {self.num_tiles:,} tiles active ({1 - self.tile_sparsity:.1%}): "
      f"{self.num_full:,} full, {self.num_partial:,} partial; per row {least} to {most}, mean {mean:.1f}; "
      f"{self.element_density:.2%} of pairs allowed, {self.useful_flops:.0%} of those computed"
    )


def _count_allowed(block_mask: HostBlockMask) -> int:
  grid = block_mask.grid
  spans = block_mask.mask.spans(grid.q_len, grid.kv_len)
  if spans is not None:
    return spans.num_allowed()
  full = block_mask.full.num_tiles * grid.block_q * grid.block_kv
  return full + _evaluate.count_allowed(block_mask.mask, grid, block_mask.partial)
