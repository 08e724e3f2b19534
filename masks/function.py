"""Any rule: a function of positions, or an array."""

import dataclasses
import typing

import jax
import numpy as np
from jax.core import Tracer

from masks import _tile_rule
from masks._frozen import FrozenArray
from masks._mask import Mask


@dataclasses.dataclass(frozen=True, repr=False)
class Function(Mask):
  """See `from_function`."""

  fn: typing.Callable

  def allows(self, q_idx, kv_idx):
    # Within jit, jax.numpy would trace even what it computes from constants.
    with jax.ensure_compile_time_eval():
      allowed = np.asarray(self.fn(q_idx, kv_idx))
    if allowed.dtype != bool:
      raise TypeError(
        f"The function of from_function must return booleans, got dtype {allowed.dtype}. Compare or "
        "convert with astype(bool)."
      )
    return allowed

  def tile_rule(self, q_len, kv_len):
    if not _tile_rule.runs_in_kernel(self.fn):
      return None
    return _tile_rule.without_tokens(_tile_rule.FunctionTest(self.fn), q_len, kv_len)

  def __repr__(self):
    return f"from_function({getattr(self.fn, '__qualname__', repr(self.fn))})"


@dataclasses.dataclass(frozen=True, repr=False)
class Array(Mask):
  """See `from_array`."""

  dense: FrozenArray  # bool [batch, heads, q_len, kv_len]

  @property
  def lead(self):
    return self.dense.array.shape[:2]

  def check(self, q_len, kv_len):
    shape = self.dense.array.shape[2:]
    if shape != (q_len, kv_len):
      raise ValueError(
        f"An array mask fits only its own lengths (queries, keys) = {shape}, got {(q_len, kv_len)}. "
        "Build it for the lengths of the call."
      )

  def allows(self, q_idx, kv_idx):
    return self.dense.array[0, 0][q_idx, kv_idx]

  def select(self, batch, head):
    if self.lead == (1, 1):
      return self
    return Array(FrozenArray(self.dense.array[batch : batch + 1, head : head + 1]))

  def box(self, q_start, q_stop, kv_start, kv_stop):
    return self.dense.array[0, 0, q_start:q_stop, kv_start:kv_stop]

  def __repr__(self):
    return f"from_array({self.dense!r})"


def from_function(fn: typing.Callable) -> Mask:
  """Query i may use key j if fn(i, j) is True.

  Tiles are classified by evaluating the function once per row of tiles, in bounded memory, on NumPy
  arrays. A function made of element-wise integer and boolean operations also runs inside the kernel; one
  that indexes or captures arrays is evaluated on the host and its partial tiles are stored.

  Args:
    fn: Function (q_idx, kv_idx) -> bool of int32 position arrays that broadcast against each other, for
      NumPy and JAX arrays alike. Masks are equal when their functions are: define it once.

  Returns:
    The mask.

  Raises:
    TypeError: fn is not callable, or, when used, does not return booleans.

  >>> from_function(lambda i, j: i // 2 == j // 2).to_dense(4, 4).astype(int)
  array([[1, 1, 0, 0],
         [1, 1, 0, 0],
         [0, 0, 1, 1],
         [0, 0, 1, 1]])
  """
  if not callable(fn):
    raise TypeError(
      f"`fn` must be a function of (q_idx, kv_idx), got {type(fn).__name__}. For an array use from_array."
    )
  return Function(fn)


def from_array(array) -> Mask:
  """Query i may use key j if array[i, j] is True.

  Args:
    array: bool, or integers 0 and 1: [q_len, kv_len], or [batch, heads, q_len, kv_len] with 1 where all
      examples or heads agree. It is copied.

  Returns:
    The mask; it fits only these lengths.

  Raises:
    TypeError: array is traced, or neither bool nor integer: an additive float mask is not one.
    ValueError: array has another rank, or integers other than 0 and 1.

  >>> from_array([[1, 0], [1, 1]]).to_dense(2, 2).astype(int)
  array([[1, 0],
         [1, 1]])
  """
  if isinstance(array, Tracer):
    raise TypeError(
      f"`array` must be concrete, got a traced one of shape {array.shape}. Build the mask outside of jit."
    )
  array = np.asarray(array)
  if array.dtype.kind not in "biu":
    raise TypeError(
      f"`array` must be bool or 0/1 integers, got {array.dtype}. For an additive mask pass array == 0."
    )
  if array.ndim not in (2, 4):
    raise ValueError(
      f"`array` must be [q_len, kv_len] or [batch, heads, q_len, kv_len], got shape {array.shape}."
    )
  if array.dtype != bool and array.size and not (array.min() >= 0 and array.max() <= 1):
    raise ValueError(f"`array` of integers must hold 0 and 1, got {array.min()} to {array.max()}.")
  return Array(FrozenArray(array.astype(bool).reshape((1,) * (4 - array.ndim) + array.shape)))
