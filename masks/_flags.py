"""Checks of arrays of flags."""

import numpy as np
from jax.core import Tracer


def concrete_flags(name: str, flags, ranks: tuple[int, ...], shapes: str) -> np.ndarray:
  """Array of bool, or of integers 0 and 1, of one of these ranks, as bool."""
  if isinstance(flags, Tracer):
    raise TypeError(
      f"`{name}` must be a concrete array, got a traced one of shape {flags.shape}. Build the mask "
      "outside of jit."
    )
  flags = np.asarray(flags)
  if flags.size == 0 and flags.dtype == np.float64:
    flags = flags.astype(bool)  # NumPy's dtype for an empty list
  if flags.dtype.kind not in "biu":
    raise TypeError(
      f"`{name}` must be bool or 0/1 integers, got {flags.dtype}. Compare with a threshold first."
    )
  if flags.ndim not in ranks:
    raise ValueError(f"`{name}` must have shape {shapes}, got shape {flags.shape}.")
  if flags.dtype != bool and flags.size and not (flags.min() >= 0 and flags.max() <= 1):
    raise ValueError(
      f"`{name}` of integers must hold 0 and 1, got {flags.min()} to {flags.max()}. For token "
      "indices set flags[indices] = True."
    )
  return flags.astype(bool)
