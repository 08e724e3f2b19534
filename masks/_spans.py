"""Spans: the keys allowed to each query as a few half-open intervals, and their algebra.

Causal, window, document, prefix and padding rules allow each query one interval of keys. Such rules
stay intervals under `&`, `|` and `~`, so a whole composition is two integers per query and interval:
exact, O(queries) to build, and two comparisons per score in a kernel, whatever it was composed of.
"""

import dataclasses
import itertools

import numpy as np

MAX_SPANS = 8


@dataclasses.dataclass(frozen=True)
class Spans:
  """For each query, disjoint intervals [lo, hi) of allowed keys in increasing order.

  Intervals do not touch each other; empty ones are (kv_len, kv_len) and stand last.

  Attributes:
    lo: [batch, heads, n, q_len] int32; batch and heads are 1 where all examples or heads agree.
    hi: Like `lo`.
    kv_len: Number of keys.
  """

  lo: np.ndarray
  hi: np.ndarray
  kv_len: int

  @property
  def count(self) -> int:
    """Intervals stored per query."""
    return self.lo.shape[2]

  def num_allowed(self) -> int:
    """Allowed (query, key) pairs, over all batch and head entries stored."""
    return int((self.hi.astype(np.int64) - self.lo).sum())

  def contains(self, q_idx, kv_idx, batch: int = 0, head: int = 0) -> np.ndarray:
    """Whether query `q_idx` may use key `kv_idx`; the two arrays broadcast."""
    allowed = np.zeros(np.broadcast_shapes(np.shape(q_idx), np.shape(kv_idx)), bool)
    for n in range(self.count):
      lo, hi = self.lo[batch, head, n], self.hi[batch, head, n]
      allowed |= (kv_idx >= lo[q_idx]) & (kv_idx < hi[q_idx])
    return allowed


def from_bounds(lo, hi, kv_len: int) -> Spans:
  """One interval per query, from integer bounds [batch, heads, q_len] of any integer type."""
  lo, hi = np.broadcast_arrays(lo, hi)
  return _canonical(lo[:, :, None], hi[:, :, None], kv_len)


def from_intervals(lo, hi, kv_len: int) -> Spans:
  """Several intervals per query, [batch, heads, n, q_len]; they may overlap and be in any order."""
  return _merge(_canonical(lo, hi, kv_len))


def intersect(a: Spans, b: Spans) -> Spans | None:
  """Keys that both allow, or None when a query would need more than MAX_SPANS intervals."""
  if a.count * b.count > MAX_SPANS**2:
    return None
  lo = np.maximum(a.lo[:, :, :, None], b.lo[:, :, None])
  hi = np.minimum(a.hi[:, :, :, None], b.hi[:, :, None])
  shape = (*lo.shape[:2], -1, lo.shape[-1])
  return _bounded(_canonical(lo.reshape(shape), hi.reshape(shape), a.kv_len))


def unite(a: Spans, b: Spans) -> Spans | None:
  """Keys that either allows, or None when a query would need more than MAX_SPANS intervals."""
  lead = np.broadcast_shapes(a.lo.shape[:2], b.lo.shape[:2])
  pieces = [
    np.concatenate([np.broadcast_to(x, (*lead, *x.shape[2:])) for x in pair], axis=2)
    for pair in ((a.lo, b.lo), (a.hi, b.hi))
  ]
  return _bounded(_merge(_canonical(*pieces, a.kv_len)))


def complement(a: Spans) -> Spans | None:
  """Keys that are not allowed, or None when a query would need more than MAX_SPANS intervals."""
  edge = np.full_like(a.lo[:, :, :1], 0)
  lo = np.concatenate([edge, a.hi], axis=2)
  hi = np.concatenate([a.lo, edge + a.kv_len], axis=2)
  return _bounded(_canonical(lo, hi, a.kv_len))


def _bounded(spans: Spans) -> Spans | None:
  return spans if spans.count <= MAX_SPANS else None


def _canonical(lo, hi, kv_len: int) -> Spans:
  """Clips to the keys, orders the intervals of each query, drops slots that no query uses."""
  lo = np.clip(lo, 0, kv_len).astype(np.int32, copy=False)
  hi = np.clip(hi, 0, kv_len).astype(np.int32, copy=False)
  empty = lo >= hi
  if empty.any():
    lo, hi = np.where(empty, np.int32(kv_len), lo), np.where(empty, np.int32(kv_len), hi)
  if lo.shape[2] > 1:
    lo, hi = _drop_unused(*_sorted(lo, hi), kv_len)
  return Spans(lo, hi, kv_len)


def _sorted(lo, hi):
  """Orders the few intervals of each query by `lo`, by exchanges over whole arrays."""
  lo, hi = lo.copy(), hi.copy()
  count = lo.shape[2]
  for last in range(count - 1, 0, -1):
    for n in range(last):
      swap = lo[:, :, n] > lo[:, :, n + 1]
      if not swap.any():
        continue
      for x in (lo, hi):
        low, high = x[:, :, n], x[:, :, n + 1]
        x[:, :, n], x[:, :, n + 1] = np.where(swap, high, low), np.where(swap, low, high)
  return lo, hi


def _drop_unused(lo, hi, kv_len: int):
  used = max(1, int((lo < kv_len).any(axis=(0, 1, 3)).sum()))
  return lo[:, :, :used], hi[:, :, :used]


def _merge(spans: Spans) -> Spans:
  """Joins intervals that overlap or touch; expects them in order."""
  lo, hi, kv_len = spans.lo.copy(), spans.hi.copy(), spans.kv_len
  for n, m in itertools.pairwise(range(spans.count)):
    join = (lo[:, :, m] <= hi[:, :, n]) & (lo[:, :, m] < kv_len)
    hi[:, :, m] = np.where(join, np.maximum(hi[:, :, n], hi[:, :, m]), hi[:, :, m])
    lo[:, :, m] = np.where(join, lo[:, :, n], lo[:, :, m])
    for x in (lo, hi):
      x[:, :, n] = np.where(join, np.int32(kv_len), x[:, :, n])
  return _canonical(lo, hi, kv_len)
