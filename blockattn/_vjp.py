"""Differentiable attention: the forward pass keeps out and lse, the backward pass recomputes the weights."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from blockattn._implementation import Implementation

OUT_NAME, LSE_NAME = "block_sparse_attention_out", "block_sparse_attention_lse"


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(implementation: Implementation, q, k, v, sinks, block_mask):
  """(out, lse) of an implementation, with gradients for q, k, v and sinks.

  Implementations run without x64, under which Python's numbers in their index arithmetic would become int64: loops
  refuse to mix it with int32, and TPUs have none in index maps.

  Reverse mode: forward mode raises jax's TypeError for custom_vjp.
  """
  with jax.enable_x64(False):
    return implementation.forward(q, k, v, sinks, block_mask)


def _forward(implementation: Implementation, q, k, v, sinks, block_mask):
  with jax.enable_x64(False):
    out, lse = implementation.forward(q, k, v, sinks, block_mask)
  out, lse = checkpoint_name(out, OUT_NAME), checkpoint_name(lse, LSE_NAME)
  return (out, lse), (q, k, v, sinks, block_mask, out, lse)


def _backward(implementation: Implementation, residuals, gradients):
  q, k, v, sinks, block_mask, out, lse = residuals
  dout, dlse = gradients
  delta = jnp.einsum("btnd,btnd->bnt", dout.astype(jnp.float32), out.astype(jnp.float32)) - dlse
  with jax.enable_x64(False):
    dq, dk, dv = implementation.backward(q, k, v, dout, lse, delta, block_mask)
  if sinks is None:
    return dq, dk, dv, None, None
  weight = jnp.exp(sinks[:, None] - lse)
  return dq, dk, dv, -(weight * delta).sum(axis=(0, 2)), None


attend.defvjp(_forward, _backward)
