"""Every key, and the keys up to the query's own position."""

import dataclasses

from masks import _checks, _spans
from masks._mask import Mask


@dataclasses.dataclass(frozen=True, repr=False)
class Full(Mask):
  """See `full`."""

  period = property(lambda self: 1)

  def allows(self, q_idx, kv_idx):
    return (q_idx >= 0) & (kv_idx >= 0)

  def spans(self, q_len, kv_len):
    return _spans.from_bounds(_spans.all_queries(q_len), 0, kv_len, q_len, kv_len)

  def __repr__(self):
    return "full()"


@dataclasses.dataclass(frozen=True, repr=False)
class Causal(Mask):
  """See `causal`."""

  offset: int = 0

  period = property(lambda self: 1)

  def allows(self, q_idx, kv_idx):
    return kv_idx - q_idx <= self.offset

  def spans(self, q_len, kv_len):
    start = _spans.all_queries(q_len)
    return _spans.from_bounds(start, 0, self.offset + 1, q_len, kv_len, steps=(0, 1))

  def __repr__(self):
    return f"causal(offset={self.offset})" if self.offset else "causal()"


def full() -> Mask:
  """Every query may use every key.

  Returns:
    The mask that allows everything; `~full()` allows nothing.

  >>> full().to_dense(2, 3).all()
  np.True_
  """
  return Full()


def causal(offset: int = 0) -> Mask:
  """Query i may use key j if j <= i + offset.

  The default aligns the first query with the first key (top left). When the queries are the last of
  the keys, as in decoding or chunked prefill, give offset = kv_len - q_len (bottom right).

  Args:
    offset: How many keys beyond its own position a query sees; may be negative.

  Returns:
    The mask.

  Raises:
    TypeError: offset is not an int.

  References:
    Vaswani et al., Attention is all you need, arXiv:1706.03762, section 3.2.3.

  >>> causal().to_dense(2, 5).astype(int)
  array([[1, 0, 0, 0, 0],
         [1, 1, 0, 0, 0]])
  >>> causal(offset=3).to_dense(2, 5).astype(int)
  array([[1, 1, 1, 1, 0],
         [1, 1, 1, 1, 1]])
  """
  return Causal(_checks.position("offset", offset))
