"""DSD matmul: dense = block-sparse @ dense, over a dynamic grid of live blocks."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from blockattn._compat import InterpretMode, compiler_params
from blockattn._kernels import _limits, _matmul
from blockattn.block_coo import BlockCOO

# `schedule`, the one prefetched list, holds the number of live blocks, the packed (row, column) of
# each slot, and the rows without block. Steps 0 to live - 1 multiply the slots in their order, so
# that the steps of one output block follow each other; the steps after them write zeros, one for
# each empty row, and fetch nothing.
_SLOTS = 1


@functools.partial(jax.jit, static_argnames=("m_len", "block_n", "out_dtype", "interpret"))
def dsd(
  blocks: jax.Array,
  b: jax.Array,
  schedule: jax.Array,
  num_steps: jax.Array,
  *,
  m_len: int,
  block_n: int,
  out_dtype: Any,
  interpret: InterpretMode,
) -> jax.Array:
  """Multiplies a block-sparse matrix by a dense one.

  Args:
    blocks: [n, bm, bk], n >= 1.
    b: [K, N].
    schedule: [1 + n + rows] int32 of `make_schedule`.
    num_steps: int32 scalar of `make_schedule`.
    m_len: M.
    block_n: Columns of `b` per step.
    out_dtype: Of the result.
    interpret: Of `pl.pallas_call`.

  Returns:
    [M, N] in out_dtype.
  """
  k_len, n_len = b.shape
  num_bytes = vmem_bytes(blocks.shape[1:], block_n, k_len, (blocks.dtype, b.dtype, out_dtype))
  return pl.pallas_call(
    functools.partial(_body, k_len=k_len),
    grid_spec=_grid_spec((pl.cdiv(n_len, block_n), num_steps), blocks.shape, block_n),
    out_shape=jax.ShapeDtypeStruct((m_len, n_len), out_dtype),
    compiler_params=compiler_params(
      interpret,
      dimension_semantics=("parallel", "arbitrary"),
      vmem_limit_bytes=_limits.vmem_limit(num_bytes),
    ),
    interpret=interpret,
    name="dsd_matmul",
  )(schedule, blocks, b)


def _grid_spec(grid: tuple[Any, ...], blocks_shape: tuple[int, ...], block_n: int):
  capacity, bm, bk = blocks_shape

  def slot(schedule, step):
    return jnp.maximum(jnp.minimum(step, schedule[0] - 1), 0)

  def a_map(j, step, schedule):
    del j
    return slot(schedule, step), 0, 0

  def b_map(j, step, schedule):
    return _col(schedule, slot(schedule, step)), j

  def o_map(j, step, schedule):
    live = schedule[0]
    empty = schedule[_SLOTS + capacity + jnp.maximum(step - live, 0)]
    return jnp.where(step < live, _row(schedule, slot(schedule, step)), empty), j

  return pltpu.PrefetchScalarGridSpec(
    num_scalar_prefetch=1,
    grid=grid,
    in_specs=[pl.BlockSpec((1, bm, bk), a_map), pl.BlockSpec((bk, block_n), b_map)],
    out_specs=pl.BlockSpec((bm, block_n), o_map),
    scratch_shapes=[pltpu.VMEM((bm, block_n), jnp.float32)],
  )


def choose_block_n(block_shape: tuple[int, int], k_len: int, n_len: int, dtypes: tuple[Any, Any, Any]) -> int:
  """The widest block of columns that fits into VMEM.

  Width is what counts: each block of `a` is read once per block of columns, and a step multiplies
  bm * bk * block_n but reads only bk * (bm + block_n).

  Args:
    block_shape: (bm, bk) of `a`.
    k_len: Rows of `b`.
    n_len: Columns of `b`.
    dtypes: Of a, b and the result.

  Returns:
    A multiple of 128, or `n_len`.
  """
  if n_len <= _limits.LANES:
    return n_len
  block_n = _limits.LANES
  while block_n < n_len and vmem_bytes(block_shape, 2 * block_n, k_len, dtypes) <= _limits.VMEM_BYTES:
    block_n *= 2
  # As many blocks as before, but of one size: 1100 columns are 3 * 384, not 2 * 512 + 76.
  num_blocks = pl.cdiv(n_len, block_n)
  return _limits.round_up(pl.cdiv(n_len, num_blocks), _limits.LANES)


def vmem_bytes(block_shape: tuple[int, ...], block_n: int, k_len: int, dtypes: tuple[Any, Any, Any]) -> int:
  """VMEM that the kernel takes with blocks (bm, bk) of `a` and (bk, block_n) of `b`, in bytes."""
  bm, bk = block_shape
  a_size, b_size, o_size = (jnp.dtype(dtype).itemsize for dtype in dtypes)
  copy = b_size * bk * block_n if k_len % bk else 0  # the end of `b` is cut off
  blocks = 2 * (a_size * bm * bk + b_size * bk * block_n + o_size * bm * block_n)
  # A float32 product takes three bfloat16 parts of each operand.
  parts = 6 * (bm * bk + bk * block_n) if max(a_size, b_size) == 4 else 0
  return blocks + copy + parts + 4 * bm * block_n


@jax.jit
def make_schedule(a: BlockCOO) -> tuple[jax.Array, jax.Array]:
  """The prefetched list, int32 [1 + n + rows], and the number of steps, int32 scalar."""
  num_rows = a.grid_shape[0]
  live = jnp.asarray(a.num_blocks, jnp.int32)
  dead = jnp.arange(a.capacity) >= live
  used = jnp.zeros(num_rows, bool).at[jnp.where(dead, num_rows, a.rows)].set(True, mode="drop")
  (empty_rows,) = jnp.nonzero(~used, size=num_rows, fill_value=0)
  # Without any live slot the first one is fetched all the same, so dead places must be in range.
  places = jnp.where(dead, 0, _limits.pack(a.rows, a.cols))
  schedule = [live[None], places, empty_rows.astype(jnp.int32)]
  return jnp.concatenate(schedule), live + (~used).sum(dtype=jnp.int32)


def _row(schedule, slot):
  return _limits.unpack(schedule[_SLOTS + slot])[0]


def _col(schedule, slot):
  return _limits.unpack(schedule[_SLOTS + slot])[1]


def _body(schedule, a_ref, b_ref, o_ref, acc_ref, *, k_len):
  step, live = pl.program_id(1), schedule[0]
  is_live = step < live
  slot = jnp.maximum(jnp.minimum(step, live - 1), 0)
  row = _row(schedule, slot)
  is_first = (slot == 0) | (row != _row(schedule, jnp.maximum(slot - 1, 0)))
  is_last = (step == live - 1) | (row != _row(schedule, jnp.minimum(slot + 1, live - 1)))

  @pl.when(is_live)
  def _():
    bk = b_ref.shape[0]
    left = k_len - _col(schedule, slot) * bk if k_len % bk else None
    b = b_ref[...] if left is None else _matmul.cut(b_ref[...], 0, left)
    product = _matmul.product(a_ref[0], b, None)
    acc_ref[...] = _matmul.accumulate(acc_ref[...], product, is_first)

  @pl.when(is_live & is_last)
  def _():
    o_ref[...] = acc_ref[...].astype(o_ref.dtype)

  @pl.when(~is_live)
  def _():
    o_ref[...] = jnp.zeros_like(o_ref)
