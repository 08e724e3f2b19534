"""Dynamic slice: copies a window of an array that starts anywhere, from prefetched starts."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from blockattn._compat import InterpretMode, compiler_params
from blockattn._kernels import _limits
from blockattn._kernels._limits import LANES

# A slice that does not start at a block lies across two blocks in each of the last two dimensions.
# The kernel walks along the columns and keeps the blocks of the step before in VMEM, so that an
# output block costs two fetched blocks and not four. Leading dimensions need no alignment: they are
# fetched one index at a time.


@dataclasses.dataclass(frozen=True)
class _Axis:
  """How one of the last two dimensions is cut.

  Attributes:
    length: Of the array.
    size: Of the slice.
    block: Of what a step fetches.
  """

  length: int
  size: int
  block: int

  @property
  def is_split(self) -> bool:
    """Whether the array has more than one block, so that a slice may lie across two."""
    return self.length > self.block

  @property
  def out_block(self) -> int:
    """What a step writes: a block, or the whole slice where that is smaller."""
    return min(self.size, self.block)

  @property
  def num_out(self) -> int:
    """How many blocks the slice has."""
    return pl.cdiv(self.size, self.block)

  def source(self, start, step):
    """The block to fetch: the `step`-th from the start on, or the last if that is beyond the end."""
    return jnp.minimum(_limits.div(start, self.block) + step, pl.cdiv(self.length, self.block) - 1)


@functools.partial(jax.jit, static_argnames=("sizes", "block_shape", "interpret"))
def dynamic_slice(
  x: jax.Array,
  starts: jax.Array,
  *,
  sizes: tuple[int, ...],
  block_shape: tuple[int, int],
  interpret: InterpretMode,
) -> jax.Array:
  """Copies x[starts[0] : starts[0] + sizes[0], ...].

  Args:
    x: [..., H, W], two or more dimensions.
    starts: [x.ndim] int32, such that the slice lies inside x.
    sizes: Of the slice, one per dimension.
    block_shape: Of the blocks of the last two dimensions, not larger than x; multiples of (8, 128),
      or whole.
    interpret: Of `pl.pallas_call`.

  Returns:
    An array of shape `sizes` and x.dtype.
  """
  lead = x.ndim - 2
  rows, cols = map(_Axis, x.shape[-2:], sizes[-2:], block_shape)

  def x_map(*args, below):
    *index, i, j, starts = args
    front = [starts[axis] + index[axis] for axis in range(lead)]
    return *front, rows.source(starts[lead], i + below), cols.source(starts[lead + 1], j)

  def o_map(*args):
    *index, i, j, _ = args
    return *index, i, jnp.maximum(j - 1, 0) if cols.is_split else j

  block = (*(None,) * lead, rows.block, cols.block)
  in_specs = [
    pl.BlockSpec(block, functools.partial(x_map, below=below)) for below in range(1 + rows.is_split)
  ]
  buffer = buffer_shape(rows, cols)
  return pl.pallas_call(
    functools.partial(_body, rows=rows, cols=cols),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(*sizes[:-2], rows.num_out, cols.num_out + cols.is_split),
      in_specs=in_specs,
      out_specs=pl.BlockSpec((*(None,) * lead, rows.out_block, cols.out_block), o_map),
      scratch_shapes=[pltpu.VMEM(buffer, _limits.wide_dtype(x.dtype))],
    ),
    out_shape=jax.ShapeDtypeStruct(sizes, x.dtype),
    compiler_params=compiler_params(
      interpret,
      dimension_semantics=("parallel",) * (lead + 1) + ("arbitrary",),
      vmem_limit_bytes=_limits.vmem_limit(4 * 4 * math.prod(buffer)),
    ),
    interpret=interpret,
    name="block_dynamic_slice",
  )(starts, *[x] * len(in_specs))


def buffer_shape(rows: _Axis, cols: _Axis) -> tuple[int, int, int]:
  """Strips of 128 columns, as many as two blocks have if the columns are split: (strips, rows, 128).

  A strip is one vector register wide, which lets the kernel read it from any row on, and choose
  strips by a dynamic index.
  """
  num_rows = (1 + rows.is_split) * rows.block
  num_strips = (1 + cols.is_split) * pl.cdiv(cols.block, LANES)
  return num_strips, _limits.round_up(num_rows, _limits.SUBLANES), LANES


def _body(starts, *refs, rows: _Axis, cols: _Axis):
  *x_refs, o_ref, buffer = refs
  lead = starts.shape[0] - 2
  j = pl.program_id(lead + 1)
  num_strips = pl.cdiv(cols.block, LANES)
  # With split columns the buffer is a ring of two blocks: this step's and, before it, the last
  # one's.
  here = _limits.rem(j, 2) * num_strips if cols.is_split else 0
  for below, x_ref in enumerate(x_refs):
    top = below * rows.block
    for strip in range(num_strips):
      left, right = strip * LANES, min((strip + 1) * LANES, cols.block)
      part = x_ref[:, left:right].astype(buffer.dtype)
      buffer[here + strip, top : top + rows.block, : right - left] = part

  @pl.when(j > 0 if cols.is_split else True)
  def _():
    _write(starts[lead], starts[lead + 1], o_ref, buffer, num_strips - here, rows, cols)


def _write(row_start, col_start, o_ref, buffer, first_strip, rows: _Axis, cols: _Axis):
  """Writes the window of two blocks, of which the left one is at `first_strip` of the ring."""
  row = _limits.rem(row_start, rows.block)
  offset = _limits.rem(col_start, cols.block)
  # The output strip is the end of one strip and the start of the next. A roll goes to higher lanes,
  # and its shift is in [0, 128).
  first, width_left = _limits.div(offset, LANES), LANES - _limits.rem(offset, LANES)
  shift = _limits.rem(width_left, LANES)

  def rolled(strip):
    strip = first + strip
    if cols.is_split:
      strip = _limits.rem(first_strip + strip, buffer.shape[0])
    else:
      strip = jnp.minimum(strip, buffer.shape[0] - 1)
    return pltpu.roll(buffer[strip, pl.ds(row, rows.out_block)], shift, axis=1)

  is_left = lax.broadcasted_iota(jnp.int32, (rows.out_block, LANES), 1) < width_left
  left = rolled(0)
  for start in range(0, cols.out_block, LANES):
    right = rolled(start // LANES + 1)
    width = min(LANES, cols.out_block - start)
    part = jnp.where(is_left, left, right)[:, :width]
    o_ref[:, start : start + width] = part.astype(o_ref.dtype)
    left = right
