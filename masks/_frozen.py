"""FrozenArray: a NumPy array as a value, compared and hashed by content."""

import functools
import hashlib

import numpy as np


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
    digest = hashlib.blake2b(self.array.data, digest_size=16).digest()
    return hash((self.array.shape, self.array.dtype.str, digest))

  def __hash__(self):
    return self._hash

  def __repr__(self):
    return f"{self.array.dtype}[{', '.join(map(str, self.array.shape))}]"
