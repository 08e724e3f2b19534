"""Positional: what rules on positions share, and how their tokens move."""

from __future__ import annotations

import dataclasses

from masks import _checks
from masks._mask import Mask


@dataclasses.dataclass(frozen=True, repr=False)
class Positional(Mask):
  """A rule on the positions i + q_start of the queries and j + kv_start of the keys.

  Attributes:
    q_start: Position of the first query.
    kv_start: Position of the first key.
  """

  q_start: int = dataclasses.field(default=0, kw_only=True)
  kv_start: int = dataclasses.field(default=0, kw_only=True)

  def moved(self, q: int, kv: int) -> Positional:
    """The rule for tokens that stand `q` and `kv` positions further on; see `Mask.shift`."""
    starts = {"q_start": self.q_start + q, "kv_start": self.kv_start + kv}
    return dataclasses.replace(self, **{n: _checks.position(n, x) for n, x in starts.items()})

  def builder(self) -> str:
    """The call that builds the mask with its first tokens at position 0."""
    raise NotImplementedError(f"{type(self).__name__} does not define builder()")

  def __repr__(self):
    return shifted_repr(self.builder(), self.q_start, self.kv_start)


@dataclasses.dataclass(frozen=True, repr=False)
class Bounded(Positional):
  """A rule on positions that end: it fits its own lengths or, once shifted, any part of them.

  Attributes:
    is_part: Whether it was shifted.
  """

  is_part: bool = dataclasses.field(default=False, kw_only=True)

  @property
  def limits(self) -> tuple[range, range]:
    """Numbers of queries and of keys that the whole rule fits."""
    raise NotImplementedError(f"{type(self).__name__} does not define limits")

  @property
  def may_start_before(self) -> bool:
    """Whether tokens may stand at negative positions."""
    return False

  def moved(self, q, kv):
    return dataclasses.replace(super().moved(q, kv), is_part=True)

  def check(self, q_len, kv_len):
    starts = (self.q_start, self.kv_start)
    for name, start, length, fitting in zip(
      ("queries", "keys"), starts, (q_len, kv_len), self.limits, strict=True
    ):
      outside = start + length > fitting[-1] or (start < 0 and not self.may_start_before)
      if outside or (not self.is_part and length not in fitting):
        most = fitting[-1] if len(fitting) == 1 else f"{fitting[0]} to {fitting[-1]}"
        raise ValueError(
          f"{self.builder()} fits {most} {name}, got {length}{f' from position {start}' * (start != 0)}. "
          "Build it for the tokens of the call; for a part of them use shift()."
        )

  def __repr__(self):
    return shifted_repr(self.builder(), self.q_start, self.kv_start, always=self.is_part)


def shifted_repr(builder: str, q: int, kv: int, always: bool = False) -> str:
  """`builder` with a call of `shift`, unless that moves nothing."""
  moves = ", ".join(f"{n}={x}" for n, x in (("q", q), ("kv", kv)) if x)
  return f"{builder}.shift({moves})" if moves or always else builder
