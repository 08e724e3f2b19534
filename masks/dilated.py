"""Dilated patterns: keys at fixed steps from the query's own position."""

import dataclasses

import numpy as np

from masks import _checks, _group_tiles, _tile_rule
from masks._mask import Mask
from masks._positional import Positional
from masks._tile_runs import TileRuns
from masks.causal import causal
from masks.window import local

# No difference of positions in use exceeds it, see `_checks.position`.
_FAR = 2**30


@dataclasses.dataclass(frozen=True)
class DilatedTest:
  """Whether (q_idx + offset) - kv_idx is a multiple of `step` from -right * step to left * step.

  A remainder costs a TPU some twenty operations per score, a product one. With step = 2**s * m and m
  odd, multiplying by the inverse of m modulo 2**32 sends the multiples m * u to u, in order, and all
  other numbers beyond them, because the product is a bijection of the 32-bit integers.
  """

  step: int
  left: int
  right: int
  offset: int
  num_q = 0
  num_kv = 0

  def __call__(self, q_idx, kv_idx, q_tokens, kv_tokens):
    del q_tokens, kv_tokens
    low_bits = self.step & -self.step
    inverse = pow(self.step // low_bits, -1, 2**32)
    inverse -= 2**32 * (inverse >= 2**31)
    units = (q_idx - kv_idx + self.offset).astype(np.int32)
    if inverse != 1:
      units = units * np.int32(inverse)
    allowed = (units >= -self.right * low_bits) & (units <= self.left * low_bits)
    return allowed if low_bits == 1 else allowed & ((units & (low_bits - 1)) == 0)


@dataclasses.dataclass(frozen=True, repr=False)
class Dilated(Positional):
  """See `dilated` and `strided`: multiples of `step` >= 2, `left` before and `right` after.

  Only q_start - kv_start matters, so kv_start is always 0. A side without limit has the most multiples
  that positions can reach.
  """

  step: int
  left: int
  right: int

  period = property(lambda self: 1)

  def moved(self, q, kv):
    return super().moved(q - kv, 0)

  def allows(self, q_idx, kv_idx):
    back = q_idx - kv_idx + self.q_start
    far_left, far_right = (x * self.step for x in (self.left, self.right))
    return (back % self.step == 0) & (back >= -far_right) & (back <= far_left)

  def tile_bounds(self, grid):
    return _group_tiles.exact(grid, (1, 1), lambda batch, head: self._tiles(grid))

  def tile_rule(self, q_len, kv_len):
    test = DilatedTest(self.step, self.left, self.right, self.q_start)
    return _tile_rule.without_tokens(test, q_len, kv_len)

  def builder(self):
    if (self.left, self.right) == (_FAR // self.step, 0):
      return f"strided({self.step})"
    two_sided = ", is_causal=False" if self.right else ""
    return f"dilated({self.left + self.right + 1}, {self.step}{two_sided})"

  def _multiples(self, start, stop, first_key, last_key):
    """The least and greatest t for which a query of [start, stop) has its key -t * step in range."""
    low = -(-(start - last_key) // self.step)
    high = (stop - 1 - first_key) // self.step
    return np.maximum(low, -self.right), np.minimum(high, self.left)

  def _tiles(self, grid) -> tuple[TileRuns, TileRuns]:
    start, stop = (x + self.q_start for x in _group_tiles.token_ranges(grid.q_len, grid.block_q))
    intervals = (self._dense_rows(start, stop, grid), self._sparse_rows(start, stop, grid))
    row, first, last = map(np.concatenate, zip(*intervals, strict=True))
    order = np.argsort(row, kind="stable")
    hit = _group_tiles.touched_sorted(row[order], first[order], last[order], grid)
    # Two neighbouring keys or queries never are both allowed: only a tile of one pair can be full.
    first_key, last_key = _group_tiles.token_ranges(grid.kv_len, grid.block_kv)
    single = _group_tiles.product(stop - start == 1, last_key - first_key == 1)
    return hit, hit & single if single.num_tiles else single

  def _is_dense(self, start, stop, grid):
    """Rows in which no complete column lies between two diagonals: steps are shorter than tiles."""
    return self.step < stop - start + grid.block_kv

  def _dense_rows(self, start, stop, grid):
    """Of dense rows, the complete columns from the first to the last diagonal, and the ragged one."""
    row = np.flatnonzero(self._is_dense(start, stop, grid))
    start, stop = start[row], stop[row]
    complete = grid.kv_len // grid.block_kv * grid.block_kv
    first = start - self.left * self.step
    last = np.minimum(stop + self.right * self.step, complete)
    low, high = self._multiples(start, stop, complete, grid.kv_len - 1)
    return row, first, np.where(low <= high, grid.kv_len, last)

  def _sparse_rows(self, start, stop, grid):
    """Of all other rows, the keys of each diagonal, in order."""
    low, high = self._multiples(start, stop, 0, grid.kv_len - 1)
    count = np.maximum(high - low + 1, 0) * ~self._is_dense(start, stop, grid)
    row = np.repeat(np.arange(grid.rows), count)
    t = np.repeat(high + np.cumsum(count) - count, count) - np.arange(count.sum())
    return row, start[row] - t * self.step, stop[row] - t * self.step


def dilated(window: int, dilation: int, is_causal: bool = True) -> Mask:
  """Query i may use key j if i - j is one of 0, dilation, 2 * dilation, ..., (window - 1) * dilation.

  A sliding window with gaps: `window` keys, its own included, spread over window * dilation positions.

  Args:
    window: Number of keys a query sees, its own included; at least 1.
    dilation: Distance between them, at least 1; 1 gives `sliding_window(window)`.
    is_causal: False centres the window as in Longformer, (window - 1) / 2 keys on either side; window
      must then be odd.

  Returns:
    The mask.

  Raises:
    ValueError: window or dilation is not positive, or window is even and is_causal False.
    TypeError: window or dilation is not an int.

  References:
    Beltagy et al., Longformer, arXiv:2004.05150, section 3.1 (dilated sliding window).

  >>> dilated(2, 2).to_dense(5, 5).astype(int)
  array([[1, 0, 0, 0, 0],
         [0, 1, 0, 0, 0],
         [1, 0, 1, 0, 0],
         [0, 1, 0, 1, 0],
         [0, 0, 1, 0, 1]])
  """
  window = _positive("window", window, "It counts the token itself.")
  dilation = _positive("dilation", dilation, "1 is a window without gaps.")
  if not is_causal and window % 2 == 0:
    raise ValueError(
      f"`window` must be odd where is_causal is False, got window={window}. Use {window + 1}: as many "
      "keys before as after, and the token itself."
    )
  left, right = (window - 1, 0) if is_causal else (window // 2, window // 2)
  if dilation == 1:
    return local(left, right)
  return Dilated(dilation, *(min(x, _FAR // dilation) for x in (left, right)))


def strided(stride: int) -> Mask:
  """Query i may use key j if j <= i and (i - j) is a multiple of `stride`.

  The second head of the strided Sparse Transformer. Its first head, the previous `stride` positions, is
  `sliding_window(stride + 1)`: `per_head` gives each head its own, `|` merges both into one.

  Args:
    stride: Distance between the keys, at least 1; 1 gives `causal()`.

  Returns:
    The mask. It is causal, as in the paper.

  Raises:
    ValueError: stride is not positive.
    TypeError: stride is not an int.

  References:
    Child et al., Generating long sequences with sparse transformers, arXiv:1904.10509, section 4.3.

  >>> strided(3).to_dense(5, 5).astype(int)
  array([[1, 0, 0, 0, 0],
         [0, 1, 0, 0, 0],
         [0, 0, 1, 0, 0],
         [1, 0, 0, 1, 0],
         [0, 1, 0, 0, 1]])
  """
  stride = _positive("stride", stride, "1 is every key up to its own position.")
  return causal() if stride == 1 else Dilated(stride, _FAR // stride, 0)


def _positive(name: str, value, remedy: str) -> int:
  if _checks.integer(name, value) < 1:
    raise ValueError(f"`{name}` must be at least 1, got {name}={value}. {remedy}")
  return _checks.position(name, value)
