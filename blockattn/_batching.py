"""Leading dimensions of the building blocks: broadcast like NumPy, without copying what is shared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def vmap_leading(fn: Callable[..., jax.Array], x: Any, x_ndim: int, y: Any, y_ndim: int) -> jax.Array:
  """Applies `fn(x, y)` over the leading dimensions of both.

  Args:
    fn: Takes x with `x_ndim` and y with `y_ndim` dimensions.
    x: [..., *x]; leading dimensions broadcast against those of y.
    x_ndim: Dimensions of x that `fn` takes.
    y: [..., *y].
    y_ndim: Dimensions of y that `fn` takes.

  Returns:
    [..., *fn(x, y)].

  Raises:
    ValueError: The leading dimensions do not broadcast.
  """
  lead_x, lead_y = x.shape[: x.ndim - x_ndim], y.shape[: y.ndim - y_ndim]
  try:
    lead = np.broadcast_shapes(lead_x, lead_y)
  except ValueError as error:
    raise ValueError(
      f"Leading dimensions must be equal or 1, got {lead_x} and {lead_y}. Repeat or drop one."
    ) from error
  for _ in lead:
    # From the innermost outwards: an axis that one side lacks, or has only once, is not mapped
    # there.
    axis_x, x, lead_x = _inner_axis(x, lead_x)
    axis_y, y, lead_y = _inner_axis(y, lead_y)
    if axis_x is None and axis_y is None:  # a size of 1 on both sides
      fn = _add_axis(fn)
    else:
      fn = jax.vmap(fn, in_axes=(axis_x, axis_y))
  return fn(x, y)


def _inner_axis(x: Any, lead: tuple[int, ...]):
  """The vmap axis for the last of `lead`, x without it if it is not mapped, and the rest of `lead`."""
  if not lead:
    return None, x, lead
  if lead[-1] == 1:
    return None, x.squeeze(len(lead) - 1), lead[:-1]
  return 0, x, lead[:-1]


def _add_axis(fn: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
  return lambda x, y: fn(x, y)[None]
