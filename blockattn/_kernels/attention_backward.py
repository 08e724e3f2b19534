"""Backward attention over the active tiles: dq in row order, dk and dv in column order.

Both kernels recompute P from the scores and lse. With delta = sum(dout * out) - dlse, dS = P * (dP - delta),
dP = dout V^T. Accumulators are transposed, [D, tokens], so that P and dS are the stationary operands.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from blockattn import _compat
from blockattn._kernels import attention_tiles as tiles
from blockattn._kernels.attention_tiles import LOG2_E, KernelConfig, TileInputs
from blockattn._kernels.packed_steps import PackedSteps
from masks import TileKind


def attention_dq(inputs: TileInputs, steps: PackedSteps, config: KernelConfig):
  """Gradient of q, [B, N, T, D] in q.dtype, from the active tiles in row order."""
  batch, heads, q_len, head_dim = inputs.q.shape
  head_of = _query_head_of
  index = tiles.index_maps(config, head_of)
  kernel = pl.pallas_call(
    functools.partial(_dq_kernel, config=config),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(*config.layout.grid(batch, heads), steps.num_steps),
      in_specs=(tiles.input_specs(inputs, config, head_of),),
      out_specs=pl.BlockSpec((None, None, config.tiling.block_q, head_dim), index.queries),
      scratch_shapes=(pltpu.VMEM((head_dim, config.tiling.block_q), jnp.float32),),
    ),
    out_shape=jax.ShapeDtypeStruct((batch, heads, q_len, head_dim), inputs.q.dtype),
    compiler_params=_params(config, num_axes=3),
    interpret=config.interpret,
    name="attention_dq",
  )
  return kernel((steps.words, steps.tile_ids), inputs)


def attention_dkv(inputs: TileInputs, steps: PackedSteps, config: KernelConfig):
  """Gradients of k and v from the active tiles in column order.

  The query heads of a key/value head are the innermost grid axis, so that they add up in the accumulator.
  Where the mask distinguishes heads, each has a schedule of its own and adds up outside.

  Args:
    inputs: The operands.
    steps: Active tiles in column order.
    config: Static choices.

  Returns:
    dk [B, K or N, S, D] and dv [B, K or N, S, Dv] in the dtype of k, or float32 for N heads.
  """
  batch, heads, kv_len = inputs.q.shape[0], inputs.q.shape[1], inputs.k.shape[2]
  per_head = config.layout.lead[1] > 1
  group = 1 if per_head else config.group
  dims = (inputs.k.shape[3], inputs.v.shape[3])

  def head_of(grid, fields):
    return grid[0] + fields.batch, grid[1] * group + grid[3] + fields.head

  def keys(*args):
    fields, example, head = tiles.locate(config, head_of, *args)
    return example, jax.lax.div(head, group), fields.kv_tile, 0

  block_kv = config.tiling.block_kv
  dtype = jnp.float32 if per_head else inputs.k.dtype
  kernel = pl.pallas_call(
    functools.partial(_dkv_kernel, config=config, group=group),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(*config.layout.grid(batch, heads // group), steps.num_steps, group),
      in_specs=(tiles.input_specs(inputs, config, head_of),),
      out_specs=tuple(pl.BlockSpec((None, None, block_kv, d), keys) for d in dims),
      scratch_shapes=tuple(pltpu.VMEM((d, block_kv), jnp.float32) for d in dims),
    ),
    out_shape=tuple(jax.ShapeDtypeStruct((batch, heads // group, kv_len, d), dtype) for d in dims),
    compiler_params=_params(config, num_axes=4),
    interpret=config.interpret,
    name="attention_dkv",
  )
  return kernel((steps.words, steps.tile_ids), inputs)


def _query_head_of(grid, fields):
  return grid[0] + fields.batch, grid[1] + fields.head


def _params(config: KernelConfig, num_axes: int):
  """The first two axes are examples and heads, which do not depend on each other."""
  semantics = ("parallel", "parallel", "arbitrary", "arbitrary")[:num_axes]
  return _compat.compiler_params(config.interpret, semantics, vmem_limit_bytes=config.tiling.vmem_limit_bytes)


def _dq_kernel(prefetched, inputs: TileInputs, dq_ref, acc, *, config: KernelConfig):
  fields = config.layout.unpack(prefetched[0][pl.program_id(2)])

  @pl.when(fields.is_first != 0)
  def _start():
    acc[...] = jnp.zeros_like(acc)

  def accumulate(mask, num_keys):
    for (q_start, kv_start), _, ds in _weights_and_gradients(inputs, config, mask):
      keys = tiles.rows(inputs.k, kv_start, config.tiling.sub_kv, num_keys)
      acc[:, pl.ds(q_start, config.tiling.sub_q)] += tiles.dot(keys, ds.astype(keys.dtype), (0, 0))

  _for_each_kind(inputs, config, fields, lambda mask, valid: accumulate(mask, valid[1]))

  @pl.when(fields.is_last != 0)
  def _finish():
    dq_ref[...] = (acc[...] * config.options.scale).T.astype(dq_ref.dtype)


def _dkv_kernel(
  prefetched, inputs: TileInputs, dk_ref, dv_ref, dk_acc, dv_acc, *, config: KernelConfig, group: int
):
  fields = config.layout.unpack(prefetched[0][pl.program_id(2)])
  head = pl.program_id(3)

  @pl.when((fields.is_first != 0) & (head == 0))
  def _start():
    dk_acc[...] = jnp.zeros_like(dk_acc)
    dv_acc[...] = jnp.zeros_like(dv_acc)

  def accumulate(mask, num_queries):
    for (q_start, kv_start), p, ds in _weights_and_gradients(inputs, config, mask):
      keys = pl.ds(kv_start, config.tiling.sub_kv)
      dout, q = (tiles.rows(x, q_start, config.tiling.sub_q, num_queries) for x in (inputs.dout, inputs.q))
      dv_acc[:, keys] += tiles.dot(dout, p.astype(dout.dtype), (0, 1))
      dk_acc[:, keys] += tiles.dot(q, ds.astype(q.dtype), (0, 1))

  _for_each_kind(inputs, config, fields, lambda mask, valid: accumulate(mask, valid[0]))

  @pl.when((fields.is_last != 0) & (head == group - 1))
  def _finish():
    dk_ref[...] = (dk_acc[...] * config.options.scale).T.astype(dk_ref.dtype)
    dv_ref[...] = dv_acc[...].T.astype(dv_ref.dtype)


def _for_each_kind(inputs: TileInputs, config: KernelConfig, fields, accumulate):
  """A body without mask code for FULL tiles and one with it for PARTIAL ones."""

  @pl.when(fields.kind == TileKind.FULL)
  def _full():
    accumulate(None, (None, None))

  @pl.when(fields.kind == TileKind.PARTIAL)
  def _partial():
    if config.test is None:
      mask = functools.partial(tiles.stored_mask, inputs.tiles)
    else:
      mask = functools.partial(tiles.computed_mask, inputs, config, fields)
    accumulate(mask, tiles.num_valid(config, fields))


def _weights_and_gradients(inputs: TileInputs, config: KernelConfig, mask):
  """Yields ((q_start, kv_start), P, dS) for each sub-tile, [sub_kv, sub_q] float32."""
  tiling, cap = config.tiling, config.options.logits_soft_cap

  def rect(at):
    return tiles.Rect(at[0], tiling.sub_q, at[1], tiling.sub_kv)

  def matmuls(at):
    dp = tiles.dot(inputs.v[rect(at).keys, :], inputs.dout[rect(at).queries, :], (1, 1))
    return tiles.scores(inputs, config, rect(at)), dp

  for at, (scores, dp) in tiles.in_flight(matmuls, config.sub_tiles, tiling.lookahead):
    queries = rect(at).queries
    lse, delta = inputs.lse[:, queries], inputs.delta[:, queries]
    # A row without allowed key has lse -inf; +inf in its place makes every weight 0.
    lse = jnp.where(lse == -jnp.inf, jnp.inf, lse * LOG2_E)
    p = jnp.exp2(scores * config.exponent_unit - lse)
    ds = p * (dp - delta)
    if cap is not None:  # scores are tanh(x / cap), and the derivative of cap * tanh(x / cap) is 1 - tanh**2
      ds = ds * (1 - jnp.square(scores))
    if mask is not None:
      allowed = mask(rect(at))
      p, ds = jnp.where(allowed, p, 0), jnp.where(allowed, ds, 0)
    yield at, p, ds
