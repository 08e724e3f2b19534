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
from masks import TileKind

_LOG2_E = math.log2(math.e)


class _State(typing.NamedTuple):
  """Running softmax of the current row of tiles, [b, k, r, block_q(, Dv)], and the results so far."""

  m: jax.Array
  l: jax.Array
  acc: jax.Array
  out: jax.Array
  lse: jax.Array


@dataclasses.dataclass(frozen=True)
class _Slices:
  """Where a step finds its operands: b, k, r are batch, KV head and query head within the KV head."""

  lead: tuple[int, int]
  group: int
  rows: int
  block_q: int
  block_kv: int

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

  def _where(self, array, b, k, r, row):
    batch, heads = self._sizes(array.shape[:2])
    per_kv = array.shape[2] if self.lead[1] == 1 else 1
    tail = array.shape[4:]
    start = (b, k, r, row * self.block_q, *(0 for _ in tail))
    return start, (batch, heads, per_kv, self.block_q, *tail)

  def _sizes(self, lead):
    return tuple(1 if n > 1 else size for n, size in zip(self.lead, lead, strict=True))


def attend(
  q, k, v, sinks, operands: MaskOperands, options: AttentionOptions, *, block_q: int, block_kv: int
):
  """Attention over the active tiles by an XLA loop.

  Args:
    q: [B, T, N, D].
    k: [B, S, K, D].
    v: [B, S, K, Dv].
    sinks: [N] float32 or None.
    operands: Of the block mask.
    options: Static choices.
    block_q: Queries per tile.
    block_kv: Keys per tile.

  Returns:
    Output [B, T, N, Dv] in q.dtype, and lse [B, N, T] float32.
  """
  q_len, kv_len, num_kv_heads = q.shape[1], k.shape[1], k.shape[2]
  slices = _Slices(operands.lead, q.shape[2] // num_kv_heads, operands.rows, block_q, block_kv)
  q_pad, kv_pad = operands.rows * block_q - q_len, operands.cols * block_kv - kv_len
  q_tiles = einops.rearrange(q, "b t (k r) d -> b k r t d", k=num_kv_heads)
  q_tiles = jnp.pad(q_tiles, ((0, 0),) * 3 + ((0, q_pad), (0, 0))).astype(jnp.float32)
  k_tiles, v_tiles = (
    jnp.pad(einops.rearrange(x, "b s k d -> b k s d"), ((0, 0), (0, 0), (0, kv_pad), (0, 0))).astype(jnp.float32)
    for x in (k, v)
  )
  steps = operands.schedule.expand()
  mask_of = _tile_mask(operands, slices, kv_len)
  start = _start(q_tiles, v_tiles, sinks, slices)

  def step(i, state: _State) -> _State:
    b, kv_head, r, row, col = slices.at(steps, i)
    begin = steps.is_first[i] != 0
    sink = None if sinks is None else _sink_tile(sinks, num_kv_heads, slices, kv_head, r)
    m, l, acc = (
      jnp.where(begin, new, old)
      for new, old in zip(_fresh(start, sink), (state.m, state.l, state.acc), strict=True)
    )
    logits = _logits(slices.queries(q_tiles, b, kv_head, r, row), slices.keys(k_tiles, b, kv_head, col), options)
    logits = lax.cond(
      steps.kinds[i] == TileKind.FULL, lambda x: x, lambda x: jnp.where(mask_of(steps, i), x, -jnp.inf), logits
    )
    m, l, acc = _online_softmax(m, l, acc, logits, slices.keys(v_tiles, b, kv_head, col))

    def finish(out, lse):
      tile, tile_lse = _normalise(m, l, acc)
      return (
        slices.write(out, tile.astype(out.dtype), b, kv_head, r, row),
        slices.write(lse, tile_lse, b, kv_head, r, row),
      )

    out, lse = lax.cond(
      steps.is_last[i] != 0, finish, lambda out, lse: (out, lse), state.out, state.lse
    )
    return _State(m, l, acc, out, lse)

  state = _State(*_fresh(start, None), *_results(q_tiles, v_tiles, q.dtype))
  state = lax.fori_loop(0, operands.schedule.num_steps, step, state)
  out = einops.rearrange(state.out[:, :, :, :q_len], "b k r t d -> b t (k r) d")
  return out, einops.rearrange(state.lse[..., :q_len], "b k r t -> b (k r) t")


def _start(q_tiles, v_tiles, sinks, slices: _Slices):
  del sinks
  (batch, heads), per_kv = slices._sizes(q_tiles.shape[:2]), q_tiles.shape[2]
  shape = (batch, heads, per_kv if slices.lead[1] == 1 else 1, slices.block_q)
  return shape, v_tiles.shape[-1]


def _fresh(start, sink):
  """State before the first tile of a row; a sink is a key with this logit and value 0."""
  shape, value_dim = start
  acc = jnp.zeros((*shape, value_dim), jnp.float32)
  if sink is None:
    return jnp.full(shape, -jnp.inf), jnp.zeros(shape), acc
  return jnp.broadcast_to(sink * _LOG2_E, shape), jnp.ones(shape), acc


def _sink_tile(sinks, num_kv_heads: int, slices: _Slices, kv_head, r):
  sinks = sinks.reshape(num_kv_heads, -1, 1)
  if slices.lead[1] == 1:
    return sinks
  return lax.dynamic_slice(sinks, (kv_head, r, 0), (1, 1, 1))


def _results(q_tiles, v_tiles, dtype):
  shape = q_tiles.shape[:4]
  return jnp.zeros((*shape, v_tiles.shape[-1]), dtype), jnp.zeros(shape, jnp.float32)


def _logits(q, k, options: AttentionOptions):
  """Base-2 logits [b, k, r, block_q, block_kv]."""
  scores = jnp.einsum("bkrqd,bksd->bkrqs", q, k, precision=lax.Precision.HIGHEST)
  if options.logits_soft_cap is None:
    return scores * (options.scale * _LOG2_E)
  cap = options.logits_soft_cap
  return jnp.tanh(scores * (options.scale / cap)) * (cap * _LOG2_E)


def _online_softmax(m, l, acc, logits, v):
  new_m = jnp.maximum(m, logits.max(axis=-1))
  shift = jnp.where(new_m == -jnp.inf, 0, new_m)
  p = jnp.exp2(logits - shift[..., None])
  decay = jnp.exp2(m - shift)
  pv = jnp.einsum("bkrqs,bksd->bkrqd", p, v, precision=lax.Precision.HIGHEST)
  return new_m, decay * l + p.sum(axis=-1), decay[..., None] * acc + pv


def _normalise(m, l, acc):
  """Output and lse (natural log) of a finished row; 0 and -inf where no key was allowed."""
  alive = l > 0
  safe = jnp.where(alive, l, 1)
  return acc / safe[..., None], jnp.where(alive, m / _LOG2_E + jnp.log(safe), -jnp.inf)


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
    allowed = operands.test(
      q_idx, kv_idx, [x[:, None] for x in q_numbers], [x[None, :] for x in kv_numbers]
    )
    return allowed & (kv_idx < kv_len)

  return mask


def _read_tokens(tokens, start, size: int, *, lead: tuple[int, int], entry):
  """[numbers, size] of tokens [batch, heads, numbers, length] for an entry of `lead`."""
  if tokens is None:
    return []
  where = (entry // lead[1], entry % lead[1])
  where = (x if n > 1 else 0 for x, n in zip(where, tokens.shape[:2], strict=True))
  return lax.dynamic_slice(tokens, (*where, 0, start), (1, 1, tokens.shape[2], size))[0, 0]
