"""Per-head masks: one mask for each query head."""

from __future__ import annotations

import dataclasses
import itertools
import typing

import jax.numpy as jnp
import numpy as np

from masks import _spans, _tile_rule
from masks._algebra import common_period
from masks._classify import TileBounds
from masks._device_bounds import DeviceBounds
from masks._mask import Mask
from masks._spans import Spans
from masks._tile_rule import TileRule
from masks._tile_runs import TileRuns

# Kinds of test that a kernel evaluates on every partial tile, whichever kind its head has.
_MAX_KINDS = 4


@dataclasses.dataclass(frozen=True)
class GatedTest:
  """A test that allows nothing to queries whose first number is 0."""

  test: _tile_rule.TileTest
  num_q = property(lambda self: 1 + self.test.num_q)
  num_kv = property(lambda self: self.test.num_kv)

  def __call__(self, q_idx, kv_idx, q_tokens, kv_tokens):
    return (q_tokens[0] != 0) & self.test(q_idx, kv_idx, q_tokens[1:], kv_tokens)


@dataclasses.dataclass(frozen=True, repr=False)
class PerHead(Mask):
  """See `per_head`."""

  heads: tuple[Mask, ...]

  @property
  def lead(self):
    return (max(mask.lead[0] for mask in self.heads), len(self.heads))

  @property
  def is_traced(self):
    return any(mask.is_traced for mask in self._distinct)

  @property
  def period(self):
    return common_period(self._distinct)

  def tree_flatten(self):
    index = {mask: n for n, mask in enumerate(self._distinct)}
    return self._distinct, tuple(index[mask] for mask in self.heads)

  @classmethod
  def tree_unflatten(cls, aux, children):
    return cls(tuple(children[n] for n in aux))

  def check(self, q_len, kv_len):
    for mask in self._distinct:
      mask.check(q_len, kv_len)

  def select(self, batch, head):
    mask = self.heads[head]
    return mask.select(batch if mask.lead[0] > 1 else 0, 0)

  def spans(self, q_len, kv_len):
    spans = {mask: mask.spans(q_len, kv_len) for mask in self._distinct}
    if any(x is None for x in spans.values()):
      return None
    return _spans.stack([typing.cast(Spans, spans[mask]) for mask in self.heads], axis=1)

  def tile_bounds(self, grid):
    one_head = dataclasses.replace(grid, lead=(grid.lead[0], 1))
    bounds = {mask: mask.tile_bounds(one_head) for mask in self._distinct}
    names = ("may_hit", "must_hit", "may_fill", "must_fill")
    columns = ([getattr(bounds[mask], name) for mask in self.heads] for name in names)
    return TileBounds(grid, *(_interleaved(heads, grid.rows) for heads in columns))

  def device_bounds(self, grid):
    bounds = {mask: mask.device_bounds(grid) for mask in self._distinct}
    maps = zip(*(bounds[mask] for mask in self.heads), strict=True)
    return DeviceBounds(*map(_side_by_side, maps))

  def tile_rule(self, q_len, kv_len):
    """One test where all heads share it; otherwise every kind of test, gated by head."""
    if len(self._distinct) == 1:
      return self.heads[0].tile_rule(q_len, kv_len)
    spans = {mask: mask.spans(q_len, kv_len) for mask in self._distinct}
    rules = {mask: mask.tile_rule(q_len, kv_len) for mask, x in spans.items() if x is None}
    kinds = list(dict.fromkeys(rule.test for rule in rules.values() if rule is not None))
    with_spans = len(rules) < len(spans)
    if None in rules.values() or len(kinds) + with_spans > _MAX_KINDS:
      return None
    parts = []
    if with_spans:
      nothing = _spans.from_bounds(_spans.all_queries(q_len), 0, 0, q_len, kv_len)
      parts.append(_tile_rule.from_spans(_spans.stack([spans[m] or nothing for m in self.heads], axis=1)))
    for kind in kinds:
      own = {mask: rule for mask, rule in rules.items() if rule is not None and rule.test == kind}
      parts.append(_gated(kind, [own.get(mask) for mask in self.heads]))
    return _tile_rule.combine("|", parts)

  def __repr__(self):
    runs = [(mask, len(list(run))) for mask, run in itertools.groupby(self.heads)]
    parts = [f"[{mask!r}]{f' * {count}' if count > 1 else ''}" for mask, count in runs]
    shown = " + ".join(parts[:4]) + (" + ..." if len(parts) > 4 else "")
    return f"per_head({shown})"

  @property
  def _distinct(self) -> tuple[Mask, ...]:
    return tuple(dict.fromkeys(self.heads))


def per_head(heads) -> Mask:
  """Head n of the queries uses heads[n].

  Equal masks are classified once. The kernel computes partial tiles if it can for every head: heads whose
  masks are intervals (causal, windows, documents, and what is composed of them) share one test, as heads
  do that differ only in their numbers; up to four kinds of test are evaluated side by side. Beyond, or
  with a head that needs stored tiles, the tiles of all heads are stored.

  Args:
    heads: One mask for each query head; none of them may itself distinguish heads.

  Returns:
    The mask. An attention call checks that it has as many query heads.

  Raises:
    TypeError: heads is not a sequence of masks.
    ValueError: heads is empty, a mask distinguishes heads, or batch sizes differ.

  References:
    Child et al., Sparse transformers, arXiv:1904.10509, section 5.1 (heads with patterns of their own);
    Beltagy et al., Longformer, arXiv:2004.05150, section 3.1 (dilations that differ by head).

  >>> from masks import causal, full
  >>> per_head([causal(), full()]).to_dense(2, 2).astype(int)
  array([[[1, 0],
          [1, 1]],
         [[1, 1],
          [1, 1]]])
  """
  remedy = "Give a list with one mask per query head."
  if isinstance(heads, Mask) or not np.iterable(heads):
    raise TypeError(f"`heads` must be a sequence of masks, got {type(heads).__name__}. {remedy}")
  heads = tuple(heads)
  if not heads:
    raise ValueError(f"`heads` must hold at least one mask, got none. {remedy}")
  for n, mask in enumerate(heads):
    if not isinstance(mask, Mask):
      raise TypeError(f"`heads` must hold masks, got heads[{n}] of type {type(mask).__name__}. {remedy}")
    if mask.lead[1] != 1:
      raise ValueError(
        f"`heads` must hold masks of one head each, got heads[{n}] with {mask.lead[1]}. Split it."
      )
  batches = {mask.lead[0] for mask in heads} - {1}
  if len(batches) > 1:
    raise ValueError(f"`heads` must agree in the batch size or have 1, got {sorted(batches)}.")
  return PerHead(heads)


def _interleaved(heads: list[TileRuns], rows: int) -> TileRuns:
  """Tiles of [batch, 1] groups of each head as tiles of [batch, heads] groups."""
  size = len(heads)
  rows_of = (
    (tiles.row // max(rows, 1) * size + n) * rows + tiles.row % max(rows, 1) for n, tiles in enumerate(heads)
  )
  row = np.concatenate(list(rows_of))
  order = np.argsort(row, kind="stable")
  start, stop = (np.concatenate([getattr(t, n) for t in heads])[order] for n in ("start", "stop"))
  return TileRuns(row[order], start, stop, heads[0].num_rows * size, heads[0].num_cols)


def _gated(kind: _tile_rule.TileTest, heads: list[TileRule | None]) -> TileRule:
  """The rule of the heads that have one, all with the same test; it allows nothing to the others."""
  rules = [rule for rule in heads if rule is not None]
  q_tokens, kv_tokens = (
    _stacked_tokens([None if rule is None else getattr(rule, name) for rule in heads])
    for name in ("q_tokens", "kv_tokens")
  )
  if len(rules) == len(heads):
    return TileRule(kind, q_tokens, kv_tokens)
  gate = np.array([rule is not None for rule in heads], np.int32)[None, :, None, None]
  gate = np.broadcast_to(gate, (1, len(heads), 1, q_tokens.shape[3]))
  return TileRule(GatedTest(kind), _tile_rule.stack([gate, q_tokens]), kv_tokens)


def _stacked_tokens(heads: list):
  """[batch, heads, numbers, length], zeros where a head has none; one head where all share an array."""
  arrays = [x for x in heads if x is not None]
  if len({id(x) for x in arrays}) == 1:
    return arrays[0]
  nothing = np.zeros((1, *arrays[0].shape[1:]), np.int32)
  return _side_by_side([nothing if x is None else x for x in heads])


def _side_by_side(heads):
  """Arrays [batch, 1, ...] of each head as one [batch, heads, ...], 1 in front where all agree."""
  xp = np if all(isinstance(x, np.ndarray) for x in heads) else jnp
  batch = max(x.shape[0] for x in heads)
  return xp.concatenate([xp.broadcast_to(x, (batch, *x.shape[1:])) for x in heads], axis=1)
