"""Float64 gradients of dense attention, written out by hand."""

import numpy as np


def gradients(q, k, v, dout, dlse, dense, *, logits_soft_cap=None, sinks=None):
  """(dq, dk, dv, dsinks or None) in float64 of sum(dout * out) + sum(dlse * lse).

  q, k, v and dout are [B, tokens, heads, D], dlse [B, N, T], dense broadcasts to [B, N, T, S]. A row without
  allowed key (and without sink) contributes nothing.
  """
  q, k, v, dout, dlse = (np.asarray(x, np.float64) for x in (q, k, v, dout, dlse))
  num_kv_heads, group, scale = k.shape[2], q.shape[2] // k.shape[2], q.shape[3] ** -0.5
  k_all, v_all = np.repeat(k, group, 2), np.repeat(v, group, 2)
  logits = np.einsum("btnd,bsnd->bnts", q, k_all) * scale
  slope = 1.0
  if logits_soft_cap is not None:
    tanh = np.tanh(logits / logits_soft_cap)
    logits, slope = logits_soft_cap * tanh, 1 - tanh**2
  logits = np.where(dense, logits, -np.inf)
  peak = logits.max(-1, keepdims=True)
  if sinks is not None:
    sinks = np.asarray(sinks, np.float64)[None, :, None, None]
    peak = np.maximum(peak, sinks)
  peak = np.where(np.isinf(peak), 0, peak)
  weights = np.exp(logits - peak)
  total = weights.sum(-1, keepdims=True) + (0 if sinks is None else np.exp(sinks - peak))
  alive = total > 0
  weights = weights / np.where(alive, total, 1)
  out = np.einsum("bnts,bsnd->btnd", weights, v_all)
  delta = np.einsum("btnd,btnd->bnt", dout, out)[..., None] - np.where(alive, dlse[..., None], 0)
  ds = weights * (np.einsum("btnd,bsnd->bnts", dout, v_all) - delta) * slope

  def per_kv_head(x):
    return x.reshape(*x.shape[:2], num_kv_heads, group, x.shape[-1]).sum(3)

  dq = np.einsum("bnts,bsnd->btnd", ds, k_all) * scale
  dk = per_kv_head(np.einsum("bnts,btnd->bsnd", ds, q)) * scale
  dv = per_kv_head(np.einsum("bnts,btnd->bsnd", weights, dout))
  if sinks is None:
    return dq, dk, dv, None
  sink_weight = np.exp(sinks - peak) / total
  return dq, dk, dv, -(sink_weight * delta).sum((0, 2, 3))
