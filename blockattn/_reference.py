"""The dense oracle: softmax over the whole score matrix in float32, at full matmul precision."""

from __future__ import annotations

import dataclasses
import functools

import einops
import jax
import jax.numpy as jnp

from blockattn._options import AttentionOptions
from masks import BlockMask


@dataclasses.dataclass(frozen=True)
class Reference:
  """Dense attention; differentiated by jax itself, any number of times.

  Attributes:
    options: Scale and soft cap.
  """

  options: AttentionOptions

  def forward(self, q, k, v, sinks, block_mask: BlockMask):
    """See `Implementation`."""
    dense = jnp.asarray(block_mask.mask.to_dense(block_mask.q_len, block_mask.kv_len))
    dense = dense.reshape(*block_mask.lead, *block_mask.shape)
    return _forward(q, k, v, sinks, dense, self.options)


@functools.partial(jax.jit, static_argnames="options")
def _forward(q, k, v, sinks, dense_mask, options: AttentionOptions):
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
