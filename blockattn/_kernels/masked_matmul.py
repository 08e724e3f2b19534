"""Masked matmul: dense = (dense @ dense) * mask, on a dense grid whose empty tiles fetch nothing."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from blockattn._compat import InterpretMode, compiler_params
from blockattn._kernels import _limits, _matmul
from masks import BlockMask, TileKind


@functools.partial(jax.jit, static_argnames=("block_shape", "block_k", "out_dtype", "interpret"))
def masked_matmul(
  x: jax.Array,
  y: jax.Array,
  schedule: jax.Array,
  tiles: jax.Array,
  *,
  block_shape: tuple[int, int],
  block_k: int,
  out_dtype: Any,
  interpret: InterpretMode,
) -> jax.Array:
  """Computes x @ y where the mask allows it, and zeros elsewhere.

  Args:
    x: [M, K].
    y: [K, N].
    schedule: [2 * rows * cols] int32 of `make_schedule`.
    tiles: [p, bm, bn] int8, the stored partial tiles.
    block_shape: (bm, bn).
    block_k: Inner size of a step.
    out_dtype: Of the result.
    interpret: Of `pl.pallas_call`.

  Returns:
    [M, N] in out_dtype.
  """
  (m_len, k_len), n_len = x.shape, y.shape[1]
  num_bytes = _matmul.vmem_bytes(block_shape, block_k, k_len, (x.dtype, y.dtype, out_dtype))
  return pl.pallas_call(
    functools.partial(_body, k_len=k_len, num_cols=pl.cdiv(n_len, block_shape[1])),
    grid_spec=_grid_spec((m_len, n_len, k_len), (*block_shape, block_k)),
    out_shape=jax.ShapeDtypeStruct((m_len, n_len), out_dtype),
    compiler_params=compiler_params(
      interpret,
      dimension_semantics=("parallel", "parallel", "arbitrary"),
      vmem_limit_bytes=_limits.vmem_limit(num_bytes),
    ),
    interpret=interpret,
    name="masked_matmul",
  )(schedule, x, y, tiles)


def _grid_spec(sizes: tuple[int, int, int], blocks: tuple[int, int, int]):
  bm, bn, bk = blocks
  num_rows, num_cols, num_k = map(pl.cdiv, sizes, blocks)
  num_tiles = num_rows * num_cols

  def next_k(i, j, k, schedule):
    # An empty tile asks all along for the first blocks of the next active one: fetched only once.
    return jnp.where(_kind(schedule, i * num_cols + j) == TileKind.EMPTY, 0, k)

  def x_map(i, j, k, schedule):
    row, _ = _limits.unpack(schedule[num_tiles + i * num_cols + j])
    return row, next_k(i, j, k, schedule)

  def y_map(i, j, k, schedule):
    _, col = _limits.unpack(schedule[num_tiles + i * num_cols + j])
    return next_k(i, j, k, schedule), col

  def tile_map(i, j, k, schedule):
    del k
    return schedule[i * num_cols + j] >> 2, 0, 0

  def o_map(i, j, k, schedule):
    del k, schedule
    return i, j

  return pltpu.PrefetchScalarGridSpec(
    num_scalar_prefetch=1,
    grid=(num_rows, num_cols, num_k),
    in_specs=[
      pl.BlockSpec((bm, bk), x_map),
      pl.BlockSpec((bk, bn), y_map),
      pl.BlockSpec((1, bm, bn), tile_map),
    ],
    out_specs=pl.BlockSpec((bm, bn), o_map),
    scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
  )


def make_schedule(block_mask: BlockMask) -> np.ndarray:
  """The prefetched list of a two-dimensional mask.

  Returns:
    [2 * rows * cols] int32, tiles in row-major order: `prefetch_mask` and, in the lowest two bits,
    the kind; then the packed (`prefetch_i`, `prefetch_j`).
  """
  kinds = (block_mask.prefetch_mask << 2) | block_mask.kinds
  places = _limits.pack(block_mask.prefetch_i, block_mask.prefetch_j)
  return np.concatenate([kinds.ravel(), places.ravel()]).astype(np.int32)


def _kind(schedule, tile):
  return schedule[tile] & 3


def _body(schedule, x_ref, y_ref, tile_ref, o_ref, acc_ref, *, k_len, num_cols):
  i, j, k = (pl.program_id(axis) for axis in range(3))
  kind = _kind(schedule, i * num_cols + j)
  block_k = x_ref.shape[1]
  num_k = pl.cdiv(k_len, block_k)
  left = k_len - k * block_k if k_len % block_k else None

  @pl.when(kind != TileKind.EMPTY)
  def _():
    product = _matmul.product(x_ref[...], y_ref[...], left)
    acc_ref[...] = _matmul.accumulate(acc_ref[...], product, k == 0)

  @pl.when((k == num_k - 1) & (kind == TileKind.EMPTY))
  def _():
    o_ref[...] = jnp.zeros_like(o_ref)

  @pl.when((k == num_k - 1) & (kind == TileKind.FULL))
  def _():
    o_ref[...] = acc_ref[...].astype(o_ref.dtype)

  @pl.when((k == num_k - 1) & (kind == TileKind.PARTIAL))
  def _():
    # int8 has no comparison on the older chips.
    allowed = tile_ref[0].astype(jnp.int32) != 0
    o_ref[...] = jnp.where(allowed, acc_ref[...], 0).astype(o_ref.dtype)
