"""Ranges of positions in raster order as boxes of coordinates."""

from __future__ import annotations

import math

import numpy as np

# Along each axis, the first coordinate and one past the last, of many boxes.
Box = list[tuple[np.ndarray, np.ndarray]]


def raster_boxes(start, stop, shape: tuple[int, ...]) -> list[tuple[np.ndarray, Box]]:
  """Cuts ranges [start, stop) of positions into boxes, which are products of intervals.

  Args:
    start: [n] int, positions in raster order over `shape`.
    stop: [n] int, not below start.
    shape: Tokens along each axis.

  Returns:
    (index, box) pairs: boxes that are not empty, and which ranges they belong to, in order. A range of an
    image has up to three: the rest of its first row, full rows, and the beginning of its last row.
  """
  index = np.flatnonzero(start < stop)
  start, stop = start[index], stop[index]
  if len(shape) == 1:
    return [(index, [(start, stop)])]
  inner = math.prod(shape[1:])
  first, last = start // inner, (stop - 1) // inner
  head = (start - first * inner, np.minimum(stop - first * inner, inner))
  tail = (0 * last, np.where(last > first, stop - last * inner, 0))
  boxes = []
  for outer, part in ((first, head), (last, tail)):
    for where, box in raster_boxes(*part, shape[1:]):
      boxes.append((index[where], [(outer[where], outer[where] + 1), *box]))
  whole = np.flatnonzero(last - first > 1)
  full = [(0 * whole, 0 * whole + n) for n in shape[1:]]
  return [*boxes, (index[whole], [(first[whole] + 1, last[whole]), *full])]


def raster_intervals(box: Box, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Covers boxes by ranges of positions, each with the last axis taken whole.

  Args:
    box: Boxes that are not empty.
    shape: Tokens along each axis.

  Returns:
    (index, start, stop): ranges, and which box they belong to.
  """
  index = np.arange(len(box[0][0]))
  outer = np.zeros(len(index), np.int64)
  *front, (first, last) = box if len(shape) == 1 else box[:-1]
  for length, (start, stop) in zip(shape, front, strict=False):
    count = (stop - start)[index]
    offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    index, outer = np.repeat(index, count), np.repeat(outer, count)
    outer = outer * length + start[index] + offset
  inner = math.prod(shape[len(front) + 1 :])
  outer = outer * shape[len(front)]
  return index, (outer + first[index]) * inner, (outer + last[index]) * inner
