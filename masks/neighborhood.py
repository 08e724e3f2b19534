"""Neighbourhoods: tokens on a line, an image or a volume see the tokens around them."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from masks import _group_tiles, _tile_rule, _tile_runs
from masks._axis_window import AxisWindow
from masks._mask import Mask
from masks._positional import Bounded
from masks._raster import raster_boxes, raster_intervals


@dataclasses.dataclass(frozen=True)
class WindowTest:
  """Whether a key lies in the query's window along every axis.

  A query brings the first code of its window and, where that varies, one past the last; a key its code.

  Attributes:
    sizes: Codes of the window along each axis, None where it varies.
  """

  sizes: tuple[int | None, ...]
  num_q = property(lambda self: len(self.sizes) + self.sizes.count(None))
  num_kv = property(lambda self: len(self.sizes))

  def __call__(self, q_idx, kv_idx, q_tokens, kv_tokens):
    del q_idx, kv_idx
    numbers = iter(q_tokens)
    inside = []
    for size, code in zip(self.sizes, kv_tokens, strict=True):
      start = next(numbers)
      stop = next(numbers) if size is None else start + size
      inside.append((code >= start) & (code < stop))
    return functools.reduce(lambda a, b: a & b, inside)


@dataclasses.dataclass(frozen=True, repr=False)
class Neighborhood(Bounded):
  """See `neighborhood`. Tokens at negative positions see nothing and are seen by none."""

  axes: tuple[AxisWindow, ...]

  @property
  def shape(self) -> tuple[int, ...]:
    """Tokens along each axis."""
    return tuple(axis.length for axis in self.axes)

  @property
  def limits(self):
    size = math.prod(self.shape)
    return (range(size, size + 1),) * 2

  may_start_before = property(lambda self: True)

  def allows(self, q_idx, kv_idx):
    q_numbers, kv_numbers = self._q_numbers(q_idx), self._kv_numbers(kv_idx)
    return self._test(q_idx, kv_idx, q_numbers, kv_numbers)

  def tile_bounds(self, grid):
    return _group_tiles.exact(grid, (1, 1), lambda batch, head: self._tiles(grid))

  def tile_rule(self, q_len, kv_len):
    numbers = (self._q_numbers(np.arange(q_len)), self._kv_numbers(np.arange(kv_len)))
    return _tile_rule.TileRule(self._test, *(np.stack(x)[None, None] for x in numbers))

  def builder(self):
    names = ("kernel", "dilation", "stride", "is_causal")
    kernel, *options = (tuple(getattr(axis, name) for axis in self.axes) for name in names)
    given = [
      f", {name}={value}"
      for name, value, default in zip(names[1:], options, (1, 1, False), strict=True)
      if any(x != default for x in value)
    ]
    return f"neighborhood({self.shape}, {kernel}{''.join(given)})"

  @property
  def _test(self) -> WindowTest:
    return WindowTest(tuple(None if axis.is_causal else axis.kernel for axis in self.axes))

  def _q_numbers(self, q_idx) -> list[np.ndarray]:
    """What `WindowTest` needs of queries."""
    outside, coordinates = self._coordinates(q_idx + self.q_start)
    numbers = []
    for axis, x in zip(self.axes, coordinates, strict=True):
      start, stop = axis.windows
      numbers.append(np.where(outside, 2**30, start[x]))
      if axis.is_causal:
        numbers.append(np.where(outside, 0, stop[x]))
    return [x.astype(np.int32) for x in numbers]

  def _kv_numbers(self, kv_idx) -> list[np.ndarray]:
    """What `WindowTest` needs of keys."""
    outside, coordinates = self._coordinates(kv_idx + self.kv_start)
    codes = (axis.codes[x] for axis, x in zip(self.axes, coordinates, strict=True))
    return [np.where(outside, -1, code).astype(np.int32) for code in codes]

  def _coordinates(self, position):
    outside = position < 0
    return outside, np.unravel_index(np.maximum(position, 0), self.shape)

  def _tiles(self, grid):
    q_start, q_stop = _group_tiles.token_ranges(grid.q_len, grid.block_q)
    kv_start, kv_stop = _group_tiles.token_ranges(grid.kv_len, grid.block_kv)
    queries, keys = (
      (start + x, stop + x)
      for start, stop, x in ((q_start, q_stop, self.q_start), (kv_start, kv_stop, self.kv_start))
    )
    candidates = self._candidates(*queries, grid)

    def test(row, col):
      q_range, kv_range = (x[row] for x in queries), (x[col] for x in keys)
      return self._decide(*q_range, *kv_range)

    return _group_tiles.decide(candidates, test)

  def _candidates(self, start, stop, grid) -> _tile_runs.TileRuns:
    """Tiles within reach of their queries along all axes but the last."""
    found = []
    for row, box in raster_boxes(np.maximum(start, 0), np.maximum(stop, 0), self.shape):
      reach = [
        (axis.reach[0][first], axis.reach[1][last - 1] + 1)
        for axis, (first, last) in zip(self.axes, box, strict=True)
      ]
      index, *ends = raster_intervals(reach, self.shape)
      found.append((row[index], *ends))
    row, first, last = map(np.concatenate, zip(*found, strict=True))
    return _group_tiles.touched(row, first - self.kv_start, last - self.kv_start, grid)

  def _decide(self, q_start, q_stop, kv_start, kv_stop):
    """Whether ranges of positions hold an allowed pair, and whether all of their pairs are allowed."""
    fill = (q_start >= 0) & (kv_start >= 0)
    hit = np.zeros(len(q_start), bool)
    q_boxes = raster_boxes(np.maximum(q_start, 0), np.maximum(q_stop, 0), self.shape)
    kv_boxes = raster_boxes(np.maximum(kv_start, 0), np.maximum(kv_stop, 0), self.shape)
    where = np.empty(len(q_start), np.int64)
    # A pair of boxes is a product over the axes, along which the windows are independent.
    for kv_index, kv_box in kv_boxes:
      where[:] = -1
      where[kv_index] = np.arange(len(kv_index))
      for q_index, q_box in q_boxes:
        in_q = np.flatnonzero(where[q_index] >= 0)
        both = q_index[in_q]
        any_, all_ = np.ones(len(both), bool), np.ones(len(both), bool)
        for axis, q_ends, kv_ends in zip(self.axes, q_box, kv_box, strict=True):
          tiles = axis.tiles(*(x[in_q] for x in q_ends), *(x[where[both]] for x in kv_ends))
          any_, all_ = any_ & tiles[0], all_ & tiles[1]
        hit[both] |= any_
        fill[both] &= all_
    return hit, hit & fill


def neighborhood(shape, kernel, dilation=1, stride=1, is_causal=False) -> Mask:
  """Query i may use the keys of the window around it, for tokens of a line, an image or a volume.

  The rule of NATTEN. Tokens stand in raster order (the last axis runs fastest). Along each axis, a query
  at x sees `kernel` keys from x - kernel // 2 on; at the borders its window is shifted inwards, so that
  every query sees the same number of keys. With a dilation, this happens among the tokens of equal
  x % dilation; with a stride, queries share the window of their group's leader, which aligns windows
  with tiles. Along a causal axis the window ends at the query and is cut off at the border instead.

  Args:
    shape: Tokens along each axis, an int or up to three or more ints.
    kernel: Keys along each axis that a query sees, an int for all or one per axis; at least 1, and
      kernel * dilation at most the tokens along the axis.
    dilation: Distance between these keys, an int for all or one per axis; at least 1.
    stride: Queries along each axis that share a window, an int for all or one per axis; from 1 to kernel.
    is_causal: Whether keys after the query are left out, a bool for all axes or one per axis.

  Returns:
    The mask, for as many queries and keys as the shape has tokens. Shifted by negative numbers it
    leaves room for other tokens in front, as registers: `neighborhood(...).shift(q=-4, kv=-4)`.

  Raises:
    ValueError: A number does not fit, or there is not one per axis.
    TypeError: A number is not an int.

  References:
    Hassani et al., Neighborhood attention transformer, arXiv:2204.07143; Hassani and Shi, Dilated
    neighborhood attention, arXiv:2209.15001; Hassani et al., Faster neighborhood attention,
    arXiv:2403.04690 (causal axes), and Generalized neighborhood attention, arXiv:2504.16922 (stride).

  >>> neighborhood(5, 3).to_dense(5, 5).astype(int)
  array([[1, 1, 1, 0, 0],
         [1, 1, 1, 0, 0],
         [0, 1, 1, 1, 0],
         [0, 0, 1, 1, 1],
         [0, 0, 1, 1, 1]])
  >>> neighborhood((4, 4), (3, 3)).to_dense(16, 16)[0].reshape(4, 4).astype(int)
  array([[1, 1, 1, 0],
         [1, 1, 1, 0],
         [1, 1, 1, 0],
         [0, 0, 0, 0]])
  """
  lengths = tuple(shape) if np.iterable(shape) else (shape,)
  options = {"kernel": kernel, "dilation": dilation, "stride": stride, "is_causal": is_causal}
  per_axis = {name: _per_axis(name, value, len(lengths)) for name, value in options.items()}
  axes = zip(lengths, *per_axis.values(), strict=True)
  return Neighborhood(tuple(AxisWindow.checked(f"axis {n}", *axis) for n, axis in enumerate(axes)))


def _per_axis(name: str, value, count: int) -> tuple:
  values = tuple(value) if np.iterable(value) else (value,) * count
  if not count or len(values) != count:
    raise ValueError(
      f"`{name}` must be one number or one per axis of `shape`, got {name}={value!r} for {count} axes."
    )
  return values
