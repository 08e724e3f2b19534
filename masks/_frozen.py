"""How masks hold arrays: concrete ones as values, traced ones as themselves."""

import functools
import zlib

import jax
import numpy as np
from jax.core import Tracer


class FrozenArray:
  """A read-only copy of an array; equal and hash equal when shape, dtype and every element agree."""

  def __init__(self, array):
    self.array = np.array(array, order="C")
    self.array.setflags(write=False)

  def __eq__(self, other):
    if not isinstance(other, FrozenArray):
      return NotImplemented
    if self is other or self.array is other.array:
      return True
    a, b = self.array, other.array
    return a.shape == b.shape and a.dtype == b.dtype and bool(np.array_equal(a, b))

  @functools.cached_property
  def _hash(self) -> int:
    # Equality compares every element, so that a checksum will do here: it tells small changes apart, fast.
    return hash((self.array.shape, self.array.dtype.str, zlib.crc32(self.array.data)))

  def __hash__(self):
    return self._hash

  def __reduce__(self):  # a copy is read-only too, and hashes anew: hashes differ between processes
    return FrozenArray, (self.array,)

  def __repr__(self):
    return f"{self.array.dtype}[{', '.join(map(str, self.array.shape))}]"


class TracedArray:
  """An array whose values are unknown while a function is traced; equal only to itself."""

  def __init__(self, array):
    self.array = array

  def __eq__(self, other):
    return isinstance(other, TracedArray) and self.array is other.array

  def __hash__(self):
    return id(self.array)

  def __repr__(self):
    shape = getattr(self.array, "shape", ())
    return f"traced {getattr(self.array, 'dtype', '')}[{', '.join(map(str, shape))}]"


def hold(array) -> FrozenArray | TracedArray:
  """A value for a concrete array; a holder for a tracer, or for what stands for an array in a pytree."""
  if isinstance(array, Tracer) or not isinstance(array, np.ndarray | jax.Array):
    return TracedArray(array)
  return FrozenArray(array)
