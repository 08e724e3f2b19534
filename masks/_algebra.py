"""The algebra of masks: what `~`, `&` and `|` build."""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from masks import _device_bounds, _spans, _tile_rule
from masks._classify import TileBounds
from masks._mask import Mask


class Not(Mask):
  """The complement of a mask; `~` builds it."""

  operand: Mask

  def __new__(cls, operand: Mask):
    """Returns the operand of a complement unchanged: `~~mask` is `mask`."""
    return operand.operand if isinstance(operand, Not) else super().__new__(cls)

  def __init__(self, operand: Mask):
    if not hasattr(self, "operand"):
      vars(self)["operand"] = operand

  def __reduce__(self):
    return Not, (self.operand,)

  lead = property(lambda self: self.operand.lead)
  is_traced = property(lambda self: self.operand.is_traced)
  period = property(lambda self: self.operand.period)

  def tree_flatten(self):
    return (self.operand,), None

  @classmethod
  def tree_unflatten(cls, aux, children):
    mask = object.__new__(cls)
    vars(mask)["operand"] = children[0]
    return mask

  def device_bounds(self, grid):
    return ~self.operand.device_bounds(grid)

  def allows(self, q_idx, kv_idx):
    return ~self.operand.allows(q_idx, kv_idx)

  def check(self, q_len, kv_len):
    self.operand.check(q_len, kv_len)

  def select(self, batch, head):
    return Not(self.operand.select(batch, head))

  def spans(self, q_len, kv_len):
    spans = self.operand.spans(q_len, kv_len)
    return None if spans is None else _spans.complement(spans)

  def tile_bounds(self, grid):
    return ~self.operand.tile_bounds(grid)

  def tile_rule(self, q_len, kv_len):
    rule = super().tile_rule(q_len, kv_len)
    if rule is not None:
      return rule
    rule = self.operand.tile_rule(q_len, kv_len)
    return None if rule is None else _tile_rule.negate(rule)

  def box(self, q_start, q_stop, kv_start, kv_stop):
    return ~self.operand.box(q_start, q_stop, kv_start, kv_stop)

  def __eq__(self, other):
    return isinstance(other, Not) and self.operand == other.operand

  def __hash__(self):
    return hash((Not, self.operand))

  def __repr__(self):
    return f"~{_wrapped(self.operand)}"


class _Nary(Mask):
  """What `And` and `Or` share: operands whose order does not matter and none of which repeats."""

  operands: tuple[Mask, ...]
  symbol: typing.ClassVar[str]
  fold_arrays: typing.ClassVar[typing.Callable]
  fold_spans: typing.ClassVar[typing.Callable]
  fold_bounds: typing.ClassVar[typing.Callable]

  def __init__(self, operands: tuple[Mask, ...]):
    vars(self)["operands"] = operands

  @functools.cached_property
  def lead(self):  # pyright: ignore[reportIncompatibleVariableOverride]
    return typing.cast(tuple[int, int], np.broadcast_shapes(*(m.lead for m in self.operands)))

  def allows(self, q_idx, kv_idx):
    return functools.reduce(type(self).fold_arrays, (m.allows(q_idx, kv_idx) for m in self.operands))

  def check(self, q_len, kv_len):
    for operand in self.operands:
      operand.check(q_len, kv_len)

  def select(self, batch, head):
    return type(self)(tuple(_select(m, batch, head) for m in self.operands))

  @property
  def is_traced(self):
    return any(m.is_traced for m in self.operands)

  @property
  def period(self):
    return common_period(self.operands)

  def tree_flatten(self):
    return self.operands, None

  @classmethod
  def tree_unflatten(cls, aux, children):
    return cls(tuple(children))

  def device_bounds(self, grid):
    """Concrete operands are classified together, which is exact; the traced ones each by its bounds."""
    concrete = tuple(m for m in self.operands if not m.is_traced)
    bounds = [m.device_bounds(grid) for m in self.operands if m.is_traced]
    if concrete:
      known = concrete[0] if len(concrete) == 1 else type(self)(concrete)
      bounds.append(_device_bounds.of_concrete(known, grid))
    return functools.reduce(type(self).fold_bounds, bounds)

  def _parts(self, q_len, kv_len) -> tuple[_spans.Spans | None, list[Mask]]:
    """The operands that are spans, folded into one, and the others."""
    folded, others = None, []
    for operand in self.operands:
      spans = operand.spans(q_len, kv_len)
      if spans is not None and folded is not None:
        spans = type(self).fold_spans(folded, spans)
      if spans is None:
        others.append(operand)
      else:
        folded = spans
    return folded, others

  def spans(self, q_len, kv_len):
    folded, others = self._parts(q_len, kv_len)
    return None if others else folded

  def tile_bounds(self, grid):
    folded, others = self._parts(grid.q_len, grid.kv_len)
    bounds = [m.tile_bounds(grid) for m in others]
    if folded is not None:
      bounds.append(TileBounds.from_spans(folded, grid))
    return functools.reduce(type(self).fold_bounds, bounds)

  def tile_rule(self, q_len, kv_len):
    folded, others = self._parts(q_len, kv_len)
    rules = [] if folded is None else [_tile_rule.from_spans(folded)]
    for operand in others:
      rule = operand.tile_rule(q_len, kv_len)
      if rule is None:
        return None
      rules.append(rule)
    return _tile_rule.combine(self.symbol, rules)

  def box(self, q_start, q_stop, kv_start, kv_stop):
    boxes = (m.box(q_start, q_stop, kv_start, kv_stop) for m in self.operands)
    return functools.reduce(type(self).fold_arrays, boxes)

  def __eq__(self, other):
    return type(self) is type(other) and self._operand_set == other._operand_set

  def __hash__(self):
    return hash((type(self), self._operand_set))

  @functools.cached_property
  def _operand_set(self):
    return frozenset(self.operands)

  def __repr__(self):
    return f" {self.symbol} ".join(_wrapped(m) for m in self.operands)


class And(_Nary):
  """Keys that every operand allows; `&` builds it."""

  symbol = "&"
  fold_arrays = staticmethod(lambda a, b: a & b)
  fold_spans = staticmethod(_spans.intersect)
  fold_bounds = staticmethod(lambda a, b: a & b)


class Or(_Nary):
  """Keys that some operand allows; `|` builds it."""

  symbol = "|"
  fold_arrays = staticmethod(lambda a, b: a | b)
  fold_spans = staticmethod(_spans.unite)
  fold_bounds = staticmethod(lambda a, b: a | b)


def common_period(masks: typing.Iterable[Mask]) -> int | None:
  """The least number of positions that is a period of every mask; see `Mask.period`."""
  periods = [mask.period for mask in masks]
  return None if None in periods else math.lcm(*(p for p in periods if p is not None))


def _select(mask: Mask, batch: int, head: int) -> Mask:
  """`mask.select`, where an axis of 1 stands for every example or head."""
  return mask.select(*(i if n > 1 else 0 for i, n in zip((batch, head), mask.lead, strict=True)))


def combine(kind: type[_Nary], a: Mask, b: Mask):
  """`a` and `b` under one operator, flattened, without repeats and neutral or absorbing operands."""
  from masks.causal import full  # causal imports Mask, which imports this module when it is used

  if not isinstance(b, Mask):
    raise TypeError(
      f"Masks combine with masks, got {type(b).__name__} under {kind.symbol}. For an array use masks.from_array."
    )
  try:
    np.broadcast_shapes(a.lead, b.lead)
  except ValueError:
    raise ValueError(
      f"Masks must agree in (batch, heads) or have 1 there, got {a.lead} and {b.lead}."
    ) from None
  neutral, absorbing = (full(), ~full()) if kind is And else (~full(), full())
  parts = [m for x in (a, b) for m in (x.operands if isinstance(x, kind) else (x,))]
  if absorbing in parts:
    return absorbing
  operands = tuple(dict.fromkeys(m for m in parts if m != neutral))
  if len(operands) < 2:
    return operands[0] if operands else neutral
  return kind(operands)


def _wrapped(mask: Mask) -> str:
  return f"({mask!r})" if isinstance(mask, _Nary) else repr(mask)
