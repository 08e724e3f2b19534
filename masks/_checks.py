"""Checks of the builders' arguments: the rule, the value received and the remedy."""

import operator

import numpy as np
from jax.core import Tracer

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


def id_array(name: str, ids, ranks: tuple[int, ...], shapes: str):
  """Integer array of one of these ranks, as int32: NumPy, or JAX if it is traced."""
  if isinstance(ids, Tracer):
    _check_ids(name, ids, ranks, shapes)
    return ids.astype(np.int32)
  ids = np.asarray(ids)
  if ids.size == 0 and ids.dtype == np.float64:
    ids = ids.astype(np.int32)  # NumPy's dtype for an empty list
  _check_ids(name, ids, ranks, shapes)
  if ids.size and not (-(2**31) <= int(ids.min()) and int(ids.max()) < 2**31):
    raise ValueError(
      f"`{name}` must fit int32, got values from {ids.min()} to {ids.max()}. Renumber them from 0."
    )
  return ids.astype(np.int32)


def concrete_ids(name: str, ids, ranks: tuple[int, ...], shapes: str):
  """`id_array` of an array that must not be traced."""
  if isinstance(ids, Tracer):
    raise TypeError(
      f"`{name}` must be concrete, got a traced array of shape {ids.shape}. Build the mask outside of jit."
    )
  return id_array(name, ids, ranks, shapes)


def _check_ids(name: str, ids, ranks: tuple[int, ...], shapes: str) -> None:
  if not np.issubdtype(ids.dtype, np.integer):
    raise TypeError(f"`{name}` must have an integer dtype, got {ids.dtype}. Convert it first.")
  if ids.ndim not in ranks:
    raise ValueError(f"`{name}` must have shape {shapes}, got shape {ids.shape}.")
