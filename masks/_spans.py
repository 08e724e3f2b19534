"""Spans: the keys allowed to each query as a few half-open intervals, and their algebra.

Causal, window, document, prefix and padding rules allow each query one interval of keys, whose bounds grow
by one per query or stay. So queries fall into few segments in which every bound is linear, and a mask of a
million tokens takes a few numbers per document. Such rules stay intervals under `&`, `|` and `~`: a whole
composition is exact, takes time and memory in the number of its segments, and costs a kernel two comparisons
per score and interval, whatever it was composed of.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

MAX_SPANS = 8

# Candidates that `intersect` forms at once, which bounds its memory where every query is a segment.
_AT_ONCE = 2**20


@dataclasses.dataclass(frozen=True)
class Spans:
  """For each query, disjoint intervals [lo, hi) of allowed keys in increasing order.

  Intervals do not touch each other; empty ones are (kv_len, kv_len) and stand last. Within a segment of
  queries the same intervals are empty.

  Attributes:
    start: [segments] int64, first query of each segment; the first is 0.
    bounds: [2, batch, heads, n, segments] int32, lo and hi of the first query of each segment; batch and
      heads are 1 where all examples or heads agree.
    steps: Like `bounds`, int8: what each bound grows by per query, 0 or 1.
    q_len: Number of queries.
    kv_len: Number of keys.
  """

  start: np.ndarray
  bounds: np.ndarray
  steps: np.ndarray
  q_len: int
  kv_len: int

  @property
  def count(self) -> int:
    """Intervals stored per query."""
    return self.bounds.shape[3]

  @property
  def lengths(self) -> np.ndarray:
    """Queries of each segment, int64."""
    return np.diff(self.start, append=self.q_len)

  @property
  def lo(self) -> np.ndarray:
    """First key of every interval of every query, int32 [batch, heads, n, q_len]."""
    return self._per_query(0)

  @property
  def hi(self) -> np.ndarray:
    """One past the last key, likewise."""
    return self._per_query(1)

  def cut(self, start: np.ndarray) -> Spans:
    """The same intervals in finer segments, which begin at `start`, a sorted superset of its own."""
    if len(start) == len(self.start):
      return self
    segment = np.searchsorted(self.start, start, "right") - 1
    steps = self.steps[..., segment]
    bounds = self.bounds[..., segment] + steps * (start - self.start[segment]).astype(np.int32)
    return dataclasses.replace(self, start=start, bounds=bounds, steps=steps)

  def ends(self) -> np.ndarray:
    """`bounds` of the last query of each segment."""
    return self.bounds + self.steps * (self.lengths - 1).astype(np.int32)

  def num_allowed(self) -> int:
    """Allowed (query, key) pairs, over all batch and head entries stored."""
    lo, hi = self.bounds.astype(np.int64)
    grows = self.steps[1].astype(np.int64) - self.steps[0]
    return int((self.lengths * (hi - lo) + grows * (self.lengths * (self.lengths - 1) // 2)).sum())

  def _per_query(self, which: int) -> np.ndarray:
    lengths = self.lengths
    offset = np.arange(self.q_len, dtype=np.int32)
    offset -= np.repeat(self.start.astype(np.int32), lengths)
    steps = np.repeat(self.steps[which], lengths, axis=-1)
    return np.repeat(self.bounds[which], lengths, axis=-1) + steps * offset


def all_queries(q_len: int) -> np.ndarray:
  """The start of the one segment that holds all queries; of none without queries."""
  return np.zeros(min(q_len, 1), np.int64)


def changes(tokens: np.ndarray) -> np.ndarray:
  """The tokens, of [batch, tokens], that differ from the one before in some example; the first does."""
  differs = (tokens[:, 1:] != tokens[:, :-1]).any(axis=0)
  return np.flatnonzero(np.append(True, differs)[: tokens.shape[1]])


def distinct(numbers: np.ndarray) -> np.ndarray:
  """The distinct numbers of a 1-D array, sorted; `np.unique` hashes, which takes several times as long."""
  numbers = np.sort(numbers)
  return numbers[np.append(True, numbers[1:] != numbers[:-1])[: len(numbers)]]


def block_starts(q_len: int, q_start: int, block: int) -> tuple[np.ndarray, np.ndarray]:
  """First query of each block, int64, and which block it is, where the first query stands at q_start."""
  number = np.arange(q_start // block, -(-(q_start + q_len) // block) if q_len else q_start // block)
  return np.maximum(number * block - q_start, 0), number


def from_bounds(start, lo, hi, q_len: int, kv_len: int, steps: tuple[int, int] = (0, 0)) -> Spans:
  """One interval per query.

  Args:
    start: [segments] int, first query of each segment.
    lo: Bounds of the first query of each segment, of any integer type and size; broadcasts with `hi` to
      [batch, heads, segments].
    hi: Likewise.
    q_len: Number of queries.
    kv_len: Number of keys.
    steps: What lo and hi grow by per query, 0 or 1.

  Returns:
    The intervals, clipped to the keys.
  """
  start = np.asarray(start, np.int64)
  lo, hi = (np.asarray(x, np.int64) for x in (lo, hi))
  shape = np.broadcast_shapes(lo.shape, hi.shape, (1, 1, len(start)))
  bounds = np.stack([np.broadcast_to(x, shape) for x in (lo, hi)])[:, :, :, None]
  growth = np.broadcast_to(np.array(steps, np.int8)[:, None, None, None, None], bounds.shape)
  return _canonical(*_clipped(start, bounds, growth, q_len, kv_len), q_len, kv_len)


def from_intervals(start, lo, hi, q_len: int, kv_len: int) -> Spans:
  """Several intervals per query that do not grow within a segment.

  Args:
    start: [segments] int, first query of each segment.
    lo: [batch, heads, n, segments] int; intervals may overlap and be in any order.
    hi: Likewise.
    q_len: Number of queries.
    kv_len: Number of keys.

  Returns:
    The intervals, clipped to the keys and joined.
  """
  start = np.asarray(start, np.int64)
  bounds = np.clip(np.stack([lo, hi]), 0, kv_len).astype(np.int32)
  lo, hi = _joined(*_sorted(*_empty_last(*bounds, kv_len)), kv_len)
  bounds = np.stack([lo, hi])
  return _canonical(start, bounds, np.zeros_like(bounds, np.int8), q_len, kv_len)


def stack(spans: list[Spans], axis: int) -> Spans:
  """The spans of examples (axis 0) or heads (axis 1), each with 1 there, side by side."""
  if len(spans) == 1:
    return spans[0]
  start = _union([x.start for x in spans])
  count = max(x.count for x in spans)
  batch, heads = (max(x.bounds.shape[1 + n] for x in spans) for n in (0, 1))
  lead = (1, heads) if axis == 0 else (batch, 1)
  bounds, steps = [], []
  for one in (x.cut(start) for x in spans):
    pad = [(0, 0), (0, 0), (0, 0), (0, count - one.count), (0, 0)]
    shape = (2, *lead, count, len(start))
    bounds.append(np.broadcast_to(np.pad(one.bounds, pad, constant_values=one.kv_len), shape))
    steps.append(np.broadcast_to(np.pad(one.steps, pad), shape))
  parts = (np.concatenate(x, axis=1 + axis) for x in (bounds, steps))
  return Spans(start, *parts, spans[0].q_len, spans[0].kv_len)


def intersect(a: Spans, b: Spans) -> Spans | None:
  """Keys that both allow, or None when a query would need more than MAX_SPANS intervals."""
  result = _intersect(a, b)
  return result if result.count <= MAX_SPANS else None


def unite(a: Spans, b: Spans) -> Spans | None:
  """Keys that either allows, or None when a query would need more than MAX_SPANS intervals."""
  result = _complement(_intersect(_complement(a), _complement(b)))
  return result if result.count <= MAX_SPANS else None


def complement(a: Spans) -> Spans | None:
  """Keys that are not allowed, or None when a query would need more than MAX_SPANS intervals."""
  result = _complement(a)
  return result if result.count <= MAX_SPANS else None


def _complement(a: Spans) -> Spans:
  edge = np.zeros_like(a.bounds[0, :, :, :1])
  still = edge.astype(np.int8)
  lo, hi = ([edge, a.bounds[1]], [a.bounds[0], edge + a.kv_len])
  lo_step, hi_step = ([still, a.steps[1]], [a.steps[0], still])
  bounds, steps = (
    np.stack([np.concatenate(x, axis=2) for x in pair]) for pair in ((lo, hi), (lo_step, hi_step))
  )
  # The gap before the first interval may open or close within a segment.
  start, bounds, steps = _split(
    a.start, bounds, steps, _changes(bounds[0] - bounds[1], steps[0] - steps[1], -1), a.q_len
  )
  return _canonical(start, bounds, steps, a.q_len, a.kv_len)


def _intersect(a: Spans, b: Spans) -> Spans:
  start = _union([a.start, b.start])
  a, b = a.cut(start), b.cut(start)
  width = max(
    1, _AT_ONCE // (a.count * b.count * max(a.bounds[0, ..., 0, 0].size, b.bounds[0, ..., 0, 0].size))
  )
  parts = [
    _intersect_segments(a, b, slice(begin, begin + width)) for begin in range(0, max(len(start), 1), width)
  ]
  return parts[0] if len(parts) == 1 else _behind_each_other(parts)


def _intersect_segments(a: Spans, b: Spans, pick: slice) -> Spans:
  """The intersection within some segments, in terms of all queries."""
  start = a.start[pick]
  stop = np.append(a.start, a.q_len)[pick.start + 1 : pick.start + 1 + len(start)]
  q_len = int(stop[-1]) if len(stop) else 0
  both = [(x.bounds[..., pick], x.steps[..., pick]) for x in (a, b)]
  lead = np.broadcast_shapes(both[0][0].shape[1:3], both[1][0].shape[1:3])
  shape = (2, *lead, a.count, b.count, len(start))
  (a_bounds, a_steps), (b_bounds, b_steps) = (
    tuple(np.broadcast_to(np.expand_dims(x, axis), shape) for x in pair)
    for pair, axis in zip(both, (4, 3), strict=True)
  )
  flat = (2, *lead, a.count * b.count, len(start))
  a_bounds, b_bounds, a_steps, b_steps = (x.reshape(flat) for x in (a_bounds, b_bounds, a_steps, b_steps))
  crossings = _changes(a_bounds - b_bounds, a_steps - b_steps, 0)
  cuts = _split_points(start, crossings, q_len)
  a_bounds, a_steps = _at(start, a_bounds, a_steps, cuts)
  b_bounds, b_steps = _at(start, b_bounds, b_steps, cuts)
  # Bounds that are equal now may part within the segment, in the order of their steps.
  greater = (a_bounds > b_bounds) | ((a_bounds == b_bounds) & (a_steps > b_steps))
  take_a = np.stack([greater[0], ~greater[1]])
  bounds, steps = np.where(take_a, a_bounds, b_bounds), np.where(take_a, a_steps, b_steps)
  cuts, bounds, steps = _split(
    cuts, bounds, steps, _changes(bounds[0] - bounds[1], steps[0] - steps[1], -1), q_len
  )
  return _canonical(cuts, bounds, steps, q_len, a.kv_len)


def _behind_each_other(parts: list[Spans]) -> Spans:
  count = max(x.count for x in parts)
  pads = [[(0, 0), (0, 0), (0, 0), (0, count - x.count), (0, 0)] for x in parts]
  kv_len = parts[0].kv_len
  bounds = [np.pad(x.bounds, pad, constant_values=kv_len) for x, pad in zip(parts, pads, strict=True)]
  steps = [np.pad(x.steps, pad) for x, pad in zip(parts, pads, strict=True)]
  start = np.concatenate([x.start for x in parts])
  return Spans(
    start, np.concatenate(bounds, axis=-1), np.concatenate(steps, axis=-1), parts[-1].q_len, kv_len
  )


def _union(starts: list[np.ndarray]) -> np.ndarray:
  if all(np.array_equal(starts[0], x) for x in starts[1:]):
    return starts[0]
  return distinct(np.concatenate(starts))


def _changes(value, step, threshold: int):
  """After how many queries of each segment `value` goes from `threshold` or less beyond it, or back.

  Where a bound falls by one per query, that is the first query at or below; where it grows, the first
  above. 0 where it does neither.
  """
  ahead = np.where(step > 0, threshold + 1 - value, np.where(step < 0, value - threshold, 0))
  return np.maximum(ahead, 0)


def _split_points(start, changes, q_len: int) -> np.ndarray:
  """Segments that also begin where `changes`, [..., segments], fall within them."""
  lengths = np.diff(start, append=q_len)
  inside = (changes > 0) & (changes < lengths)
  if not inside.any():
    return start
  at = np.nonzero(inside)
  return distinct(np.concatenate([start, start[at[-1]] + changes[at]]))


def _at(start, bounds, steps, cuts):
  """Bounds and steps in the finer segments `cuts`."""
  if len(cuts) == len(start):
    return bounds, steps
  segment = np.searchsorted(start, cuts, "right") - 1
  steps = steps[..., segment]
  return bounds[..., segment] + steps * (cuts - start[segment]).astype(bounds.dtype), steps


def _split(start, bounds, steps, changes, q_len: int):
  cuts = _split_points(start, changes, q_len)
  return (cuts, *_at(start, bounds, steps, cuts))


def _clipped(start, bounds, steps, q_len: int, kv_len: int):
  """Bounds within the keys, and segments within which it does not change which of them are empty."""
  for limit in (0, kv_len):
    start, bounds, steps = _split(start, bounds, steps, _changes(bounds, steps, limit - 1), q_len)
  outside = (bounds < 0) | (bounds >= kv_len)
  bounds, steps = np.clip(bounds, 0, kv_len), np.where(outside, np.int8(0), steps)
  changes = _changes(bounds[0] - bounds[1], steps[0] - steps[1], -1)
  return _split(start, bounds, steps, changes, q_len)


def _canonical(start, bounds, steps, q_len: int, kv_len: int) -> Spans:
  """Orders intervals that are disjoint or empty throughout their segment, drops slots that none uses."""
  empty = bounds[0] >= bounds[1]
  bounds = np.where(empty, kv_len, bounds).astype(np.int32)
  steps = np.where(empty, np.int8(0), steps)
  if empty.shape[2] > 1:
    used = int((~empty).sum(axis=2).max(initial=0))
    order = np.argsort(bounds[0], axis=2, kind="stable")[:, :, : max(used, 1)]
    bounds, steps = (np.take_along_axis(x, order[None], axis=3) for x in (bounds, steps))
  return _compact(Spans(start, bounds, steps, q_len, kv_len))


def _compact(spans: Spans) -> Spans:
  """Joins segments that go on like the ones before."""
  if len(spans.start) < 2:
    return spans
  following = spans.ends()[..., :-1] + spans.steps[..., :-1]
  new = (following != spans.bounds[..., 1:]) | (spans.steps[..., :-1] != spans.steps[..., 1:])
  keep = np.append(True, new.any(axis=(0, 1, 2, 3)))
  if keep.all():
    return spans
  return dataclasses.replace(
    spans, start=spans.start[keep], bounds=spans.bounds[..., keep], steps=spans.steps[..., keep]
  )


def _empty_last(lo, hi, kv_len: int):
  empty = lo >= hi
  return np.where(empty, np.int32(kv_len), lo), np.where(empty, np.int32(kv_len), hi)


def _sorted(lo, hi):
  """Orders the few intervals of each query by `lo`."""
  order = np.argsort(lo, axis=2, kind="stable")
  return np.take_along_axis(lo, order, axis=2), np.take_along_axis(hi, order, axis=2)


def _joined(lo, hi, kv_len: int):
  """Joins intervals that overlap or touch; expects them in order."""
  lo, hi = lo.copy(), hi.copy()
  for n, m in itertools.pairwise(range(lo.shape[2])):
    join = (lo[:, :, m] <= hi[:, :, n]) & (lo[:, :, m] < kv_len)
    hi[:, :, m] = np.where(join, np.maximum(hi[:, :, n], hi[:, :, m]), hi[:, :, m])
    lo[:, :, m] = np.where(join, lo[:, :, n], lo[:, :, m])
    for x in (lo, hi):
      x[:, :, n] = np.where(join, np.int32(kv_len), x[:, :, n])
  return lo, hi
