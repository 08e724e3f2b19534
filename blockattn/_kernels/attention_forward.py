"""Forward attention over the schedule of active tiles: QK^T, online softmax and PV in one kernel.

One grid step per active tile, output tiles in order. A tile is worked in sub-tiles, the score matmul of the
next ones issued before the softmax of the current one, so that the matrix unit runs under the exponentials.
"""

from __future__ import annotations

import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from blockattn import _compat
from blockattn._kernels import attention_tiles as tiles
from blockattn._kernels.attention_tiles import KernelConfig, TileInputs
from blockattn._kernels.packed_steps import PackedSteps
from masks import TileKind


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Scratch:
  m: typing.Any  # [1, block_q] float32, running maximum of the scores
  l: typing.Any  # [1, block_q] float32, running sum of exp(logit - maximal logit)
  acc: typing.Any  # [Dv, block_q] float32


def attention_forward(inputs: TileInputs, steps: PackedSteps, config: KernelConfig):
  """Attends over the active tiles.

  Args:
    inputs: The operands.
    steps: Active tiles in row order.
    config: Static choices.

  Returns:
    Output [B, N, T, Dv] in q.dtype and lse [B, N, 1, T] float32 (natural log); 0 and -inf for a row without
    allowed key.
  """
  batch, heads, q_len, _ = inputs.q.shape
  block_q, value_dim = config.tiling.block_q, inputs.v.shape[-1]
  index = tiles.index_maps(config, _head_of)
  kernel = pl.pallas_call(
    functools.partial(_kernel, config=config),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(*config.layout.grid(batch, heads), steps.num_steps),
      in_specs=(tiles.input_specs(inputs, config, _head_of),),
      out_specs=(
        pl.BlockSpec((None, None, block_q, value_dim), index.queries),
        pl.BlockSpec((None, None, 1, block_q), index.query_row),
      ),
      scratch_shapes=(  # pyright: ignore[reportArgumentType] (any pytree will do)
        _Scratch(
          m=pltpu.VMEM((1, block_q), jnp.float32),
          l=pltpu.VMEM((1, block_q), jnp.float32),
          acc=pltpu.VMEM((value_dim, block_q), jnp.float32),
        ),
      ),
    ),
    out_shape=(
      jax.ShapeDtypeStruct((batch, heads, q_len, value_dim), inputs.q.dtype),
      jax.ShapeDtypeStruct((batch, heads, 1, q_len), jnp.float32),
    ),
    compiler_params=_compat.compiler_params(
      config.interpret,
      ("parallel", "parallel", "arbitrary"),
      vmem_limit_bytes=config.tiling.vmem_limit_bytes,
    ),
    interpret=config.interpret,
    name="attention_forward",
  )
  return kernel((steps.words, steps.tile_ids), inputs)


def _head_of(grid, fields):
  return grid[0] + fields.batch, grid[1] + fields.head


def _kernel(prefetched, inputs: TileInputs, out_ref, lse_ref, scratch, *, config: KernelConfig):
  fields = config.layout.unpack(prefetched[0][pl.program_id(2)])
  head = pl.program_id(1) + fields.head

  @pl.when(fields.is_first != 0)
  def _start():
    if inputs.sinks is None:
      scratch.m[...] = jnp.full_like(scratch.m, -jnp.inf)
      scratch.l[...] = jnp.zeros_like(scratch.l)
    else:  # a sink is a key with this logit and value 0
      scratch.m[...] = jnp.full_like(scratch.m, inputs.sinks[head, 0] / config.options.score_unit)
      scratch.l[...] = jnp.ones_like(scratch.l)
    scratch.acc[...] = jnp.zeros_like(scratch.acc)

  @pl.when(fields.kind == TileKind.FULL)
  def _full():
    _accumulate(inputs, scratch, config, mask=None, num_keys=None)

  @pl.when(fields.kind == TileKind.PARTIAL)
  def _partial():
    mask = functools.partial(tiles.sub_tile_mask, inputs, config, fields)
    _accumulate(inputs, scratch, config, mask, num_keys=tiles.num_valid(config, fields)[1])

  @pl.when(fields.is_last != 0)
  def _finish():
    m, l = scratch.m[...], scratch.l[...]
    alive = l > 0
    out = scratch.acc[...] * jnp.where(alive, 1 / jnp.where(alive, l, 1), 0)
    out_ref[...] = out.T.astype(out_ref.dtype)
    lse_ref[...] = jnp.where(alive, m * config.options.score_unit + jnp.log(jnp.where(alive, l, 1)), -jnp.inf)


def _accumulate(inputs: TileInputs, scratch: _Scratch, config: KernelConfig, mask, num_keys):
  """Adds one tile to the running softmax; `mask(q_start, kv_start)` gives a sub-tile's mask."""
  tiling = config.tiling
  ahead = tiles.in_flight(lambda at: tiles.scores(inputs, config, *at), config.sub_tiles, tiling.lookahead)
  for (q_start, kv_start), scores in ahead:
    queries = pl.ds(q_start, tiling.sub_q)
    m = scratch.m[:, queries]
    if mask is not None:
      scores = jnp.where(mask(q_start, kv_start), scores, -jnp.inf)
    new_m = jnp.maximum(m, scores.max(axis=0, keepdims=True))
    # A row without allowed key so far has maximum -inf: subtract 0 instead, and get zeros.
    shift = new_m if mask is None else jnp.where(new_m == -jnp.inf, 0, new_m)
    p = jnp.exp2((scores - shift) * config.exponent_unit)
    decay = jnp.exp2((m - shift) * config.exponent_unit)
    scratch.m[:, queries] = new_m
    scratch.l[:, queries] = decay * scratch.l[:, queries] + p.sum(axis=0, keepdims=True)
    values = tiles.rows(inputs.v, kv_start, tiling.sub_kv, num_keys)
    pv = tiles.dot(values, p.astype(values.dtype), (0, 0))
    scratch.acc[:, queries] = decay * scratch.acc[:, queries] + pv
