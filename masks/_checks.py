"""Checks of the builders' arguments: the rule, the value received and the remedy."""

import operator

import jax
import numpy as np

# Positions beyond any length mean the same as this; it keeps position arithmetic within int32.
_FAR = 2**30


def integer(name: str, value) -> int:
  """`value` as an int."""
  if isinstance(value, bool | np.bool_):
    raise TypeError(f"`{name}` must be an int, got {value!r}.")
  try:
    return operator.index(value)
  except TypeError:
    raise TypeError(f"`{name}` must be an int, got {value!r} ({type(value).__name__}).") from None


def position(name: str, value) -> int:
  """`value` as an int, clipped to +-2**30, which no difference of positions in use reaches."""
  return max(-_FAR, min(_FAR, integer(name, value)))


def non_negative(name: str, value, remedy: str) -> int:
  """`value` as an int that is at least 0."""
  if integer(name, value) < 0:
    raise ValueError(f"`{name}` must be at least 0, got {name}={value}. {remedy}")
  return position(name, value)


def concrete_ids(name: str, ids, ranks: tuple[int, ...], shapes: str) -> np.ndarray:
  """Integer array of one of these ranks, as int32."""
  if isinstance(ids, jax.core.Tracer):
    raise TypeError(
      f"`{name}` must be a concrete array, got a traced one of shape {ids.shape}. Build the mask outside of "
      "jit, or pass the ids to the jitted function as a static argument."
    )
  ids = np.asarray(ids)
  if ids.size == 0 and ids.dtype == np.float64:
    ids = ids.astype(np.int32)  # NumPy's dtype for an empty list
  if ids.dtype.kind not in "iu":
    raise TypeError(f"`{name}` must have an integer dtype, got {ids.dtype}. Convert it first.")
  if ids.ndim not in ranks:
    raise ValueError(f"`{name}` must have shape {shapes}, got shape {ids.shape}.")
  if ids.size and not (-(2**31) <= int(ids.min()) and int(ids.max()) < 2**31):
    raise ValueError(
      f"`{name}` must fit int32, got values from {ids.min()} to {ids.max()}. Renumber them from 0."
    )
  return ids.astype(np.int32)
