"""Vector slice: the dynamic slice of a one-dimensional array, which TPUs lay out in rows of 128."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from blockattn._compat import InterpretMode, compiler_params
from blockattn._kernels import _limits
from blockattn._kernels._limits import LANES

# Blocks of a vector are whole vector registers of 8 * 128.
BLOCK_MULTIPLE = 1024


@functools.partial(jax.jit, static_argnames=("size", "block", "interpret"))
def vector_slice(
  x: jax.Array, start: jax.Array, *, size: int, block: int, interpret: InterpretMode
) -> jax.Array:
  """Copies x[start : start + size].

  Not as a matrix of one row: on its way to that shape, XLA copies all of x.

  Args:
    x: [L].
    start: [1] int32, such that the slice lies inside x.
    size: Of the slice.
    block: Elements per step, a multiple of 1024.
    interpret: Of `pl.pallas_call`.

  Returns:
    [size] in x.dtype.
  """
  num_blocks = pl.cdiv(x.shape[0], block)

  def x_map(step, start):
    return (jnp.minimum(_limits.div(start[0], block) + step, num_blocks - 1),)

  def o_map(step, start):
    del start
    return (jnp.maximum(step - 1, 0),)

  return pl.pallas_call(
    _body,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(pl.cdiv(size, block) + 1,),
      in_specs=[pl.BlockSpec((block,), x_map)],
      out_specs=pl.BlockSpec((block,), o_map),
      scratch_shapes=[pltpu.VMEM((2 * block // LANES, LANES), _limits.wide_dtype(x.dtype))],
    ),
    out_shape=jax.ShapeDtypeStruct((size,), x.dtype),
    compiler_params=compiler_params(interpret, dimension_semantics=("arbitrary",)),
    interpret=interpret,
    name="block_dynamic_slice",
  )(start, x)


def _body(start, x_ref, o_ref, buffer):
  step = pl.program_id(0)
  block = x_ref.shape[0]
  num_rows = block // LANES
  # Two blocks, of which the slice starts in the first.
  buffer[:num_rows] = buffer[num_rows:]
  buffer[num_rows:] = x_ref[...].astype(buffer.dtype).reshape(num_rows, LANES)

  @pl.when(step > 0)
  def _():
    offset = _limits.rem(start[0], block)
    row, width_left = _limits.div(offset, LANES), LANES - _limits.rem(offset, LANES)
    # A roll goes to higher lanes, and its shift is in [0, 128).
    shift = _limits.rem(width_left, LANES)
    left = pltpu.roll(buffer[pl.ds(row, num_rows)], shift, axis=1)
    right = pltpu.roll(buffer[pl.ds(row + 1, num_rows)], shift, axis=1)
    lane = lax.broadcasted_iota(jnp.int32, (num_rows, LANES), 1)
    o_ref[...] = jnp.where(lane < width_left, left, right).reshape(block).astype(o_ref.dtype)
