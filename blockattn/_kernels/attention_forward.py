"""Forward attention over the schedule of active tiles: QK^T, online softmax and PV in one kernel.

One grid step per active tile, output tiles in order. Scores are held transposed, [keys, queries]: the softmax
then reduces along sublanes, row statistics are single rows of lanes, and P is the stationary operand of PV,
whose accumulator is [Dv, queries]. A tile is worked in sub-tiles, the score matmul of the next ones issued
before the softmax of the current one, so that the matrix unit runs under the exponentials.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from blockattn import _compat
from blockattn._block_sizes import KernelTiling
from blockattn._kernels.packed_steps import PackedSteps, StepLayout
from masks import TileKind

LOG2_E = math.log2(math.e)


@dataclasses.dataclass(frozen=True)
class ForwardConfig:
  """What is static in a forward call.

  Attributes:
    tiling: Sizes of tiles and sub-tiles.
    scale: Multiplies the scores.
    logits_soft_cap: c in c * tanh(score / c), or None.
    test: `masks` test of PARTIAL tiles, or None when they are stored.
    layout: How the steps are packed.
    interpret: See `blockattn._compat`.
  """

  tiling: KernelTiling
  scale: float
  logits_soft_cap: float | None
  test: typing.Any
  layout: StepLayout
  interpret: typing.Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ForwardInputs:
  """Operands of the kernel; None where a call has no such operand.

  Attributes:
    q: [B, N, T, D].
    k: [B, K, S, D].
    v: [B, K, S, Dv].
    sinks: [N, 1] float32, in SMEM.
    q_tokens: [B or 1, N or 1, numbers, T] int32.
    kv_tokens: [B or 1, N or 1, S, numbers] int32.
    tiles: [n, block_kv, block_q] int8, stored partial tiles, transposed.
  """

  q: typing.Any
  k: typing.Any
  v: typing.Any
  sinks: typing.Any = None
  q_tokens: typing.Any = None
  kv_tokens: typing.Any = None
  tiles: typing.Any = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Scratch:
  m: typing.Any  # [1, block_q] float32, running maximum of the base-2 logits
  l: typing.Any  # [1, block_q] float32, running sum of 2**(logit - m)
  acc: typing.Any  # [Dv, block_q] float32


def attention_forward(inputs: ForwardInputs, steps: PackedSteps, config: ForwardConfig):
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
  value_dim = inputs.v.shape[-1]
  in_specs = _input_specs(inputs, config)
  row = functools.partial(_row_index, config.layout)
  out_specs = (
    pl.BlockSpec((None, None, config.tiling.block_q, value_dim), row),
    pl.BlockSpec((None, None, 1, config.tiling.block_q), functools.partial(_lse_index, config.layout)),
  )
  scratch = _Scratch(
    m=pltpu.VMEM((1, config.tiling.block_q), jnp.float32),
    l=pltpu.VMEM((1, config.tiling.block_q), jnp.float32),
    acc=pltpu.VMEM((value_dim, config.tiling.block_q), jnp.float32),
  )
  kernel = pl.pallas_call(
    functools.partial(_kernel, config=config, kv_len=inputs.k.shape[2]),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(*config.layout.grid(batch, heads), steps.num_steps),
      in_specs=(in_specs,),
      out_specs=out_specs,
      scratch_shapes=(scratch,),
    ),
    out_shape=(
      jax.ShapeDtypeStruct((batch, heads, q_len, value_dim), inputs.q.dtype),
      jax.ShapeDtypeStruct((batch, heads, 1, q_len), jnp.float32),
    ),
    compiler_params=_compat.CompilerParams(
      dimension_semantics=("parallel", "parallel", "arbitrary"),
      vmem_limit_bytes=config.tiling.vmem_limit_bytes,
    ),
    interpret=config.interpret,
    name="attention_forward",
  )
  return kernel((steps.words, steps.tile_ids), inputs)


def _row_index(layout: StepLayout, b, h, step, refs):
  """(batch, head, row of tiles, 0) of a step."""
  fields = layout.unpack(refs[0][step])
  return b + fields.batch, h + fields.head, fields.outer, 0


def _lse_index(layout: StepLayout, b, h, step, refs):
  batch, head, row, _ = _row_index(layout, b, h, step, refs)
  return batch, head, 0, row


def _input_specs(inputs: ForwardInputs, config: ForwardConfig) -> ForwardInputs:
  layout = config.layout
  group = inputs.q.shape[1] // inputs.k.shape[1]
  kv_dims = {name: getattr(inputs, name).shape[-1] for name in ("k", "v")}

  def key_tile(b, h, step, refs):
    fields = layout.unpack(refs[0][step])
    return b + fields.batch, lax.div(h + fields.head, group), fields.inner, 0

  def token_lead(array, b, h, fields):
    return tuple(
      x + f if n > 1 else 0
      for x, f, n in zip((b, h), (fields.batch, fields.head), array.shape[:2], strict=True)
    )

  def q_token_tile(b, h, step, refs):
    fields = layout.unpack(refs[0][step])
    return *token_lead(inputs.q_tokens, b, h, fields), 0, fields.outer

  def kv_token_tile(b, h, step, refs):
    fields = layout.unpack(refs[0][step])
    return *token_lead(inputs.kv_tokens, b, h, fields), fields.inner, 0

  def spec(array, block, index):
    return None if array is None else pl.BlockSpec(block, index)

  def numbers(array, axis):
    return None if array is None else array.shape[axis]

  return ForwardInputs(
    q=pl.BlockSpec((None, None, config.tiling.block_q, kv_dims["k"]), functools.partial(_row_index, layout)),
    k=pl.BlockSpec((None, None, config.tiling.block_kv, kv_dims["k"]), key_tile),
    v=pl.BlockSpec((None, None, config.tiling.block_kv, kv_dims["v"]), key_tile),
    sinks=None if inputs.sinks is None else pl.BlockSpec(memory_space=pltpu.SMEM),
    q_tokens=spec(inputs.q_tokens, (None, None, numbers(inputs.q_tokens, 2), config.tiling.block_q), q_token_tile),
    kv_tokens=spec(inputs.kv_tokens, (None, None, config.tiling.block_kv, numbers(inputs.kv_tokens, 3)), kv_token_tile),
    tiles=spec(
      inputs.tiles,
      (None, config.tiling.block_kv, config.tiling.block_q),
      lambda b, h, step, refs: (refs[1][step], 0, 0),
    ),
  )


def _kernel(prefetched, inputs, out_ref, lse_ref, scratch, *, config: ForwardConfig, kv_len: int):
  fields = config.layout.unpack(prefetched[0][pl.program_id(2)])
  head = pl.program_id(1) + fields.head

  @pl.when(fields.is_first != 0)
  def _start():
    if inputs.sinks is None:
      scratch.m[...] = jnp.full_like(scratch.m, -jnp.inf)
      scratch.l[...] = jnp.zeros_like(scratch.l)
    else:  # a sink is a key with this logit and value 0
      scratch.m[...] = jnp.full_like(scratch.m, inputs.sinks[head, 0] * LOG2_E)
      scratch.l[...] = jnp.ones_like(scratch.l)
    scratch.acc[...] = jnp.zeros_like(scratch.acc)

  @pl.when(fields.kind == TileKind.FULL)
  def _full():
    _accumulate(inputs, scratch, config, mask=None, num_keys=None)

  @pl.when(fields.kind == TileKind.PARTIAL)
  def _partial():
    mask = functools.partial(_sub_tile_mask, inputs, config, fields, kv_len)
    ragged = kv_len % config.tiling.block_kv != 0
    num_keys = kv_len - fields.inner * config.tiling.block_kv if ragged else None
    _accumulate(inputs, scratch, config, mask, num_keys)

  @pl.when(fields.is_last != 0)
  def _finish():
    m, l = scratch.m[...], scratch.l[...]
    alive = l > 0
    out = scratch.acc[...] * jnp.where(alive, 1 / jnp.where(alive, l, 1), 0)
    out_ref[...] = out.T.astype(out_ref.dtype)
    lse_ref[...] = jnp.where(alive, m / LOG2_E + jnp.log(jnp.where(alive, l, 1)), -jnp.inf)


def _accumulate(inputs, scratch, config: ForwardConfig, mask, num_keys):
  """Adds one tile to the running softmax; `mask(q_start, kv_start)` gives a sub-tile's mask."""
  value_rows = functools.partial(_values, inputs.v, config.tiling.sub_kv, num_keys)
  sub_tiles = [
    (q_start, kv_start)
    for q_start in range(0, config.tiling.block_q, config.tiling.sub_q)
    for kv_start in range(0, config.tiling.block_kv, config.tiling.sub_kv)
  ]
  pending = []
  for at in range(len(sub_tiles) + config.tiling.lookahead):
    if at < len(sub_tiles):
      pending.append(_logits(inputs, config, *sub_tiles[at]))
    if at < config.tiling.lookahead:
      continue
    q_start, kv_start = sub_tiles[at - config.tiling.lookahead]
    queries = pl.ds(q_start, config.tiling.sub_q)
    logits, m = pending.pop(0), scratch.m[:, queries]
    if mask is not None:
      logits = jnp.where(mask(q_start, kv_start), logits, -jnp.inf)
    new_m = jnp.maximum(m, logits.max(axis=0, keepdims=True))
    # A row without allowed key so far has maximum -inf: subtract 0 instead, and get zeros.
    shift = new_m if mask is None else jnp.where(new_m == -jnp.inf, 0, new_m)
    p = jnp.exp2(logits - shift)
    decay = jnp.exp2(m - shift)
    scratch.m[:, queries] = new_m
    scratch.l[:, queries] = decay * scratch.l[:, queries] + p.sum(axis=0, keepdims=True)
    pv = _dot(value_rows(kv_start), p.astype(inputs.v.dtype), (0, 0))
    scratch.acc[:, queries] = decay * scratch.acc[:, queries] + pv


def _logits(inputs, config: ForwardConfig, q_start: int, kv_start: int):
  """Base-2 logits [sub_kv, sub_q] float32. The scale is applied in float32: it would round q twice."""
  q = inputs.q[pl.ds(q_start, config.tiling.sub_q), :]
  k = inputs.k[pl.ds(kv_start, config.tiling.sub_kv), :]
  scores = _dot(k, q, (1, 1))
  if config.logits_soft_cap is None:
    return scores * (config.scale * LOG2_E)
  cap = config.logits_soft_cap
  return jnp.tanh(scores * (config.scale / cap)) * (cap * LOG2_E)


def _values(v_ref, sub_kv: int, num_keys, kv_start: int):
  """Rows of V; rows beyond the last key hold whatever memory held, and 0 * NaN is NaN."""
  v = v_ref[pl.ds(kv_start, sub_kv), :]
  if num_keys is None:
    return v
  key = lax.broadcasted_iota(jnp.int32, v.shape, 0) + kv_start
  return jnp.where(key < num_keys, v, jnp.zeros_like(v))


def _sub_tile_mask(inputs, config: ForwardConfig, fields, kv_len: int, q_start: int, kv_start: int):
  """Mask [sub_kv, sub_q] of a sub-tile."""
  shape = (config.tiling.sub_kv, config.tiling.sub_q)
  queries, keys = pl.ds(q_start, config.tiling.sub_q), pl.ds(kv_start, config.tiling.sub_kv)
  if config.test is None:
    return inputs.tiles[keys, queries].astype(jnp.int32) != 0
  q_idx = lax.broadcasted_iota(jnp.int32, shape, 1) + (fields.outer * config.tiling.block_q + q_start)
  kv_idx = lax.broadcasted_iota(jnp.int32, shape, 0) + (fields.inner * config.tiling.block_kv + kv_start)
  q_tokens = [inputs.q_tokens[n : n + 1, queries] for n in range(config.test.num_q)]
  kv_tokens = [inputs.kv_tokens[keys, n : n + 1] for n in range(config.test.num_kv)]
  allowed = config.test(q_idx, kv_idx, q_tokens, kv_tokens)
  if kv_len % config.tiling.block_kv:
    allowed = allowed & (kv_idx < kv_len)
  return jnp.broadcast_to(allowed, shape)


def _dot(a, b, contract: tuple[int, int]):
  """Matmul of two tiles, accumulated in float32; float32 operands at full precision."""
  precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
  dims = (((contract[0],), (contract[1],)), ((), ()))
  return lax.dot_general(a, b, dims, precision=precision, preferred_element_type=jnp.float32)
