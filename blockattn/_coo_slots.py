"""The slots of a BlockCOO, under jit: cutting a matrix, sorting, merging, putting it together."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp


@functools.partial(jax.jit, static_argnames="block_shape")
def cut(dense: jax.Array, block_shape: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
  """[M, N] as [rows, cols, bm, bn], padded with zeros to whole blocks; and which blocks are not zero."""
  bm, bn = block_shape
  num_rows, num_cols = -(-dense.shape[0] // bm), -(-dense.shape[1] // bn)
  pad = ((0, num_rows * bm - dense.shape[0]), (0, num_cols * bn - dense.shape[1]))
  blocked = jnp.pad(dense, pad).reshape(num_rows, bm, num_cols, bn).swapaxes(1, 2)
  return blocked, (blocked != 0).any(axis=(2, 3))


@functools.partial(jax.jit, static_argnames="capacity")
def pick(blocked: jax.Array, nonzero: jax.Array, capacity: int):
  """(blocks, rows, cols, num_blocks) of the nonzero blocks; poisoned if they are more than `capacity`."""
  rows, cols = jnp.nonzero(nonzero, size=capacity, fill_value=0)
  num_blocks = nonzero.sum(dtype=jnp.int32)
  poison = _poison(blocked.dtype)
  blocks = jnp.where(num_blocks > capacity, poison, blocked[rows, cols]).astype(blocked.dtype)
  return blocks, rows, cols, jnp.minimum(num_blocks, capacity)


@functools.partial(jax.jit, static_argnames=("capacity", "shape", "block_shape", "dtype"))
def sample(key, nonzero, capacity: int, shape: tuple[int, int], block_shape: tuple[int, int], dtype: Any):
  """(blocks, rows, cols, num_blocks) with values in [0, 1) where `nonzero`, and 0 over the edge."""
  bm, bn = block_shape
  rows, cols = jnp.nonzero(nonzero, size=capacity, fill_value=0)
  blocks = jax.random.uniform(key, (capacity, bm, bn), dtype)
  inside_m = rows[:, None] * bm + jnp.arange(bm) < shape[0]
  inside_n = cols[:, None] * bn + jnp.arange(bn) < shape[1]
  blocks = jnp.where(inside_m[:, :, None] & inside_n[:, None, :], blocks, 0)
  return blocks, rows, cols, jnp.minimum(nonzero.sum(dtype=jnp.int32), capacity)


@jax.jit
def sort(blocks, rows, cols, num_blocks):
  """(blocks, rows, cols) in row-major order, dead slots last."""
  dead = jnp.arange(rows.shape[0]) >= num_blocks
  # lexsort and not one key row * num_cols + col, which overflows int32 on large grids.
  order = jnp.lexsort((cols, rows, dead))
  return jnp.take(blocks, order, axis=-3), rows[order], cols[order]


@jax.jit
def merge(blocks, rows, cols, num_blocks):
  """(blocks, rows, cols, num_blocks) with the blocks of equal place, which are neighbours, added up."""
  n = rows.shape[0]
  slot = jnp.arange(n)
  live = slot < num_blocks
  starts = live & ((rows != jnp.roll(rows, 1)) | (cols != jnp.roll(cols, 1)) | (slot == 0))
  target = jnp.where(live, jnp.cumsum(starts) - 1, n)  # n is out of range: dropped
  blocks = jnp.zeros_like(blocks).at[..., target, :, :].add(blocks, mode="drop")
  rows, cols = (jnp.zeros_like(x).at[target].set(x, mode="drop") for x in (rows, cols))
  return blocks, rows, cols, starts.sum(dtype=jnp.int32)


@functools.partial(jax.jit, static_argnames="shape")
def assemble(blocks, rows, cols, num_blocks, shape: tuple[int, int]) -> jax.Array:
  """[..., M, N]: the live blocks in their places, the rest zero."""
  *lead, n, bm, bn = blocks.shape
  num_rows, num_cols = -(-shape[0] // bm), -(-shape[1] // bn)
  live = jnp.arange(n) < num_blocks
  rows = jnp.where(live, rows, num_rows)  # out of range: dropped
  dense = jnp.zeros((*lead, num_rows, num_cols, bm, bn), blocks.dtype)
  dense = dense.at[..., rows, cols, :, :].add(blocks, mode="drop")
  dense = dense.swapaxes(-3, -2).reshape(*lead, num_rows * bm, num_cols * bn)
  return dense[..., : shape[0], : shape[1]]


def _poison(dtype: Any) -> Any:
  return jnp.nan if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).min
