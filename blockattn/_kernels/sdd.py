"""SDD matmul: block-sparse = dense @ dense, over a grid of the active output tiles."""

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


@functools.partial(
  jax.jit,
  static_argnames=("block_shape", "block_k", "out_dtype", "scale", "fill", "transpose_y", "interpret"),
)
def sdd(
  x: jax.Array,
  y: jax.Array,
  schedule: jax.Array,
  tiles: jax.Array,
  *,
  block_shape: tuple[int, int],
  block_k: int,
  out_dtype: Any,
  scale: float,
  fill: float,
  transpose_y: bool,
  interpret: InterpretMode,
) -> jax.Array:
  """Computes the active tiles of x @ y.

  Args:
    x: [M, K].
    y: [K, N], or [N, K] with `transpose_y`.
    schedule: [2 * n] int32 of `make_schedule`, n >= 1.
    tiles: [p, bm, bn] int8, the stored partial tiles.
    block_shape: (bm, bn).
    block_k: Inner size of a step.
    out_dtype: Of the result.
    scale: What the product is multiplied by, in float32.
    fill: What stands where the mask is False.
    transpose_y: Whether y is transposed.
    interpret: Of `pl.pallas_call`.

  Returns:
    [n, bm, bn] in out_dtype, in the order of the schedule.
  """
  k_len = x.shape[1]
  num_bytes = _matmul.vmem_bytes(block_shape, block_k, k_len, (x.dtype, y.dtype, out_dtype))
  return pl.pallas_call(
    functools.partial(_body, k_len=k_len, scale=scale, fill=fill, transpose_y=transpose_y),
    grid_spec=_grid_spec(schedule.shape[0] // 2, k_len, block_shape, block_k, transpose_y),
    out_shape=jax.ShapeDtypeStruct((schedule.shape[0] // 2, *block_shape), out_dtype),
    compiler_params=compiler_params(
      interpret,
      dimension_semantics=("parallel", "arbitrary"),
      vmem_limit_bytes=_limits.vmem_limit(num_bytes),
    ),
    interpret=interpret,
    name="sdd_matmul",
  )(schedule, x, y, tiles)


def _grid_spec(num_tiles: int, k_len: int, block_shape: tuple[int, int], block_k: int, transpose_y: bool):
  bm, bn = block_shape

  def x_map(s, k, schedule):
    return _limits.unpack(schedule[s])[0], k

  def y_map(s, k, schedule):
    col = _limits.unpack(schedule[s])[1]
    return (col, k) if transpose_y else (k, col)

  def tile_map(s, k, schedule):
    del k
    return schedule[num_tiles + s] >> 1, 0, 0

  def o_map(s, k, schedule):
    del k, schedule
    return s, 0, 0

  return pltpu.PrefetchScalarGridSpec(
    num_scalar_prefetch=1,
    grid=(num_tiles, pl.cdiv(k_len, block_k)),
    in_specs=[
      pl.BlockSpec((bm, block_k), x_map),
      pl.BlockSpec((bn, block_k) if transpose_y else (block_k, bn), y_map),
      pl.BlockSpec((1, bm, bn), tile_map),
    ],
    out_specs=pl.BlockSpec((1, bm, bn), o_map),
    scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
  )


def make_schedule(rows: np.ndarray, cols: np.ndarray, partial_ids: np.ndarray) -> np.ndarray:
  """The prefetched list.

  Args:
    rows: [n] row of each active tile, in row-major order.
    cols: [n] its column.
    partial_ids: [n] its stored partial tile, -1 for a full one.

  Returns:
    [2 * n] int32: the packed (row, column) of each tile; then, for each, the stored tile of the next
    partial one, and in the lowest bit whether it is partial itself. A full tile asks for the tile that
    is needed next, so nothing is fetched twice.
  """
  n = rows.shape[0]
  places = _limits.pack(rows, cols)
  partial = np.flatnonzero(partial_ids >= 0)
  following = np.zeros(n, np.int32)
  if partial.size:
    after = np.minimum(np.searchsorted(partial, np.arange(n)), partial.size - 1)
    following = partial_ids[partial[after]].astype(np.int32)
  return np.concatenate([places, (following << 1) | (partial_ids >= 0)]).astype(np.int32)


def _body(schedule, x_ref, y_ref, tile_ref, o_ref, acc_ref, *, k_len, scale, fill, transpose_y):
  s, k = pl.program_id(0), pl.program_id(1)
  block_k = x_ref.shape[1]
  num_k = pl.cdiv(k_len, block_k)
  is_partial = (schedule[schedule.shape[0] // 2 + s] & 1) == 1
  left = k_len - k * block_k if k_len % block_k else None
  product = _matmul.product(x_ref[...], y_ref[...], left, transpose_y)
  acc_ref[...] = _matmul.accumulate(acc_ref[...], product, k == 0)

  @pl.when((k == num_k - 1) & ~is_partial)
  def _():
    o_ref[0] = (acc_ref[...] * scale).astype(o_ref.dtype)

  @pl.when((k == num_k - 1) & is_partial)
  def _():
    # int8 has no comparison on the older chips.
    allowed = tile_ref[0].astype(jnp.int32) != 0
    o_ref[0] = jnp.where(allowed, acc_ref[...] * scale, fill).astype(o_ref.dtype)
