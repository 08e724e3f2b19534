"""Block maps: whole blocks of keys for whole blocks of queries."""

import dataclasses

import numpy as np

from masks import _checks, _flags, _group_tiles, _spans, _tile_runs
from masks._frozen import FrozenArray
from masks._mask import Mask
from masks._positional import Bounded


@dataclasses.dataclass(frozen=True, repr=False)
class Blocks(Bounded):
  """See `from_blocks`. The map is bool [batch, heads, rows, cols]."""

  map: FrozenArray
  block_shape: tuple[int, int]

  lead = property(lambda self: self.map.array.shape[:2])

  @property
  def limits(self):
    sizes = zip(self.map.array.shape[2:], self.block_shape, strict=True)
    q, kv = (range(max(0, (count - 1) * block + 1), count * block + 1) for count, block in sizes)
    return q, kv

  def allows(self, q_idx, kv_idx):
    row = (q_idx + self.q_start) // self.block_shape[0]
    return self.map.array[0, 0][row, (kv_idx + self.kv_start) // self.block_shape[1]]

  def select(self, batch, head):
    if self.lead == (1, 1):
      return self
    one = self.map.array[batch : batch + 1, head : head + 1]
    return dataclasses.replace(self, map=FrozenArray(one))

  def spans(self, q_len, kv_len):
    start, row = _spans.block_starts(q_len, self.q_start, self.block_shape[0])
    maps = self.map.array[:, :, row]
    runs = _tile_runs.from_map(maps.reshape(-1, maps.shape[-1]))
    per_row = np.bincount(runs.row, minlength=runs.num_rows)
    count = int(per_row.max(initial=1))
    if count > _spans.MAX_SPANS:
      return None
    nth = np.arange(len(runs.row)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    ends = np.zeros((2, runs.num_rows, count), np.int64)
    ends[:, runs.row, nth] = runs.start, runs.stop
    ends = ends * self.block_shape[1] - self.kv_start
    by_row = ends.reshape(2, *maps.shape[:3], count).swapaxes(-1, -2)
    return _spans.from_intervals(start, *by_row, q_len, kv_len)

  def tile_bounds(self, grid):
    return _group_tiles.exact(grid, self.lead, lambda batch, head: self._tiles(batch, head, grid))

  def builder(self):
    return f"from_blocks({self.map!r}, {self.block_shape})"

  def _tiles(self, batch: int, head: int, grid):
    blocks = self.map.array[batch, head]
    before = np.zeros(np.add(blocks.shape, 1), np.int64)
    before[1:, 1:] = np.cumsum(np.cumsum(blocks, axis=0), axis=1)
    top, bottom = self._block_ranges(0, grid.q_len, grid.block_q)
    left, right = self._block_ranges(1, grid.kv_len, grid.block_kv)
    count = before[bottom][:, right] - before[bottom][:, left]
    count -= before[top][:, right] - before[top][:, left]
    hit, fill = count > 0, count == (bottom - top)[:, None] * (right - left)
    return _tile_runs.from_map(hit), _tile_runs.from_map(fill)

  def _block_ranges(self, axis: int, length: int, tile: int) -> tuple[np.ndarray, np.ndarray]:
    """First block of each tile and one past its last."""
    offset, block = (self.q_start, self.kv_start)[axis], self.block_shape[axis]
    start, stop = _group_tiles.token_ranges(length, tile)
    return (start + offset) // block, (stop + offset - 1) // block + 1


def from_blocks(map, block_shape) -> Mask:
  """Query i may use key j if map[i // block_q, j // block_kv], with (block_q, block_kv) = block_shape.

  The blocks need not be the tiles of the kernel: any tile size is classified exactly. Rows of the map
  with up to 8 runs of blocks are computed in the kernel; maps with more are stored as partial tiles,
  of which tiles that divide the blocks have none.

  Args:
    map: bool, or integers 0 and 1: [rows, cols], or [batch, heads, rows, cols] with 1 where all examples
      or heads agree. It is copied.
    block_shape: Queries and keys per block, two ints of at least 1.

  Returns:
    The mask. It fits the lengths that need rows * cols blocks, the last of which may be cut off.

  Raises:
    TypeError: map is traced, or neither bool nor integer; block_shape does not hold ints.
    ValueError: map has another rank or integers other than 0 and 1; block_shape does not hold two
      positive numbers.

  References:
    Gray et al., GPU kernels for block-sparse weights, 2017; Yuan et al., Native sparse attention,
    arXiv:2502.11089, section 3.3 (blocks selected for each query).

  >>> from_blocks([[1, 0], [1, 1]], (1, 2)).to_dense(2, 4).astype(int)
  array([[1, 1, 0, 0],
         [1, 1, 1, 1]])
  """
  shapes = "[rows, cols] or [batch, heads, rows, cols]"
  flags = _flags.concrete_flags("map", map, (2, 4), shapes)
  sizes = tuple(block_shape) if np.iterable(block_shape) else (block_shape,)
  if len(sizes) != 2 or min(_checks.integer("block_shape", x) for x in sizes) < 1:
    raise ValueError(
      f"`block_shape` must be two numbers of at least 1, got {block_shape!r}. Give (block_q, block_kv)."
    )
  array = FrozenArray(flags.reshape((1,) * (4 - flags.ndim) + flags.shape))
  return Blocks(array, (int(sizes[0]), int(sizes[1])))
