"""The dense oracle: softmax over the whole score matrix in float32, at full matmul precision."""

from __future__ import annotations

import einops
import jax
import jax.numpy as jnp

from blockattn._options import AttentionOptions
from masks import BlockMask


def prepare(block_mask: BlockMask) -> jax.Array:
  """The dense mask, bool [batch, heads, T, S] with 1 where all examples or heads agree."""
  dense = block_mask.mask.to_dense(block_mask.q_len, block_mask.kv_len)
  return jnp.asarray(dense).reshape(*block_mask.lead, *block_mask.shape)


def attend(q, k, v, sinks, dense_mask, options: AttentionOptions):
  """Dense attention.

  Args:
    q: [B, T, N, D].
    k: [B, S, K, D].
    v: [B, S, K, Dv].
    sinks: [N] float32 or None.
    dense_mask: From `prepare`.
    options: Static choices.

  Returns:
    Output [B, T, N, Dv] in q.dtype, and lse [B, N, T] float32.
  """
  num_kv_heads = k.shape[2]
  q32, k32, v32 = (x.astype(jnp.float32) for x in (q, k, v))
  q32 = einops.rearrange(q32, "b t (k r) d -> b t k r d", k=num_kv_heads)
  highest = jax.lax.Precision.HIGHEST
  logits = jnp.einsum("btkrd,bskd->bkrts", q32, k32, precision=highest) * options.scale
  logits = einops.rearrange(logits, "b k r t s -> b (k r) t s")
  if options.logits_soft_cap is not None:
    logits = options.logits_soft_cap * jnp.tanh(logits / options.logits_soft_cap)
  logits = jnp.where(dense_mask, logits, -jnp.inf)
  peak = logits.max(axis=-1, initial=-jnp.inf)
  if sinks is not None:
    peak = jnp.maximum(peak, sinks[:, None])
  peak = jnp.where(peak == -jnp.inf, 0, peak)
  weights = jnp.exp(logits - peak[..., None])
  total = weights.sum(axis=-1)
  if sinks is not None:
    total = total + jnp.exp(sinks[:, None] - peak)
  alive = total > 0
  weights = weights / jnp.where(alive, total, 1)[..., None]
  weights = einops.rearrange(weights, "b (k r) t s -> b k r t s", k=num_kv_heads)
  out = jnp.einsum("bkrts,bskd->btkrd", weights, v32, precision=highest)
  lse = jnp.where(alive, peak + jnp.log(jnp.where(alive, total, 1)), -jnp.inf)
  return einops.rearrange(out, "b t k r d -> b t (k r) d").astype(q.dtype), lse
