"""Lists the work of the forward kernel for a block mask: grid steps, and the items of each."""

from __future__ import annotations

import dataclasses
import functools
import typing

import jax.numpy as jnp
import numpy as np
from jax import lax

from blockattn._block_sizes import KernelTiling
from blockattn._kernels import _limits
from blockattn._kernels.packed_steps import REMEDY, StepLayout
from blockattn._kernels.work_items import ItemLayout, SubTile, WorkItems
from masks import BlockMask, TileKind
from masks._classify import TileGrid
from masks._device_block_mask import DeviceBlockMask
from masks._host_block_mask import HostBlockMask
from masks._schedule import Steps
from masks._tile_runs import TileRuns, covered

# A body of its own for each of the most frequent patterns of active sub-tiles, which takes a second to compile.
_MAX_PATTERNS = 3
# Share of the tiles with a pattern that the least frequent one must have.
_LEAST_SHARE = 0.1


class WorkList(typing.NamedTuple):
  """The work and how it is packed; see `StepLayout`, `ItemLayout` and `WorkItems`."""

  steps: StepLayout
  items: ItemLayout
  work: WorkItems


def list_work(block_mask: BlockMask, tiling: KernelTiling, step_kv: int) -> WorkList:
  """The work of a block mask, of NumPy arrays or, for traced masks, of JAX arrays.

  Args:
    block_mask: In cells or sub-tiles of the kernel, or in whole tiles where these are stored.
    tiling: Of the kernel.
    step_kv: Keys that a grid step holds.

  Raises:
    ValueError: The lists do not fit into SMEM, or a field into its word.
  """
  grid = block_mask.grid
  strips, width, cols = tiling.strips, tiling.block_kv // grid.block_kv, step_kv // grid.block_kv
  cells = tiling.sub_q // grid.block_q
  if cells == 0:  # whole tiles, stored
    strips = cells = 1
  lengths = [1]
  while lengths[0] * 2 <= width:
    lengths.insert(0, lengths[0] * 2)
  parts = tuple(tuple(SubTile(0, n, (TileKind.PARTIAL,)) for n in range(length)) for length in lengths)
  steps = StepLayout(grid.lead, -(-grid.rows // (strips * cells)), -(-grid.cols // cols))
  items = ItemLayout(strips, cols, width, grid.block_kv, cells, (), parts)
  if isinstance(block_mask, DeviceBlockMask):
    result = _list_on_device(block_mask, steps, items)
  else:
    assert isinstance(block_mask, HostBlockMask)
    result = _list_on_host(block_mask, steps, items)
  words = result.work
  what = f"{len(words.steps)} grid steps and {len(words.items)} items"
  _limits.check_smem(what, sum(len(x) for x in words), REMEDY)
  return result


class _Items(typing.NamedTuple):
  """Items before they are packed, int64 [n]."""

  tile: np.ndarray  # tile of queries, of all groups below each other
  col: np.ndarray
  body: np.ndarray
  strip: np.ndarray
  count: np.ndarray

  @classmethod
  def of(cls, tile, col, body, strip: typing.Any = 0, count: typing.Any = 1) -> _Items:
    return cls(*(np.broadcast_to(x, tile.shape) for x in (tile, col, body, strip, count)))


@functools.lru_cache(maxsize=32)
def _list_on_host(block_mask: HostBlockMask, steps: StepLayout, layout: ItemLayout) -> WorkList:
  grid, width, strips = block_mask.grid, layout.width, layout.strips
  whole = _whole_tiles(block_mask, steps, layout)
  covers = _rows_of(whole, grid, strips * layout.cells)
  row, col, kind = _flatten(block_mask.partial, block_mask.full - covers)
  group, cell_row = np.divmod(row, max(grid.rows, 1))
  strip_row = group * steps.rows * strips + cell_row // layout.cells
  pattern, codes = _frequent_patterns(strip_row, cell_row % layout.cells, col, kind, layout)
  patterns = tuple(_sub_tiles_of(int(code), layout) for code in codes)
  layout = dataclasses.replace(layout, patterns=patterns)
  by_tile = np.stack([strip_row // strips, col // width * width, pattern])[:, pattern >= 0]
  by_tile = np.unique(by_tile, axis=1) if by_tile.size else by_tile
  row, col, is_full = _merge_cells(*(x[pattern < 0] for x in (strip_row, col, kind)), layout)
  begins, part = _split_runs(row, col, layout, np)
  layout, part = _parts_in_use(part[begins], _all_of_each(is_full, begins), layout)
  row, col = row[begins], col[begins]
  items = [
    _Items.of(whole.row, whole.start, 0, count=(whole.stop - whole.start) // width),
    _Items.of(by_tile[0], by_tile[1], by_tile[2] + layout.first_pattern),
    _Items.of(row // strips, col, part + layout.first_part, row % strips),
  ]
  items = _Items(*(np.concatenate(x) for x in zip(*items, strict=True)))

  chunks = steps.cols
  chunk, start = np.divmod(items.col, layout.cols)
  key = items.tile * chunks + chunk
  idle = np.setdiff1d(np.arange(grid.groups * steps.rows), items.tile) * chunks
  step_keys = np.union1d(key, idle)
  # From the last key back: the keys of a query itself, which it may nearly always use, give its reference.
  order = np.lexsort((items.strip, -start, items.body, key))
  words = layout.pack(*(x[order] for x in (items.body, items.strip, start, items.count)))
  first_item = np.append(np.searchsorted(key[order], step_keys), len(order))
  tile_ids = np.zeros(1, np.int32)
  if block_mask.tile_rule is None:
    ids = np.maximum(block_mask.partial_ids.reshape(-1, grid.cols)[row, col], 0)
    tile_ids = _padded(np.concatenate([np.zeros(len(order) - len(ids), int), ids])[order])
  work = (steps.pack(_step_fields(step_keys, chunks)), first_item, _padded(words), tile_ids)
  return WorkList(steps, layout, WorkItems(*(np.asarray(x, np.int32) for x in work)))


def _padded(words):
  """One more: a step without items looks at the next one, and does nothing with it."""
  return np.append(words, 0)


def _whole_tiles(block_mask: HostBlockMask, steps: StepLayout, layout: ItemLayout) -> TileRuns:
  """Runs of whole FULL tiles by tile of queries, cut at chunks and to a multiple of a tile's width."""
  full, grid = block_mask.full, block_mask.grid
  group, row = np.divmod(full.row, max(grid.rows, 1))
  rows_per_tile = layout.strips * layout.cells
  tile = group * steps.rows + row // rows_per_tile
  num_tiles = grid.groups * steps.rows
  runs = covered(tile, full.start, full.stop, rows_per_tile, num_tiles, grid.cols)
  first, last = runs.start // layout.cols, (runs.stop - 1) // layout.cols
  pieces = last - first + 1
  row, start, stop = (np.repeat(x, pieces) for x in (runs.row, runs.start, runs.stop))
  chunk = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces - first, pieces)
  start = np.maximum(start, chunk * layout.cols)
  stop = np.minimum(stop, (chunk + 1) * layout.cols)
  stop = start + (stop - start) // layout.width * layout.width
  keep = stop > start
  return TileRuns(row[keep], start[keep], stop[keep], num_tiles, grid.cols)


def _rows_of(whole: TileRuns, grid: TileGrid, rows_per_tile: int) -> TileRuns:
  """The tiles of the block mask that whole tiles cover."""
  group, tile = np.divmod(whole.row, max(whole.num_rows // grid.groups, 1))
  row = (group * grid.rows + tile * rows_per_tile)[:, None] + np.arange(rows_per_tile)
  start, stop = (np.repeat(x, rows_per_tile) for x in (whole.start, whole.stop))
  return covered(row.reshape(-1), start, stop, 1, grid.all_rows, grid.cols)


def _flatten(partial: TileRuns, full: TileRuns):
  """(row, col, kind) of the tiles in two sets, in row order."""
  tiles = [
    np.stack([*runs.tile_indices(), np.full(runs.num_tiles, kind)])
    for runs, kind in ((partial, TileKind.PARTIAL), (full, TileKind.FULL))
  ]
  row, col, kind = np.concatenate(tiles, axis=1)
  order = np.lexsort((col, row))
  return row[order], col[order], kind[order]


def _merge_cells(strip_row, col, kind, layout: ItemLayout):
  """(row, col, is_full) of the sub-tiles that hold the given cells, in order."""
  order = np.lexsort((col, strip_row))
  row, col, kind = strip_row[order], col[order], kind[order]
  new = np.ones(len(row), bool)
  new[1:] = (row[1:] != row[:-1]) | (col[1:] != col[:-1])
  begin = np.flatnonzero(new)
  num_full = np.add.reduceat(kind == TileKind.FULL, begin, dtype=np.int64) if len(begin) else begin
  return row[begin], col[begin], num_full == layout.cells


def _all_of_each(flags, begins):
  """Whether the flags from each beginning to the next are all True."""
  where = np.flatnonzero(begins)
  return np.logical_and.reduceat(flags, where) if len(where) else np.zeros(0, bool)


def _parts_in_use(part, is_full, layout: ItemLayout):
  """The layout with bodies of just the parts that occur, without mask code for FULL ones; and their numbers."""
  used, number = np.unique(part * 2 + is_full, return_inverse=True)
  bodies = []
  for index, full in zip(used // 2, used % 2, strict=True):
    kinds = (TileKind.FULL if full else TileKind.PARTIAL,)
    bodies.append(tuple(at._replace(kinds=kinds) for at in layout.parts[index]))
  return dataclasses.replace(layout, parts=tuple(bodies)), number


def _frequent_patterns(strip_row, cell, col, kind, layout: ItemLayout):
  """The most frequent patterns of kinds in a whole tile.

  Args:
    strip_row: [n] strip of each active cell, of all tiles of queries below each other.
    cell: [n] its place in the strip.
    col: [n] its column.
    kind: [n] its `TileKind`.
    layout: Sizes of a whole tile.

  Returns:
    pattern [n], index of the pattern of the tile around, -1 for none; codes, the kinds of each pattern, two bits
    a cell.
  """
  size = layout.strips * layout.width * layout.cells
  if not 1 < size <= 31 or not len(col):
    return np.full(len(col), -1), np.zeros(0, np.int64)
  place = strip_row // layout.strips * (int(col.max()) // layout.width + 1) + col // layout.width
  _, which = np.unique(place, return_inverse=True)
  at = (strip_row % layout.strips * layout.width + col % layout.width) * layout.cells + cell
  code = np.zeros(which.max() + 1, np.int64)
  np.add.at(code, which, kind.astype(np.int64) << 2 * at)
  codes, which_code, counts = np.unique(code, return_inverse=True, return_counts=True)
  frequent = np.argsort(-counts, kind="stable")[:_MAX_PATTERNS]
  frequent = frequent[counts[frequent] >= max(2, _LEAST_SHARE * len(code))]
  index = np.full(len(codes), -1)
  index[frequent] = np.arange(len(frequent))
  return index[which_code[which]], codes[frequent]


def _sub_tiles_of(code: int, layout: ItemLayout) -> tuple[SubTile, ...]:
  kinds = [(code >> 2 * n) & 3 for n in range(layout.strips * layout.width * layout.cells)]
  sub_tiles = []
  for n in range(layout.strips * layout.width):
    own = tuple(kinds[n * layout.cells : (n + 1) * layout.cells])
    if any(kind != TileKind.EMPTY for kind in own):
      sub_tiles.append(SubTile(*divmod(n, layout.width), own))
  return tuple(sub_tiles)


def _list_on_device(block_mask: DeviceBlockMask, layout: StepLayout, items: ItemLayout) -> WorkList:
  grid, strips, chunks = block_mask.grid, items.strips, layout.cols
  schedule = block_mask.schedule
  steps = schedule.expand()
  active = (jnp.arange(schedule.capacity) < schedule.num_steps) & (steps.kinds != TileKind.EMPTY)
  begins, part = _split_runs(steps.outer, steps.inner, items, jnp, active)
  group, unit_row = divmod(steps.outer, grid.rows)
  chunk, start = divmod(steps.inner, items.cols)
  num_steps = grid.groups * layout.rows * chunks
  key = jnp.where(begins, (group * layout.rows + unit_row // strips) * chunks + chunk, num_steps)
  order = jnp.argsort(key, stable=True)
  words = items.pack(part + items.first_part, unit_row % strips, start, jnp.ones_like(start))[order]
  first_item = jnp.searchsorted(key[order], np.arange(num_steps + 1))
  all_steps = layout.pack(_step_fields(np.arange(num_steps), chunks))
  work = (all_steps, first_item, jnp.append(words, 0), np.zeros(1))
  return WorkList(layout, items, WorkItems(*(jnp.asarray(x, jnp.int32) for x in work)))


def _step_fields(keys: np.ndarray, chunks: int) -> Steps:
  """Fields of the steps `tile of queries * chunks + chunk`, in order."""
  tile, chunk = np.divmod(keys, chunks)
  differs = tile[1:] != tile[:-1]
  first, last = (np.concatenate(x).astype(int)[: len(keys)] for x in ([[True], differs], [differs, [True]]))
  return Steps(tile, chunk, np.zeros_like(tile), first, last)


def _split_runs(row, col, layout: ItemLayout, xp, active=None):
  """Cuts runs of consecutive tiles into the lengths that bodies have, the longest first.

  Args:
    row: [n] int, row of each tile, in order.
    col: [n] int, its column.
    layout: The lengths, and where chunks end.
    xp: jax.numpy or numpy.
    active: [n] bool, tiles that count; None if all do.

  Returns:
    begins [n] bool, whether a part begins here; part [n], index of its length.
  """
  index = xp.arange(len(row))
  same = (row[1:] == row[:-1]) & (col[1:] == col[:-1] + 1) & (col[1:] % layout.cols != 0)
  if active is not None:
    same = same & active[1:] & active[:-1]
  edge = xp.ones(1, bool)
  new = xp.concatenate([edge, ~same])[: len(row)]
  cummax, cummin = (np.maximum.accumulate, np.minimum.accumulate) if xp is np else (lax.cummax, lax.cummin)
  first = cummax(xp.where(new, index, 0))
  end = xp.concatenate([xp.where(new, index, len(row))[1:], xp.full(1, len(row), index.dtype)])[: len(row)]
  rest = cummin(end[::-1])[::-1] - first
  at = index - first
  begins, part = xp.zeros(len(row), bool), xp.zeros(len(row), index.dtype)
  for number, size in enumerate(map(len, layout.parts)):
    covers = rest // size * size
    here = (at >= 0) & (at < covers) & (at % size == 0)
    begins, part = begins | here, xp.where(here, number, part)
    at, rest = at - covers, rest - covers
  return begins if active is None else begins & active, part
