"""Float64 oracle, tolerances and inputs of the attention tests."""

import tracemalloc

import jax.numpy as jnp
import numpy as np

from blockattn import BlockSizes, block_sparse_attention, explain

__all__ = [
  "BlockSizes",
  "block_sparse_attention",
  "draw",
  "explain",
  "grid_of",
  "oracle",
  "peak_bytes",
  "poison_unread_keys",
  "rel_rms",
  "tolerance",
]

# Relative RMS of the output of a kernel with float32 accumulation, by (dtype, amplitude of q and k): T32 and Tbf of
# CASES.md, which has what a right kernel reaches. A bfloat16 accumulator gives 3.4e-3 (amplitude 1) and 2.5e-3 (5).
_TOLERANCES = {
  ("float32", 1): 5e-6,
  ("float32", 5): 5e-5,
  ("bfloat16", 1): 2.6e-3,
  ("bfloat16", 5): 1.9e-3,
  ("float16", 1): 2e-3,
}


def tolerance(dtype, amplitude=1):
  """The largest `rel_rms` of an output of `dtype` that counts as right."""
  return _TOLERANCES[jnp.dtype(dtype).name, amplitude]


def rel_rms(got, want):
  """Root mean square of the difference, relative to that of `want`; absolute where `want` is 0."""
  got, want = (np.asarray(x, np.float64) for x in (got, want))
  size = np.sqrt(np.mean(want**2))
  return np.sqrt(np.mean((got - want) ** 2)) / (size or 1)


def draw(
  seed,
  q_len,
  kv_len=None,
  *,
  batch=1,
  num_heads=1,
  num_kv_heads=None,
  head_dim=64,
  value_dim=None,
  dtype="float32",
  amplitude=1,
):
  """q, k, v of G(seed) of CASES.md, which draws [B, H, tokens, D]; returned as [B, tokens, H, D]."""
  rng = np.random.default_rng(seed)
  kv_len, kv_heads = kv_len or q_len, num_kv_heads or num_heads
  shapes = (
    (batch, num_heads, q_len, head_dim),
    (batch, kv_heads, kv_len, head_dim),
    (batch, kv_heads, kv_len, value_dim or head_dim),
  )
  q, k, v = (rng.standard_normal(shape).swapaxes(1, 2) for shape in shapes)
  return tuple(jnp.asarray(x, dtype) for x in (amplitude * q, amplitude * k, v))


def grid_of(q_len, kv_len):
  """Positions of queries [q_len, 1] and keys [1, kv_len]."""
  return np.arange(q_len)[:, None], np.arange(kv_len)[None]


def oracle(q, k, v, dense, *, scale=None, logits_soft_cap=None, sinks=None):
  """Attention in float64 over the dense mask.

  Args:
    q: [B, T, N, D], as rounded to the dtype under test; or without B.
    k: [B, S, K, D], likewise.
    v: [B, S, K, Dv], likewise.
    dense: bool that broadcasts to [B, N, T, S].
    scale: None means 1 / sqrt(D).
    logits_soft_cap: c in c * tanh(score / c).
    sinks: [N].

  Returns:
    out [B, T, N, Dv] and lse [B, N, T], without B if q has none; 0 and -inf (or the sink) for a row without key.
  """
  if q.ndim == 3:
    args = (x[None] for x in (q, k, v))
    kwargs = {"scale": scale, "logits_soft_cap": logits_soft_cap, "sinks": sinks}
    return tuple(x[0] for x in oracle(*args, dense, **kwargs))
  q, k, v = (np.asarray(x).astype(np.float64).swapaxes(1, 2) for x in (q, k, v))
  k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
  s = q @ k.swapaxes(2, 3) * (q.shape[-1] ** -0.5 if scale is None else scale)
  if logits_soft_cap is not None:
    s = logits_soft_cap * np.tanh(s / logits_soft_cap)
  s = np.where(dense, s, -np.inf)
  if sinks is not None:  # one more key, with value 0
    sink = np.asarray(sinks).astype(np.float64)[None, :, None, None]
    s = np.concatenate([s, np.broadcast_to(sink, (*s.shape[:3], 1))], axis=3)
    v = np.pad(v, ((0, 0), (0, 0), (0, 1), (0, 0)))
  peak = s.max(axis=3, initial=-np.inf, keepdims=True)
  p = np.exp(s - np.where(np.isfinite(peak), peak, 0))
  total = p.sum(axis=3, keepdims=True)
  alive = total > 0
  out = np.where(alive, p, 0) / np.where(alive, total, 1) @ v
  lse = np.where(alive, peak + np.log(np.where(alive, total, 1)), -np.inf)
  return out.swapaxes(1, 2), lse[..., 0]


def poison_unread_keys(k, v, kinds, block_kv, row):
  """k and v with NaN in every tile of keys that tile row `row` of `kinds` [rows, cols] leaves EMPTY."""
  unread = np.repeat(kinds[row] == 0, block_kv)[: k.shape[1]][None, :, None, None]
  return tuple(jnp.where(unread, jnp.nan, x).astype(x.dtype) for x in (k, v))


def peak_bytes(fn):
  """The largest amount of memory that Python and NumPy held during fn(), and its result."""
  tracemalloc.start()
  try:
    result = fn()
    return tracemalloc.get_traced_memory()[1], result
  finally:
    tracemalloc.stop()
