"""Pictures of block masks."""

from __future__ import annotations

import typing

import numpy as np

if typing.TYPE_CHECKING:
  from masks._host_block_mask import HostBlockMask
  from masks._tile_runs import TileRuns

MAX_COLUMNS, MAX_LINES = 64, 32
_EMPTY, _PARTIAL, _FULL = "·", "▒", "█"


def text(block_mask: HostBlockMask) -> str:
  """The tile map as text, scaled down to at most 64 columns and 32 lines per group."""
  grid = block_mask.grid
  lines = [repr(block_mask), str(block_mask.stats())]
  shape = (min(grid.rows, MAX_LINES), min(grid.cols, MAX_COLUMNS))
  if 0 in shape:
    return "\n".join(lines)
  scaled = (shape[0] < grid.rows) or (shape[1] < grid.cols)
  cells = (
    f"one character is {-(-grid.rows // shape[0])} x {-(-grid.cols // shape[1])} tiles, " if scaled else ""
  )
  lines.append(f"{cells}{_FULL} full, {_PARTIAL} partial, {_EMPTY} empty")
  active, full, every = (_count(x, block_mask, shape) for x in (block_mask.active, block_mask.full, None))
  picture = np.full(active.shape, _PARTIAL)
  picture[active == 0] = _EMPTY
  picture[full == every] = _FULL
  for group in range(grid.groups):
    if grid.groups > 1:
      lines.append("batch {}, head {}".format(*divmod(group, grid.lead[1])))
    lines += ["".join(row) for row in picture[group]]
  return "\n".join(lines)


def _count(tiles: TileRuns | None, block_mask: HostBlockMask, shape: tuple[int, int]) -> np.ndarray:
  """Tiles of a set (None: all tiles) in each cell of the picture, [groups, lines, columns]."""
  grid = block_mask.grid
  edges = np.arange(shape[1] + 1) * grid.cols // shape[1]
  counts = np.zeros((grid.groups, *shape), np.int64)
  if tiles is None:
    row, start, stop = np.arange(grid.all_rows), 0, grid.cols
  else:
    row, start, stop = tiles.row, tiles.start[:, None], tiles.stop[:, None]
  group, tile_row = np.divmod(row, grid.rows)
  line = np.searchsorted(np.arange(shape[0] + 1) * grid.rows // shape[0], tile_row, "right") - 1
  overlap = np.minimum(stop, edges[1:]) - np.maximum(start, edges[:-1])
  overlap = np.broadcast_to(np.maximum(overlap, 0), (len(row), shape[1]))
  np.add.at(counts, (group, line), overlap)
  return counts
