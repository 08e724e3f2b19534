"""FixedLengths: what masks with numbers of their own for each query and key share."""

from __future__ import annotations

from masks._mask import Mask


class FixedLengths(Mask):
  """A mask that fits only its own lengths, or parts of them after a shift."""

  @property
  def lengths(self) -> tuple[int, int]:
    """(queries, keys) that it has numbers for."""
    raise NotImplementedError(f"{type(self).__name__} does not define lengths")

  def cut(self, q: slice, kv: slice) -> Mask:
    """The mask of some of its queries and keys."""
    raise NotImplementedError(f"{type(self).__name__} does not define cut()")

  def check(self, q_len, kv_len):
    if self.lengths != (q_len, kv_len):
      raise ValueError(
        f"{self!r} fits only its own lengths (queries, keys) = {self.lengths}, got "
        f"{(q_len, kv_len)}. Build it for the tokens of the call; for a part of them use shift()."
      )
