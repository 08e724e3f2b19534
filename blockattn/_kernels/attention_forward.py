"""Forward attention over the active sub-tiles: QK^T, softmax and PV in one kernel.

A grid step holds a tile of queries and a chunk of keys, and loops over a list of what is active in it. Each item
has a body whose sub-tiles are unrolled, so that the matrix unit works on the next scores under the exponentials
of the current ones.

The softmax needs no running maximum. Weights are exp(score - reference) with one reference per query, fixed while
the keys of a step are summed: any reference within some 40 binary orders of magnitude of the sum will do, because
floating point loses nothing to a common factor. The largest score of a few keys serves as one. At the end of the
step each sum is checked, and if one has left the range, the step starts over with a running maximum.
"""

from __future__ import annotations

import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from blockattn import _compat
from blockattn._kernels import attention_tiles as tiles
from blockattn._kernels.attention_tiles import KernelConfig, Rect, TileInputs
from blockattn._kernels.work_items import ItemLayout, SubTile, WorkItems
from masks import TileKind

# Sums of weights within which float32 and bfloat16 weights lose nothing: single ones reach down to 2^-126.
_LEAST_SUM, _LARGEST_SUM = 2.0**-60, 2.0**90
# Keys whose largest score is the reference of queries that have none yet.
_SAMPLE = 32


class _Softmax(typing.NamedTuple):
  """State of a tile of queries, by strip.

  Attributes:
    m: [strips, 1, sub_q] float32, reference in scores; -inf while there is none.
    l: [strips, 1, sub_q] float32, sum of the weights exp(logit - reference).
    acc: [strips, Dv, sub_q] float32, sum of weights times values.
  """

  m: typing.Any
  l: typing.Any
  acc: typing.Any

  def copy_to(self, other: _Softmax):
    """Writes the state to other refs."""
    for source, target in zip(self, other, strict=True):
      target[...] = source[...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Scratch:
  state: _Softmax
  saved: typing.Any  # _Softmax before the step; None where all keys are in one step
  again: typing.Any  # int32 [1] in SMEM, whether the step has to start over
  tiles: typing.Any  # [2, block_kv, block_q] int8, stored tiles in flight; None where masks are computed
  arrived: typing.Any  # DMA semaphores [2] of these


def attention_forward(inputs: TileInputs, work: WorkItems, layout: ItemLayout, config: KernelConfig):
  """Attends over the active sub-tiles.

  Args:
    inputs: The operands.
    work: Grid steps and their items.
    layout: How items are packed.
    config: Static choices.

  Returns:
    Output [B, N, T, Dv] in q.dtype and lse [B, N, 1, T] float32 (natural log); 0 and -inf for a row without
    allowed key.
  """
  batch, heads, q_len, _ = inputs.q.shape
  tiling, value_dim = config.tiling, inputs.v.shape[-1]
  index = tiles.index_maps(config, _head_of)
  specs = tiles.input_specs(dataclasses.replace(inputs, tiles=None), config, _head_of)
  stored = inputs.tiles is not None
  kernel = pl.pallas_call(
    functools.partial(_kernel, config=config, layout=layout),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(*config.layout.grid(batch, heads), len(work.steps)),
      in_specs=(dataclasses.replace(specs, tiles=pl.BlockSpec(memory_space=pl.ANY) if stored else None),),
      out_specs=(
        pl.BlockSpec((None, None, tiling.block_q, value_dim), index.queries),
        pl.BlockSpec((None, None, 1, tiling.block_q), index.query_row),
      ),
      scratch_shapes=(  # pyright: ignore[reportArgumentType] (any pytree will do)
        _Scratch(
          state=_state_shapes(tiling.strips, tiling.sub_q, value_dim),
          saved=_state_shapes(tiling.strips, tiling.sub_q, value_dim) if config.layout.cols > 1 else None,
          again=pltpu.SMEM((1,), jnp.int32),
          tiles=pltpu.VMEM((2, tiling.block_kv, tiling.block_q), jnp.int8) if stored else None,
          arrived=pltpu.SemaphoreType.DMA((2,)) if stored else None,
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
      vmem_limit_bytes=tiling.vmem_limit_bytes,
    ),
    interpret=config.interpret,
    name="attention_forward",
  )
  return kernel(work, inputs)


def _state_shapes(strips: int, sub_q: int, value_dim: int) -> _Softmax:
  return _Softmax(*(pltpu.VMEM((strips, n, sub_q), jnp.float32) for n in (1, 1, value_dim)))


def _head_of(grid, fields):
  return grid[0] + fields.batch, grid[1] + fields.head


def _kernel(
  work: WorkItems, inputs: TileInputs, out_ref, lse_ref, scratch, *, config: KernelConfig, layout: ItemLayout
):
  step = pl.program_id(2)
  fields = config.layout.unpack(work.steps[step])
  head = pl.program_id(1) + fields.head
  items = (work.first_item[step], work.first_item[step + 1])
  first_key = layout.first_key(layout.unpack(work.items[items[0]])[2])
  one_step = config.layout.cols == 1  # per tile of queries: then nothing needs to be saved or asked
  state = scratch.state
  start = functools.partial(_start, inputs, state, config, head)
  finish = functools.partial(_finish, state, out_ref, lse_ref, config)

  def run(add):
    _run_items(items, work, inputs, scratch, config, layout, _Body(inputs, state, config, fields, add))

  def cases(condition, *bodies):
    """Runs the first body where the condition holds, the second elsewhere; just the first with one step."""
    if one_step:
      bodies[0]()
    else:
      pl.when(condition)(bodies[0])
      pl.when(~condition)(bodies[1])

  is_first, is_last = fields.is_first != 0, fields.is_last != 0
  if scratch.tiles is not None:  # which keys a query may use is not known before its tiles arrive
    cases(is_first, start, lambda: None)
    run(_add_with_running_maximum)
    cases(is_last, finish, lambda: None)
    return

  def begin(prepare):
    prepare()
    _choose_references(inputs, state, config, fields, first_key)

  def end(finish):
    scratch.again[0] = _left_the_range(state, config, fields)
    finish()

  cases(is_first, lambda: begin(start), lambda: begin(lambda: state.copy_to(scratch.saved)))
  run(_add_with_fixed_reference)
  cases(is_last, lambda: end(finish), lambda: end(lambda: None))

  @pl.when(scratch.again[0] != 0)
  def _again():
    cases(is_first, start, lambda: scratch.saved.copy_to(state))
    run(_add_with_running_maximum)
    cases(is_last, finish, lambda: None)


def _start(inputs: TileInputs, state: _Softmax, config: KernelConfig, head):
  if inputs.sinks is None:
    state.m[...] = jnp.full_like(state.m, -jnp.inf)
    state.l[...] = jnp.zeros_like(state.l)
  else:  # a sink is a key with this logit and value 0
    state.m[...] = jnp.full_like(state.m, inputs.sinks[head, 0] / config.options.score_unit)
    state.l[...] = jnp.ones_like(state.l)
  state.acc[...] = jnp.zeros_like(state.acc)


def _finish(state: _Softmax, out_ref, lse_ref, config: KernelConfig):
  for strip in range(config.tiling.strips):
    queries = pl.ds(strip * config.tiling.sub_q, config.tiling.sub_q)
    m, l = state.m[strip], state.l[strip]
    alive = l > 0
    out = state.acc[strip] * jnp.where(alive, 1 / jnp.where(alive, l, 1), 0)
    out_ref[queries, :] = out.T.astype(out_ref.dtype)
    lse = m * config.options.score_unit + jnp.log(jnp.where(alive, l, 1))
    lse_ref[:, queries] = jnp.where(alive, lse, -jnp.inf)


def _choose_references(inputs: TileInputs, state: _Softmax, config: KernelConfig, fields, first_key):
  """Sets the reference of queries without weights to the largest score of some allowed keys; 0 without any.

  Only allowed keys count, so that the others do not change a bit of the result.
  """
  num_keys = min(_SAMPLE, config.tiling.sub_kv)
  for strip in range(config.tiling.strips):
    rect = Rect(strip * config.tiling.sub_q, config.tiling.sub_q, first_key, num_keys)
    mask = tiles.computed_mask(inputs, config, fields, rect)
    scores = tiles.scores(inputs, config, rect)
    m = jnp.where(mask, scores, -jnp.inf).max(axis=0, keepdims=True)
    m = jnp.where(m == -jnp.inf, 0, m)
    state.m[strip] = jnp.where(state.l[strip] > 0, state.m[strip], m)


def _left_the_range(state: _Softmax, config: KernelConfig, fields):
  """1 if a sum of weights is 0, too small or too large, or a sum of values not finite, else 0; int32 scalar.

  NaN weights come from NaN scores of allowed keys, with which no softmax can do better.
  """
  l = state.l[...]
  largest = jnp.abs(state.acc[...]).max(axis=1, keepdims=True)
  fine = ((l >= _LEAST_SUM) & (l <= _LARGEST_SUM) & (largest < jnp.inf)) | (l != l)
  if config.ragged_q:
    strip, query = (lax.broadcasted_iota(jnp.int32, l.shape, axis) for axis in (0, 2))
    index = fields.q_tile * config.tiling.block_q + strip * config.tiling.sub_q + query
    fine = fine | (index >= config.q_len)
  return jnp.where(fine, 0.0, 1.0).max().astype(jnp.int32)


def _run_items(items, work: WorkItems, inputs, scratch: _Scratch, config, layout: ItemLayout, body: _Body):
  """Runs the items [first, end) of a step with one kind of softmax."""
  tiling = config.tiling

  def all_sub_tiles(kind: TileKind):
    return [SubTile(strip, n, (kind,)) for strip in range(tiling.strips) for n in range(tiling.width)]

  def fetch(item):
    slot = (item - items[0]) & 1
    tile = inputs.tiles.at[work.tile_ids[item]]
    return pltpu.make_async_copy(tile, scratch.tiles.at[slot], scratch.arrived.at[slot])

  def run_item(item, carry):
    number, strip, col, count = layout.unpack(work.items[item])
    first_key = layout.first_key(col)

    @pl.when(number == 0)
    def _whole_tiles():
      def tile(at, carry):
        body(all_sub_tiles(TileKind.FULL), first_key + at * tiling.block_kv)
        return carry

      lax.fori_loop(0, count, tile, 0)

    if scratch.tiles is not None:
      pl.when(item + 1 < items[1])(lambda: fetch(item + 1).start())
      fetch(item).wait()
      stored = scratch.tiles.at[(item - items[0]) & 1]
      pl.when(number == layout.first_part)(lambda: body(all_sub_tiles(TileKind.PARTIAL), first_key, stored))
      return carry
    for at, pattern in enumerate(layout.patterns, layout.first_pattern):
      pl.when(number == at)(functools.partial(body, pattern, first_key))
    for at, part in enumerate(layout.parts, layout.first_part):
      sub_tiles = [sub_tile._replace(strip=strip) for sub_tile in part]
      pl.when(number == at)(functools.partial(body, sub_tiles, first_key))
    return carry

  if scratch.tiles is not None:
    pl.when(items[0] < items[1])(lambda: fetch(items[0]).start())
  lax.fori_loop(*items, run_item, 0)


@dataclasses.dataclass(frozen=True)
class _Body:
  """Adds sub-tiles to the softmax, unrolled.

  Attributes:
    inputs: The operands.
    state: What is added to.
    config: Static choices.
    fields: The grid step.
    add: How the weights of a sub-tile are computed and added.
  """

  inputs: TileInputs
  state: _Softmax
  config: KernelConfig
  fields: typing.Any
  add: typing.Callable

  def __call__(self, sub_tiles, first_key, stored=None):
    """Adds sub-tiles of the tile whose first key is given; `stored` is its mask where these are stored."""
    inputs, config = self.inputs, self.config
    valid = tiles.num_valid(config, self.fields)[1]

    def scores(at: SubTile):
      return tiles.scores(inputs, config, self._rect(at, first_key))

    for at, s in tiles.in_flight(scores, sub_tiles, config.tiling.lookahead):
      rect = self._rect(at, first_key)
      masked = any(kind != TileKind.FULL for kind in at.kinds)
      values = tiles.rows(inputs.v, rect.kv_start, rect.kv_size, valid if masked else None)
      hide = functools.partial(self._hide, at, first_key, stored)
      queries = (at.strip, slice(None), pl.ds(_active(at)[0] * self._cell(at), rect.q_size))
      self.add(self.state, queries, s, hide, values, config.exponent_unit)

  def _cell(self, at: SubTile) -> int:
    return self.config.tiling.sub_q // len(at.kinds)

  def _rect(self, at: SubTile, first_key) -> Rect:
    """The cells of a sub-tile from the first to the last active one."""
    tiling, (first, last) = self.config.tiling, _active(at)
    start = at.strip * tiling.sub_q
    start = start if isinstance(at.strip, int) else pl.multiple_of(start, tiling.sub_q)
    key = pl.multiple_of(first_key + at.col * tiling.sub_kv, tiling.sub_kv)
    return Rect(start + first * self._cell(at), (last + 1 - first) * self._cell(at), key, tiling.sub_kv)

  def _hide(self, at: SubTile, first_key, stored, x):
    """Puts -inf into x [keys, queries] where the mask is False."""
    first, last = _active(at)
    kinds = at.kinds[first : last + 1]
    rect = self._rect(at, first_key)
    if stored is not None:
      tiling = self.config.tiling
      rect = Rect(at.strip * tiling.sub_q, rect.q_size, at.col * tiling.sub_kv, rect.kv_size)
    if TileKind.FULL not in kinds:
      return self._hide_in(rect, stored, x)
    cell, parts = self._cell(at), []
    for n, kind in enumerate(kinds):
      part = x[:, n * cell : (n + 1) * cell]
      inner = rect._replace(q_start=rect.q_start + n * cell, q_size=cell)
      parts.append(part if kind == TileKind.FULL else self._hide_in(inner, stored, part))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)

  def _hide_in(self, rect: Rect, stored, x):
    if stored is None:
      mask = tiles.computed_mask(self.inputs, self.config, self.fields, rect)
    else:
      mask = tiles.stored_mask(stored, rect)
    return jnp.where(mask, x, -jnp.inf)


def _active(at: SubTile) -> tuple[int, int]:
  """The first and the last active cell of a sub-tile."""
  active = [n for n, kind in enumerate(at.kinds) if kind != TileKind.EMPTY]
  return active[0], active[-1]


def _add_with_fixed_reference(state: _Softmax, queries, scores, hide, values, unit: float):
  p = jnp.exp2(hide((scores - state.m[queries]) * unit))
  state.l[queries] += p.sum(axis=0, keepdims=True)
  state.acc[queries] += tiles.dot(values, p.astype(values.dtype), (0, 0))


def _add_with_running_maximum(state: _Softmax, queries, scores, hide, values, unit: float):
  m = state.m[queries]
  scores = hide(scores)
  new_m = jnp.maximum(m, scores.max(axis=0, keepdims=True))
  # A row without allowed key so far has maximum -inf: subtract 0 instead, and get zeros.
  shift = jnp.where(new_m == -jnp.inf, 0, new_m)
  p = jnp.exp2((scores - shift) * unit)
  decay = jnp.exp2((m - shift) * unit)
  state.m[queries] = new_m
  state.l[queries] = decay * state.l[queries] + p.sum(axis=0, keepdims=True)
  state.acc[queries] = decay * state.acc[queries] + tiles.dot(values, p.astype(values.dtype), (0, 0))
