"""Limits on the key position alone: a prefix that all see, and padding that nobody sees."""

import dataclasses

import numpy as np

from masks import _checks, _device_bounds, _spans, _tile_rule
from masks._frozen import FrozenArray, TracedArray, hold
from masks._mask import Mask


@dataclasses.dataclass(frozen=True, repr=False)
class _KeyLimit(Mask):
  """Key j is allowed below a limit, one for all or one per example."""

  limits: FrozenArray | TracedArray  # [batch] int32
  array_fields = ("limits",)

  @property
  def lead(self):
    return (self.limits.array.shape[0], 1)

  def allows(self, q_idx, kv_idx):
    return (kv_idx < int(self.limits.array[0])) & (q_idx >= 0)

  def select(self, batch, head):
    return type(self)(FrozenArray(self.limits.array[batch : batch + 1]))

  def spans(self, q_len, kv_len):
    if self.is_traced:
      return None
    hi = self.limits.array[:, None, None]
    return _spans.from_bounds(_spans.all_queries(q_len), 0, hi, q_len, kv_len)

  def device_bounds(self, grid):
    return _device_bounds.of_key_limits(self.limits.array, grid)

  def tile_rule(self, q_len, kv_len):
    if not self.is_traced:
      return super().tile_rule(q_len, kv_len)
    return _tile_rule.below(self.limits.array, q_len, kv_len)

  def _repr_limits(self) -> str:
    if self.is_traced:
      return repr(self.limits)
    limits = self.limits.array
    return str(limits.tolist() if 1 < limits.size <= 8 else limits[0] if limits.size == 1 else self.limits)


class Prefix(_KeyLimit):
  """See `prefix`."""

  def __repr__(self):
    return f"prefix({self._repr_limits()})"


class Padding(_KeyLimit):
  """See `padding`."""

  def check(self, q_len, kv_len):
    if self.is_traced:
      return
    longest = int(self.limits.array.max(initial=0))
    if longest > kv_len:
      raise ValueError(
        f"`kv_lengths` must be at most the number of keys, {kv_len}, got {longest}. Give the lengths of "
        "the keys that are passed."
      )

  def __repr__(self):
    return f"padding({self._repr_limits()})"


def prefix(n) -> Mask:
  """Query i may use key j if j < n: the first n keys, whatever the query.

  `causal() | prefix(n)` is the prefix-LM mask; `causal() & (prefix(4) | sliding_window(w))` keeps
  four attention sinks, as in streaming.

  Args:
    n: Number of keys, an int or an int array [batch] with one number per example; at least 0. May be
      traced; a negative traced number means 0.

  Returns:
    The mask.

  Raises:
    ValueError: n is negative or has more than one dimension.
    TypeError: n is not integer.

  References:
    Raffel et al., T5, arXiv:1910.10683, section 3.2.1; Xiao et al., StreamingLLM, arXiv:2309.17453.

  >>> from masks import causal
  >>> (causal() | prefix(2)).to_dense(3, 3).astype(int)
  array([[1, 1, 0],
         [1, 1, 0],
         [1, 1, 1]])
  """
  return Prefix(_limits("n", n))


def padding(kv_lengths) -> Mask:
  """Query i of example b may use key j if j < kv_lengths[b]: keys beyond are padding.

  Args:
    kv_lengths: Number of real keys, an int or an int array [batch]; at least 0. May be traced; traced
      lengths beyond the number of keys mean all of them.

  Returns:
    The mask. A length beyond the number of keys is an error when the mask is used.

  Raises:
    ValueError: kv_lengths is negative or has more than one dimension.
    TypeError: kv_lengths is not integer.

  >>> padding([1, 3]).to_dense(1, 3).astype(int)
  array([[[1, 0, 0]],
         [[1, 1, 1]]])
  """
  return Padding(_limits("kv_lengths", kv_lengths))


def _limits(name: str, value) -> FrozenArray | TracedArray:
  limits = _checks.id_array(name, value, (0, 1), "[] or [batch]").reshape(-1)
  if limits.size == 0:
    raise ValueError(f"`{name}` must hold at least one number, got an empty array.")
  if isinstance(limits, np.ndarray) and limits.min() < 0:
    raise ValueError(f"`{name}` must be at least 0, got {int(limits.min())}.")
  return hold(limits)
