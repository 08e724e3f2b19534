"""AxisWindow: the windows of a neighbourhood along one axis."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from masks import _checks


@dataclasses.dataclass(frozen=True)
class AxisWindow:
  """NATTEN's rule along one axis, see `masks.neighborhood`.

  Tokens of equal x % dilation form a group, in which x // dilation counts. A code numbers the tokens so
  that every group has consecutive ones and windows reach into no other group: a window is a range of codes.
  """

  length: int
  kernel: int
  dilation: int
  stride: int
  is_causal: bool

  @classmethod
  def checked(cls, where: str, length, kernel, dilation, stride, is_causal) -> AxisWindow:
    """The windows along one axis of `shape`, named `where` in errors."""
    numbers = {"shape": length, "kernel": kernel, "dilation": dilation, "stride": stride}
    for name, value in numbers.items():
      if _checks.integer(name, value) < 1:
        raise ValueError(f"`{name}` must be at least 1, got {name}={value} ({where}).")
    if not isinstance(is_causal, bool | np.bool_):
      raise TypeError(f"`is_causal` must be a bool, got {is_causal!r} ({where}).")
    if kernel * dilation > length:
      raise ValueError(
        f"`kernel` * `dilation` must be at most `shape`, got {kernel} * {dilation} > {length} ({where}). "
        "Use a smaller kernel or dilation."
      )
    if stride > kernel:
      raise ValueError(
        f"`stride` must be at most `kernel`, got stride={stride}, kernel={kernel} ({where}). Queries "
        "would lie outside their windows."
      )
    return cls(*map(int, numbers.values()), bool(is_causal))

  def group_length(self, group):
    """Tokens with x % dilation == group."""
    return (self.length - group + self.dilation - 1) // self.dilation

  def window(self, group, at):
    """The window [start, stop) of the token number `at` of a group, within the group."""
    last = self.group_length(group) - 1
    first_of_stride = at // self.stride * self.stride
    if self.is_causal:
      leader = np.minimum(first_of_stride + self.stride - 1, last)
      return np.maximum(leader - self.kernel + 1, 0), at + 1
    leader = np.minimum(first_of_stride + self.stride // 2, last)
    start = np.clip(leader - self.kernel // 2, 0, last + 1 - self.kernel)
    return start, start + self.kernel

  @functools.cached_property
  def codes(self) -> np.ndarray:
    """Code of each token, [length]."""
    return self._first_codes + np.arange(self.length) // self.dilation

  @functools.cached_property
  def windows(self) -> tuple[np.ndarray, np.ndarray]:
    """Codes [start, stop) that each token sees, [length] each."""
    at, group = np.divmod(np.arange(self.length), self.dilation)
    start, stop = self.window(group, at)
    return self._first_codes + start, self._first_codes + stop

  @functools.cached_property
  def reach(self) -> tuple[np.ndarray, np.ndarray]:
    """First token that token x or a later one sees, and last one that x or an earlier one sees."""
    at, group = np.divmod(np.arange(self.length), self.dilation)
    first, last = (group + x * self.dilation for x in self.window(group, at))
    last = last - self.dilation
    return np.minimum.accumulate(first[::-1])[::-1], np.maximum.accumulate(last)

  def tiles(self, q_start, q_stop, kv_start, kv_stop):
    """Whether ranges of queries and keys, none empty, hold an allowed pair, and whether all are allowed."""
    hit = np.zeros(len(q_start), bool)
    fill = np.ones(len(q_start), bool)
    for group in range(self.dilation):
      # Tokens of the group in a range, as numbers within the group.
      q_low, q_high, kv_low, kv_high = (
        (x - group + self.dilation - 1) // self.dilation for x in (q_start, q_stop, kv_start, kv_stop)
      )
      present = (q_low < q_high) & (kv_low < kv_high)
      # Both ends of the window grow with the query, and the windows of neighbours touch.
      first_start, first_stop = self.window(group, q_low)
      last_start, last_stop = self.window(group, q_high - 1)
      hit |= present & (kv_low < last_stop) & (kv_high > first_start)
      fill &= ~present | ((kv_low >= last_start) & (kv_high <= first_stop))
    if self.dilation > 1:  # Neighbours are in different groups, which do not see each other.
      fill = hit & (q_stop - q_start == 1) & (kv_stop - kv_start == 1)
    return hit, fill

  @property
  def _first_codes(self) -> np.ndarray:
    """Code of the first token of the group of each token."""
    return np.arange(self.length) % self.dilation * self.group_length(0)
