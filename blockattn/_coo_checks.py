"""Checks of the parts of a BlockCOO; indices are looked at only where they are concrete."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

_SORT = "Build it with BlockCOO.from_parts(..., sort=True)"


def is_concrete(x: Any) -> bool:
  """Whether `x` has values now, and is not a tracer or a shape."""
  return isinstance(x, int | np.integer | np.ndarray) or (
    isinstance(x, jax.Array) and not isinstance(x, Tracer)
  )


def check_parts(blocks: Any, rows: Any, cols: Any, shape: Any, num_blocks: Any) -> None:
  """Raises where ranks, lengths or dtypes do not fit together."""
  if blocks.ndim < 3 or min(blocks.shape[-2:]) < 1:
    raise ValueError(
      "`blocks` must be [..., n, bm, bn] with bm and bn at least 1, "
      f"got blocks.shape={blocks.shape}. Add the missing dimensions in front."
    )
  if blocks.dtype == np.bool_:
    raise TypeError("`blocks` must be numbers, got bool. Convert them with astype(jnp.int8).")
  if len(shape) != 2 or min(shape) < 1:
    raise ValueError(
      "`shape` must be the two sizes of the matrix, each at least 1, "
      f"got shape={tuple(shape)}. Leading dimensions belong to `blocks` alone."
    )
  n = blocks.shape[-3]
  for name, index in (("rows", rows), ("cols", cols)):
    if index.shape != (n,):
      raise ValueError(
        f"`{name}` must have one entry for each slot of `blocks`, got {name}.shape={index.shape} "
        f"and {n} slots. Pad the shorter one, and count the live slots in num_blocks."
      )
    if not jnp.issubdtype(index.dtype, jnp.integer):
      raise TypeError(f"`{name}` must hold integers, got {name}.dtype={index.dtype}. Use int32.")
  if num_blocks is not None:
    _check_num_blocks(num_blocks, n)


def _check_num_blocks(num_blocks: Any, n: int) -> None:
  dtype = getattr(num_blocks, "dtype", None) or np.asarray(num_blocks).dtype
  if not jnp.issubdtype(dtype, jnp.integer) or np.shape(num_blocks) != ():
    raise TypeError(
      "`num_blocks` must be an integer scalar, "
      f"got dtype={dtype} and shape={np.shape(num_blocks)}. Use an int or an int32 array."
    )
  if is_concrete(num_blocks) and not 0 <= int(num_blocks) <= n:
    raise ValueError(
      f"`num_blocks` must lie between 0 and the capacity, got num_blocks={int(num_blocks)} "
      f"and {n} slots. Pad `blocks`, `rows` and `cols` for more slots."
    )


def check_layout(rows: Any, cols: Any, num_blocks: Any, grid_shape: tuple[int, int]) -> None:
  """Raises where concrete live indices are out of range, unsorted or duplicate."""
  if not all(map(is_concrete, (rows, cols, num_blocks))):
    return
  live = int(num_blocks)
  # 64 bit, as the flat place of a block exceeds int32 on large grids.
  index = [np.asarray(rows)[:live].astype(np.int64), np.asarray(cols)[:live].astype(np.int64)]
  for name, values, size in zip(("rows", "cols"), index, grid_shape, strict=True):
    wrong = (values < 0) | (values >= size)
    if wrong.any():
      slot = int(wrong.argmax())
      raise ValueError(
        f"`{name}` must lie in [0, {size}), the blocks that fit `shape`, got {values[slot]} in "
        f"slot {slot}. Enlarge `shape`, or drop the block."
      )
  step = np.diff(index[0] * grid_shape[1] + index[1])
  if (step <= 0).any():
    slot = int((step <= 0).argmax())
    places = [(int(index[0][s]), int(index[1][s])) for s in (slot, slot + 1)]
    if step[slot] == 0:
      raise ValueError(
        f"Blocks must be distinct, got two at {places[0]}, in slots {slot} and {slot + 1}. "
        "Build it with BlockCOO.from_parts(..., sum_duplicates=True) to add them up."
      )
    raise ValueError(
      f"Blocks must be in row-major order, got {places[0]} before {places[1]}, in slots {slot} "
      f"and {slot + 1}. {_SORT}."
    )


def check_capacity(nonzero: jax.Array, capacity: int | None) -> int:
  """The number of slots for the blocks of `nonzero` [rows, cols], which must hold them if concrete."""
  if is_concrete(nonzero):
    live = int(nonzero.sum())
    if capacity is not None and capacity < live:
      raise ValueError(
        f"`capacity` must be at least the number of nonzero blocks, got capacity={capacity} "
        f"and {live} blocks. Use {live}, or leave it None."
      )
    return live if capacity is None else capacity
  if capacity is None:
    raise ValueError(
      "`capacity` must be given for traced values, whose nonzero blocks cannot be counted, got "
      f"capacity=None. Use an upper bound; {nonzero.size} is always enough."
    )
  return capacity
