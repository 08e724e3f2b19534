"""The implementation for CPU and GPU: one XLA loop over the active tiles, heads batched, no Pallas.

The loop walks the same schedule as the TPU kernel with the same online softmax, so empty tiles cost nothing
and no array of scores exists beyond one tile per head.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing

import einops
import jax
import jax.numpy as jnp
from jax import lax

from blockattn._mask_operands import MaskOperands, pad_tokens
from blockattn._options import AttentionOptions
from masks import BlockMask, TileKind

_LOG2_E = math.log2(math.e)


class _State(typing.NamedTuple):
  """Running softmax of the current row of tiles, [b, k, r, block_q(, Dv)], and the results so far."""

  m: jax.Array
  l: jax.Array
  acc: jax.Array
  out: jax.Array
  lse: jax.Array


@dataclasses.dataclass(frozen=True)
class Xla:
  """Attention by an XLA loop over tiles; see `_implementation.Implementation`.

  Attributes:
    options: Scale and soft cap.
    block_q: Queries per tile.
    block_kv: Keys per tile.
  """

  options: AttentionOptions
  block_q: int
  block_kv: int

  def forward(self, q, k, v, sinks, block_mask: BlockMask):
    """See `Implementation`."""
    return _forward(self, q, k, v, sinks, MaskOperands.by_row(block_mask))

  def backward(self, q, k, v, dout, lse, delta, block_mask: BlockMask):
    """See `Implementation`."""
    return _backward(self, q, k, v, dout, lse, delta, MaskOperands.by_row(block_mask))


@dataclasses.dataclass(frozen=True)
class _Slices:
  """Where a step finds its operands: b, k, r are batch, KV head and query head within the KV head."""

  lead: tuple[int, int]
  group: int
  rows: int
  cols: int
  block_q: int
  block_kv: int

  def query_tiles(self, x, num_kv_heads: int):
    """[B, T, N, D] as [B, K, R, T, D] float32, padded to whole tiles."""
    x = einops.rearrange(x, "b t (k r) d -> b k r t d", k=num_kv_heads)
    pad = self.rows * self.block_q - x.shape[3]
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, pad), (0, 0))).astype(jnp.float32)

  def row_tiles(self, x, num_kv_heads: int, fill):
    """[B, N, T] as [B, K, R, T], padded to whole tiles."""
    x = einops.rearrange(x, "b (k r) t -> b k r t", k=num_kv_heads)
    pad = self.rows * self.block_q - x.shape[3]
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, pad)), constant_values=fill)

  def key_tiles(self, x):
    """[B, S, K, D] as [B, K, S, D] float32, padded to whole tiles."""
    x = einops.rearrange(x, "b s k d -> b k s d")
    pad = self.cols * self.block_kv - x.shape[2]
    return jnp.pad(x, ((0, 0), (0, 0), (0, pad), (0, 0))).astype(jnp.float32)

  def at(self, steps, i):
    """(b, k, r, row, col) of step i."""
    outer = steps.outer[i]
    entry, row = outer // self.rows, outer % self.rows
    batch, head = entry // self.lead[1], entry % self.lead[1]
    return batch, head // self.group, head % self.group, row, steps.inner[i]

  def queries(self, array, b, k, r, row):
    """[b, k, r, block_q, ...] out of [B, K, R, T, ...]."""
    return lax.dynamic_slice(array, *self._where(array, b, k, r, row))

  def write(self, array, tile, b, k, r, row):
    """`array` with the tile that `queries` reads replaced."""
    return lax.dynamic_update_slice(array, tile, self._where(array, b, k, r, row)[0])

  def keys(self, array, b, k, col):
    """[b, k, block_kv, D] out of [B, K, S, D]."""
    batch, heads = self._sizes(array.shape[:2])
    start = (b, k, col * self.block_kv, 0)
    return lax.dynamic_slice(array, start, (batch, heads, self.block_kv, array.shape[3]))

  def add_keys(self, array, tile, b, k, col):
    """`array` with `tile` added to the tile that `keys` reads."""
    start = (b, k, col * self.block_kv, 0)
    return lax.dynamic_update_slice(array, self.keys(array, b, k, col) + tile, start)

  def _where(self, array, b, k, r, row):
    batch, heads = self._sizes(array.shape[:2])
    per_kv = array.shape[2] if self.lead[1] == 1 else 1
    tail = array.shape[4:]
    start = (b, k, r, row * self.block_q, *(0 for _ in tail))
    return start, (batch, heads, per_kv, self.block_q, *tail)

  def _sizes(self, lead):
    return tuple(1 if n > 1 else size for n, size in zip(self.lead, lead, strict=True))


def _slices(self: Xla, q, k, operands: MaskOperands) -> _Slices:
  group = q.shape[2] // k.shape[2]
  return _Slices(operands.lead, group, operands.rows, operands.cols, self.block_q, self.block_kv)


@functools.partial(jax.jit, static_argnums=0)
def _backward(self: Xla, q, k, v, dout, lse, delta, operands: MaskOperands):
  """One loop in row order: dq of the current row of tiles is carried, dk and dv are added to in place."""
  q_len, kv_len, num_kv_heads = q.shape[1], k.shape[1], k.shape[2]
  slices = _slices(self, q, k, operands)
  q_tiles, dout_tiles = (slices.query_tiles(x, num_kv_heads) for x in (q, dout))
  k_tiles, v_tiles = (slices.key_tiles(x) for x in (k, v))
  # A row without allowed key, and a padded one, has lse +inf here: every weight is 0.
  lse = slices.row_tiles(jnp.where(lse == -jnp.inf, jnp.inf, lse * _LOG2_E), num_kv_heads, jnp.inf)
  delta = slices.row_tiles(delta, num_kv_heads, 0)
  steps = operands.schedule.expand()
  mask_of = _tile_mask(operands, slices, kv_len)
  cap, unit = self.options.logits_soft_cap, self.options.score_unit * _LOG2_E

  def step(i, state):
    dq_row, dq, dk, dv = state
    b, kv_head, r, row, col = slices.at(steps, i)
    q_tile, dout_tile, lse_tile, delta_tile = (
      slices.queries(x, b, kv_head, r, row) for x in (q_tiles, dout_tiles, lse, delta)
    )
    k_tile, v_tile = (slices.keys(x, b, kv_head, col) for x in (k_tiles, v_tiles))
    scores = _scores(q_tile, k_tile, self.options)
    p = jnp.exp2(scores * unit - lse_tile[..., None])
    p = lax.cond(
      steps.kinds[i] == TileKind.FULL, lambda x: x, lambda x: jnp.where(mask_of(steps, i), x, 0), p
    )
    dp = _einsum("bkrqd,bksd->bkrqs", dout_tile, v_tile)
    ds = p * (dp - delta_tile[..., None])
    if cap is not None:  # scores are tanh(x / cap), and the derivative of cap * tanh(x / cap) is 1 - tanh**2
      ds = ds * (1 - jnp.square(scores))
    dk = slices.add_keys(dk, _einsum("bkrqs,bkrqd->bksd", ds, q_tile), b, kv_head, col)
    dv = slices.add_keys(dv, _einsum("bkrqs,bkrqd->bksd", p, dout_tile), b, kv_head, col)
    dq_row = jnp.where(steps.is_first[i] != 0, 0, dq_row) + _einsum("bkrqs,bksd->bkrqd", ds, k_tile)
    dq = lax.cond(
      steps.is_last[i] != 0,
      lambda dq: slices.write(dq, dq_row.astype(dq.dtype), b, kv_head, r, row),
      lambda dq: dq,
      dq,
    )
    return dq_row, dq, dk, dv

  shape, _ = _start(q_tiles, v_tiles, slices)
  state = (
    jnp.zeros((*shape, q.shape[-1]), jnp.float32),
    *(jnp.zeros_like(x) for x in (q_tiles, k_tiles, v_tiles)),
  )
  _, dq, dk, dv = lax.fori_loop(0, operands.schedule.num_steps, step, state)
  dq = einops.rearrange(dq[:, :, :, :q_len], "b k r t d -> b t (k r) d") * self.options.scale
  dk, dv = (einops.rearrange(x[:, :, :kv_len], "b k s d -> b s k d") for x in (dk, dv))
  return dq.astype(q.dtype), (dk * self.options.scale).astype(k.dtype), dv.astype(v.dtype)


@functools.partial(jax.jit, static_argnums=0)
def _forward(self: Xla, q, k, v, sinks, operands: MaskOperands):
  q_len, kv_len, num_kv_heads = q.shape[1], k.shape[1], k.shape[2]
  slices = _slices(self, q, k, operands)
  q_tiles = slices.query_tiles(q, num_kv_heads)
  k_tiles, v_tiles = (slices.key_tiles(x) for x in (k, v))
  steps = operands.schedule.expand()
  mask_of = _tile_mask(operands, slices, kv_len)
  start, unit = _start(q_tiles, v_tiles, slices), self.options.score_unit

  def step(i, state: _State) -> _State:
    b, kv_head, r, row, col = slices.at(steps, i)
    begin = steps.is_first[i] != 0
    sink = None if sinks is None else _sink_tile(sinks, num_kv_heads, slices, kv_head, r)
    m, l, acc = (
      jnp.where(begin, new, old)
      for new, old in zip(_fresh(start, sink, unit), (state.m, state.l, state.acc), strict=True)
    )
    q_tile = slices.queries(q_tiles, b, kv_head, r, row)
    k_tile, v_tile = (slices.keys(x, b, kv_head, col) for x in (k_tiles, v_tiles))
    scores = lax.cond(
      steps.kinds[i] == TileKind.FULL,
      lambda x: x,
      lambda x: jnp.where(mask_of(steps, i), x, -jnp.inf),
      _scores(q_tile, k_tile, self.options),
    )
    m, l, acc = _online_softmax(m, l, acc, scores, v_tile, unit * _LOG2_E)

    def finish(out, lse):
      tile, tile_lse = _normalise(m, l, acc, unit)
      return (
        slices.write(out, tile.astype(out.dtype), b, kv_head, r, row),
        slices.write(lse, tile_lse, b, kv_head, r, row),
      )

    out, lse = lax.cond(steps.is_last[i] != 0, finish, lambda out, lse: (out, lse), state.out, state.lse)
    return _State(m, l, acc, out, lse)

  state = _State(*_fresh(start, None, unit), *_results(q_tiles, v_tiles, q.dtype))
  state = lax.fori_loop(0, operands.schedule.num_steps, step, state)
  out = einops.rearrange(state.out[:, :, :, :q_len], "b k r t d -> b t (k r) d")
  return out, einops.rearrange(state.lse[..., :q_len], "b k r t -> b (k r) t")


def _start(q_tiles, v_tiles, slices: _Slices):
  """(shape of m and l, Dv)."""
  (batch, heads), per_kv = slices._sizes(q_tiles.shape[:2]), q_tiles.shape[2]
  shape = (batch, heads, per_kv if slices.lead[1] == 1 else 1, slices.block_q)
  return shape, v_tiles.shape[-1]


def _fresh(start, sink, unit: float):
  """State before the first tile of a row; a sink is a key with this logit and value 0."""
  shape, value_dim = start
  acc = jnp.zeros((*shape, value_dim), jnp.float32)
  if sink is None:
    return jnp.full(shape, -jnp.inf), jnp.zeros(shape), acc
  return jnp.broadcast_to(sink / unit, shape), jnp.ones(shape), acc


def _sink_tile(sinks, num_kv_heads: int, slices: _Slices, kv_head, r):
  sinks = sinks.reshape(num_kv_heads, -1, 1)
  if slices.lead[1] == 1:
    return sinks
  return lax.dynamic_slice(sinks, (kv_head, r, 0), (1, 1, 1))


def _results(q_tiles, v_tiles, dtype):
  shape = q_tiles.shape[:4]
  return jnp.zeros((*shape, v_tiles.shape[-1]), dtype), jnp.zeros(shape, jnp.float32)


def _scores(q, k, options: AttentionOptions):
  """Scores [b, k, r, block_q, block_kv], see `AttentionOptions`."""
  return options.scores(_einsum("bkrqd,bksd->bkrqs", q, k))


def _online_softmax(m, l, acc, scores, v, exponent_unit: float):
  new_m = jnp.maximum(m, scores.max(axis=-1))
  shift = jnp.where(new_m == -jnp.inf, 0, new_m)
  p = jnp.exp2((scores - shift[..., None]) * exponent_unit)
  decay = jnp.exp2((m - shift) * exponent_unit)
  pv = _einsum("bkrqs,bksd->bkrqd", p, v)
  return new_m, decay * l + p.sum(axis=-1), decay[..., None] * acc + pv


def _einsum(spec: str, a, b):
  return jnp.einsum(spec, a, b, precision=lax.Precision.HIGHEST)


def _normalise(m, l, acc, unit: float):
  """Output and lse (natural log) of a finished row; 0 and -inf where no key was allowed."""
  alive = l > 0
  safe = jnp.where(alive, l, 1)
  return acc / safe[..., None], jnp.where(alive, m * unit + jnp.log(safe), -jnp.inf)


def _tile_mask(operands: MaskOperands, slices: _Slices, kv_len: int):
  """A function (steps, i) -> mask of the step's tile, broadcasting to [b, k, r, block_q, block_kv].

  An EMPTY step, which only writes the zeros of its row, gets a mask that is False everywhere.
  """
  if operands.test is None:
    tiles, ids = jnp.asarray(operands.tiles), jnp.asarray(operands.tile_ids)
    return lambda steps, i: (tiles[ids[i]] != 0) & (steps.kinds[i] != TileKind.EMPTY)
  q_tokens, kv_tokens = operands.expand_tokens()
  q_tokens = pad_tokens(q_tokens, slices.rows * slices.block_q)
  kv_tokens = pad_tokens(kv_tokens, operands.cols * slices.block_kv)

  def mask(steps, i):
    entry, row = steps.outer[i] // slices.rows, steps.outer[i] % slices.rows
    col = steps.inner[i]
    read = functools.partial(_read_tokens, lead=slices.lead, entry=entry)
    q_numbers = read(q_tokens, row * slices.block_q, slices.block_q)
    kv_numbers = read(kv_tokens, col * slices.block_kv, slices.block_kv)
    q_idx = (row * slices.block_q + jnp.arange(slices.block_q))[:, None]
    kv_idx = (col * slices.block_kv + jnp.arange(slices.block_kv))[None, :]
    allowed = operands.test(q_idx, kv_idx, [x[:, None] for x in q_numbers], [x[None, :] for x in kv_numbers])
    return allowed & (kv_idx < kv_len)

  return mask


def _read_tokens(tokens, start, size: int, *, lead: tuple[int, int], entry):
  """[numbers, size] of tokens [batch, heads, numbers, length] for an entry of `lead`."""
  if tokens is None:
    return []
  where = (entry // lead[1], entry % lead[1])
  where = (x if n > 1 else 0 for x, n in zip(where, tokens.shape[:2], strict=True))
  return lax.dynamic_slice(tokens, (*where, 0, start), (1, 1, tokens.shape[2], size))[0, 0]
