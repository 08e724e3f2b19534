"""BigBird: blocks of queries see a window, some global and some random blocks of keys."""

from __future__ import annotations

import dataclasses

import numpy as np

from masks import _checks, _group_tiles, _spans, _tile_rule, _tile_runs
from masks._classify import TileGrid
from masks._mask import Mask
from masks._positional import Positional
from masks._tile_runs import TileRuns


@dataclasses.dataclass(frozen=True, repr=False)
class BigBird(Positional):
  """See `bigbird`."""

  block_size: int
  num_random_blocks: int
  window_blocks: int
  num_global_blocks: int
  random_range: int
  seed: int

  def check(self, q_len, kv_len):
    if min(self.q_start, self.kv_start) < 0:
      raise ValueError(
        f"Positions of {self.builder()} start at 0, got a shift by q={self.q_start} and "
        f"kv={self.kv_start}. Shift by at least 0."
      )

  def allows(self, q_idx, kv_idx):
    row = np.asarray(q_idx + self.q_start) // self.block_size
    first = int(row.min(initial=0))
    lo, hi = self._intervals(np.arange(first, int(row.max(initial=0)) + 1))
    allowed = np.zeros(np.broadcast_shapes(row.shape, np.shape(kv_idx)), bool)
    for start, stop in zip(lo, hi, strict=True):
      allowed |= (kv_idx >= start[row - first]) & (kv_idx < stop[row - first])
    return allowed

  def spans(self, q_len, kv_len):
    spans = self._all_spans(q_len, kv_len)
    return spans if spans.count <= _spans.MAX_SPANS else None

  def tile_bounds(self, grid):
    return _group_tiles.exact(grid, (1, 1), lambda batch, head: self._tiles(grid))

  def tile_rule(self, q_len, kv_len):
    return _tile_rule.from_spans(self._all_spans(q_len, kv_len))

  def builder(self):
    return (
      f"bigbird({self.block_size}, num_random_blocks={self.num_random_blocks}, "
      f"window_blocks={self.window_blocks}, num_global_blocks={self.num_global_blocks}, "
      f"random_range={self.random_range}, seed={self.seed})"
    )

  def _all_spans(self, q_len: int, kv_len: int) -> _spans.Spans:
    """The allowed keys of each query, however many intervals that takes."""
    start, rows = _spans.block_starts(q_len, self.q_start, self.block_size)
    return _spans.from_intervals(start, *(x[None, None] for x in self._intervals(rows)), q_len, kv_len)

  def _tiles(self, grid: TileGrid) -> tuple[TileRuns, TileRuns]:
    start, stop = (x + self.q_start for x in _group_tiles.token_ranges(grid.q_len, grid.block_q))
    first, last = start // self.block_size, -(-stop // self.block_size)
    # One entry per tile row and block of queries in it: a tile is full where all of them contain it.
    need = last - first
    row = np.repeat(np.arange(grid.rows), need)
    block = np.arange(need.sum()) + np.repeat(first - np.cumsum(need) + need, need)
    lo, hi = self._intervals(block)
    hit = _group_tiles.touched(np.tile(row, len(lo)), lo.ravel(), hi.ravel(), grid)
    entries = dataclasses.replace(grid, q_len=len(row), block_q=1)
    entry = np.tile(np.arange(len(row)), len(lo))
    full = _group_tiles.contained(entry, lo.ravel(), hi.ravel(), entries)
    size = (np.maximum(need, 1), grid.rows, grid.cols)
    return hit, _tile_runs.covered(row[full.row], full.start, full.stop, *size)

  def _intervals(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Key indices [lo, hi) that the query blocks `rows` see, each [2 + num_random_blocks, rows]."""
    reach = self.window_blocks // 2
    window = (np.maximum(rows - reach, 0), rows + reach + 1)
    ends = [(0 * rows, 0 * rows + self.num_global_blocks), window]
    ends += [(block, block + (block >= 0)) for block in self._random_blocks(rows, *window)]
    lo, hi = (np.stack(x) * self.block_size for x in zip(*ends, strict=True))
    hi[0, rows < self.num_global_blocks] = 2**31 - 1 + self.kv_start
    return lo - self.kv_start, hi - self.kv_start

  def _random_blocks(self, rows, window_start, window_stop) -> list[np.ndarray]:
    """For each draw, the block of each row, all different; -1 once a row has no block left."""
    first = self.num_global_blocks
    skip_start = np.clip(window_start, first, max(first, self.random_range))
    skip_stop = np.clip(window_stop, first, max(first, self.random_range))
    candidates = max(self.random_range - first, 0) - (skip_stop - skip_start)
    drawn: list[np.ndarray] = []
    for draw in range(self.num_random_blocks):
      left = candidates - draw
      number = _hash(self.seed, rows, draw) % np.maximum(left, 1).astype(np.uint64)
      number = np.where(left > 0, number.astype(np.int64), -1)
      # The number counts the candidates that are left: step over the ones drawn before, in order.
      for before in np.sort(np.array(drawn), axis=0):
        number = number + ((number >= before) & (left > 0))
      drawn.append(number)
    blocks = (first + np.array(drawn)) if drawn else np.zeros((0, len(rows)), np.int64)
    blocks = blocks + np.where(blocks >= skip_start, skip_stop - skip_start, 0)
    return [np.where(n >= 0, block, -1) for n, block in zip(drawn, blocks, strict=True)]


def _hash(seed: int, rows: np.ndarray, draw: int) -> np.ndarray:
  """Random uint64 that depend on nothing else than the arguments: the finalizer of SplitMix64."""
  with np.errstate(over="ignore"):
    state = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for salt in (seed, draw):
      state = state + np.uint64(salt + 1) * np.uint64(0xD1B54A32D192ED03)
      state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
      state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
      state = state ^ (state >> np.uint64(31))
  return state


def bigbird(
  block_size: int,
  num_random_blocks: int = 3,
  window_blocks: int = 3,
  num_global_blocks: int = 1,
  random_range: int = 16,
  seed: int = 0,
) -> Mask:
  """Blocks of queries see a window, the first blocks, and some random blocks of keys.

  With a = i // block_size and b = j // block_size, query i may use key j if |a - b| is at most
  window_blocks // 2, if a or b is below num_global_blocks, or if b is one of the random blocks of a.
  These are num_random_blocks different ones below random_range, outside the window and the global
  blocks, or all of them where fewer are left.

  The random blocks of a row depend on the seed and the row alone, so that the mask fits any length. As
  in the authors' code, which draws from the first 1024 tokens at every length, they lie in a fixed
  range: for random blocks anywhere give random_range = length // block_size. For heads with different
  random blocks use `per_head` with one seed each.

  Args:
    block_size: Tokens of a block, at least 1.
    num_random_blocks: Random blocks that a block of queries sees, at least 0.
    window_blocks: Blocks of the window, odd: as many before as after, and its own.
    num_global_blocks: First blocks that see and are seen by all. The authors' code makes the last block
      global too; `masks.presets.bigbird_base` does.
    random_range: Blocks that random blocks are drawn from, counted from the first; at least 0.
    seed: At least 0.

  Returns:
    The mask, symmetric but for the random blocks. For decoders add `& causal()`.

  Raises:
    ValueError: A number is negative, block_size is 0, or window_blocks is even.
    TypeError: A number is not an int.

  References:
    Zaheer et al., Big Bird: transformers for longer sequences, arXiv:2007.14062, section 2.

  >>> bigbird(1, num_random_blocks=1, random_range=6).to_dense(6, 6).astype(int)
  array([[1, 1, 1, 1, 1, 1],
         [1, 1, 1, 0, 0, 1],
         [1, 1, 1, 1, 1, 0],
         [1, 1, 1, 1, 1, 0],
         [1, 1, 0, 1, 1, 1],
         [1, 0, 1, 0, 1, 1]])
  """
  numbers = {
    "block_size": block_size,
    "num_random_blocks": num_random_blocks,
    "window_blocks": window_blocks,
    "num_global_blocks": num_global_blocks,
    "random_range": random_range,
    "seed": seed,
  }
  for name, value in numbers.items():
    least = int(name in ("block_size", "window_blocks"))
    if _checks.integer(name, value) < least:
      raise ValueError(f"`{name}` must be at least {least}, got {name}={value}.")
    numbers[name] = _checks.position(name, value)
  if window_blocks % 2 == 0:
    raise ValueError(
      f"`window_blocks` must be odd, got window_blocks={window_blocks}. Use {window_blocks + 1}: as many "
      "blocks before as after, and its own."
    )
  return BigBird(**numbers)
