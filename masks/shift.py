"""Shifting: the mask of a part of the queries or keys."""

from __future__ import annotations

import dataclasses
import functools
import operator
import typing

from masks import _checks
from masks._algebra import And, Not, Or
from masks._classify import TileBounds
from masks._fixed_lengths import FixedLengths
from masks._frozen import FrozenArray, TracedArray, hold
from masks._mask import Mask
from masks._positional import Positional, shifted_repr
from masks.causal import Causal, Full
from masks.document import Document
from masks.function import Array, Function
from masks.per_head import PerHead
from masks.prefix import Padding, Prefix
from masks.window import Local


@dataclasses.dataclass(frozen=True, repr=False)
class Shifted(Mask):
  """A mask whose query i stands at position i + q and key j at position j + kv of `operand`."""

  operand: Mask
  q: int
  kv: int

  lead = property(lambda self: self.operand.lead)
  is_traced = property(lambda self: self.operand.is_traced)
  period = property(lambda self: self.operand.period)

  def tree_flatten(self):
    return (self.operand,), (self.q, self.kv)

  @classmethod
  def tree_unflatten(cls, aux, children):
    return cls(*children, *aux)

  def allows(self, q_idx, kv_idx):
    return self.operand.allows(q_idx + self.q, kv_idx + self.kv)

  def check(self, q_len, kv_len):
    lengths = _own_lengths(self.operand)
    for name, start, length, own in zip(
      ("queries", "keys"), (self.q, self.kv), (q_len, kv_len), lengths or (), strict=bool(lengths)
    ):
      if start < 0 or start + length > own:
        raise ValueError(
          f"{self.operand!r} has {own} {name}, got {length} from position {start}. Shift and lengths "
          "must stay within the tokens it was built for."
        )

  def select(self, batch, head):
    return dataclasses.replace(self, operand=self.operand.select(batch, head))

  def spans(self, q_len, kv_len):
    part = self._part(q_len, kv_len)
    return None if part is None else part.spans(q_len, kv_len)

  def tile_bounds(self, grid):
    part = self._part(grid.q_len, grid.kv_len)
    return TileBounds.unknown(grid) if part is None else part.tile_bounds(grid)

  def device_bounds(self, grid):
    part = self._part(grid.q_len, grid.kv_len)
    return super().device_bounds(grid) if part is None else part.device_bounds(grid)

  def tile_rule(self, q_len, kv_len):
    part = self._part(q_len, kv_len)
    return None if part is None else part.tile_rule(q_len, kv_len)

  def box(self, q_start, q_stop, kv_start, kv_stop):
    q, kv = self.q, self.kv
    return self.operand.box(q_start + q, q_stop + q, kv_start + kv, kv_stop + kv)

  def __repr__(self):
    return shifted_repr(repr(self.operand), self.q, self.kv, always=True)

  def _part(self, q_len: int, kv_len: int) -> Mask | None:
    """The same mask without a shift, or None for a kind of mask that cannot be cut."""
    q, kv = slice(self.q, self.q + q_len), slice(self.kv, self.kv + kv_len)
    return _cut(self.operand, q, kv)


@dataclasses.dataclass(frozen=True)
class _MovedFunction:
  """A function of positions, of tokens that stand further on."""

  fn: typing.Callable
  q: int
  kv: int

  def __call__(self, q_idx, kv_idx):
    return self.fn(q_idx + self.q, kv_idx + self.kv)


def shift(mask: Mask, q: int, kv: int) -> Mask:
  """See `Mask.shift`."""
  return _shift(mask, _checks.position("q", q), _checks.position("kv", kv))


@functools.singledispatch
def _shift(mask: Mask, q: int, kv: int) -> Mask:
  """Rules on positions change their numbers; other masks keep theirs and remember the shift."""
  return Shifted(mask, q, kv)


@_shift.register
def _(mask: Shifted, q: int, kv: int):
  return shift(mask.operand, mask.q + q, mask.kv + kv)


@_shift.register
def _(mask: Positional, q: int, kv: int):
  return mask.moved(q, kv)


@_shift.register
def _(mask: Not, q: int, kv: int):
  return ~_shift(mask.operand, q, kv)


@_shift.register
def _(mask: And, q: int, kv: int):
  return functools.reduce(operator.and_, (_shift(x, q, kv) for x in mask.operands))


@_shift.register
def _(mask: Or, q: int, kv: int):
  return functools.reduce(operator.or_, (_shift(x, q, kv) for x in mask.operands))


@_shift.register
def _(mask: PerHead, q: int, kv: int):
  moved = {head: _shift(head, q, kv) for head in dict.fromkeys(mask.heads)}
  return PerHead(tuple(moved[head] for head in mask.heads))


@_shift.register
def _(mask: Full, q: int, kv: int):
  return mask


@_shift.register
def _(mask: Causal, q: int, kv: int):
  return Causal(_checks.position("offset", mask.offset + q - kv))


@_shift.register
def _(mask: Local, q: int, kv: int):
  return Shifted(mask, q - kv, 0) if q != kv else mask


@_shift.register
def _(mask: Function, q: int, kv: int):
  return Shifted(mask, q, kv) if q or kv else mask


@_shift.register
def _(mask: Prefix, q: int, kv: int):
  return Prefix(_lower_limits(mask, kv)) if kv else mask


@_shift.register
def _(mask: Padding, q: int, kv: int):
  # Lengths may exceed a part of the keys, which `Padding` rejects.
  return Prefix(_lower_limits(mask, kv)) if kv else mask


def _lower_limits(mask: Prefix | Padding, kv: int) -> FrozenArray | TracedArray:
  # Below 2**30, so that the difference stays an int32.
  return hold((mask.limits.array.clip(0, 2**30 - 1) - kv).clip(0))


@functools.singledispatch
def _own_lengths(mask: Mask) -> tuple[int, int] | None:
  """(queries, keys) that a mask holds numbers for, or None where it fits any."""
  return None


@_own_lengths.register
def _(mask: FixedLengths):
  return mask.lengths


@_own_lengths.register
def _(mask: Document):
  return (mask.q_ids.array.shape[1], mask.kv_ids.array.shape[1])


@_own_lengths.register
def _(mask: Array):
  return mask.dense.array.shape[2:]


@functools.singledispatch
def _cut(mask: Mask, q: slice, kv: slice) -> Mask | None:
  """The mask of queries and keys at some positions; None, and evaluation, where nothing is gained by it."""
  return None


@_cut.register
def _(mask: FixedLengths, q: slice, kv: slice):
  return mask.cut(q, kv)


@_cut.register
def _(mask: Document, q: slice, kv: slice):
  return Document(hold(mask.q_ids.array[:, q]), hold(mask.kv_ids.array[:, kv]))


@_cut.register
def _(mask: Local, q: slice, kv: slice):
  ahead = q.start - kv.start
  left = None if mask.left is None else mask.left - ahead
  right = None if mask.right is None else mask.right + ahead
  return Local(left, right)


@_cut.register
def _(mask: Function, q: slice, kv: slice):
  return Function(_MovedFunction(mask.fn, q.start, kv.start))
