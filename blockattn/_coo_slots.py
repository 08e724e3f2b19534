"""The slots of a BlockCOO: cutting a matrix into blocks, sorting blocks, adding up those of one place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from blockattn._coo_checks import is_concrete


def to_blocks(dense: jax.Array, block_shape: tuple[int, int]) -> jax.Array:
  """[M, N] as [rows, cols, bm, bn], padded with zeros to whole blocks."""
  bm, bn = block_shape
  num_rows, num_cols = -(-dense.shape[0] // bm), -(-dense.shape[1] // bn)
  pad = ((0, num_rows * bm - dense.shape[0]), (0, num_cols * bn - dense.shape[1]))
  return jnp.pad(dense, pad).reshape(num_rows, bm, num_cols, bn).swapaxes(1, 2)


def sort_slots(blocks, rows, cols, num_blocks):
  """The slots in row-major order, dead ones last."""
  xp = np if all(map(is_concrete, (rows, cols, num_blocks))) else jnp
  rows, cols = xp.asarray(rows), xp.asarray(cols)
  dead = xp.arange(rows.shape[0]) >= num_blocks
  # lexsort and not one key row * num_cols + col, which overflows int32 on large grids.
  order = xp.lexsort((cols, rows, dead))
  return jnp.take(blocks, order, axis=-3), rows[order], cols[order]


def merge_slots(blocks, rows, cols, num_blocks):
  """Adds up the blocks of equal place; the slots are sorted already."""
  n = rows.shape[0]
  if n == 0:
    return blocks, rows, cols, 0
  xp = np if all(map(is_concrete, (rows, cols, num_blocks))) else jnp
  live = xp.arange(n) < num_blocks
  starts = live & ((rows != xp.roll(rows, 1)) | (cols != xp.roll(cols, 1)) | (xp.arange(n) == 0))
  target = xp.where(live, xp.cumsum(starts) - 1, n)  # n is out of range: dropped
  summed = jnp.zeros_like(blocks).at[..., target, :, :].add(blocks, mode="drop")
  place = jnp.zeros((2, n), jnp.int32).at[:, target].set(jnp.stack([rows, cols]), mode="drop")
  if xp is np:
    place = np.asarray(place)
  return summed, place[0], place[1], starts.sum(dtype=np.int32)


def poison(dtype) -> Any:
  if jnp.issubdtype(dtype, jnp.inexact):
    return jnp.nan
  return False if dtype == np.bool_ else jnp.iinfo(dtype).min
