"""Windows: the keys near the query's own position."""

import dataclasses

from masks import _checks, _spans
from masks._mask import Mask


@dataclasses.dataclass(frozen=True, repr=False)
class Local(Mask):
  """See `local`; `left` and `right` may be None."""

  left: int | None
  right: int | None

  period = property(lambda self: 1)

  def allows(self, q_idx, kv_idx):
    ahead = kv_idx - q_idx
    if self.left is None and self.right is None:
      return ahead == ahead
    if self.left is None:
      return ahead <= self.right
    if self.right is None:
      return ahead >= -self.left
    return (ahead >= -self.left) & (ahead <= self.right)

  def spans(self, q_len, kv_len):
    lo, lo_step = (0, 0) if self.left is None else (-self.left, 1)
    hi, hi_step = (kv_len, 0) if self.right is None else (self.right + 1, 1)
    start = _spans.all_queries(q_len)
    return _spans.from_bounds(start, lo, hi, q_len, kv_len, steps=(lo_step, hi_step))

  def __repr__(self):
    if self.right == 0 and self.left is not None:
      return f"sliding_window({self.left + 1})"
    return f"local({self.left}, {self.right})"


def sliding_window(window: int) -> Mask:
  """Query i may use key j if i - window < j <= i: the last `window` keys, its own included.

  This is the window of Mistral, Gemma and GPT-OSS. It implies causality.

  Args:
    window: Number of keys a query sees, its own included; at least 1.

  Returns:
    The mask; the same value as `local(window - 1, 0)`.

  Raises:
    ValueError: window is not positive.
    TypeError: window is not an int.

  References:
    Beltagy et al., Longformer, arXiv:2004.05150, section 3.1; Jiang et al., Mistral 7B, arXiv:2310.06825.

  >>> sliding_window(2).to_dense(4, 4).astype(int)
  array([[1, 0, 0, 0],
         [1, 1, 0, 0],
         [0, 1, 1, 0],
         [0, 0, 1, 1]])
  """
  if _checks.integer("window", window) < 1:
    raise ValueError(
      f"`window` must be at least 1 (it counts the token itself), got window={window}. "
      "For no limit leave the window out, or use local(None, 0)."
    )
  return Local(_checks.position("window", window) - 1, 0)


def local(left: int | None, right: int | None) -> Mask:
  """Query i may use key j if i - left <= j <= i + right, `None` meaning no limit on that side.

  The same numbers as `local_window_size` of `jax.nn.dot_product_attention`.

  Args:
    left: Keys before its own position that a query sees, at least 0, or None.
    right: Keys after its own position that a query sees, at least 0, or None.

  Returns:
    The mask.

  Raises:
    ValueError: left or right is negative.
    TypeError: left or right is neither an int nor None.

  >>> local(1, 1).to_dense(3, 4).astype(int)
  array([[1, 1, 0, 0],
         [1, 1, 1, 0],
         [0, 1, 1, 1]])
  """
  remedy = "Use None for no limit on that side."
  bounds = (("left", left), ("right", right))
  return Local(*(None if x is None else _checks.non_negative(n, x, remedy) for n, x in bounds))
