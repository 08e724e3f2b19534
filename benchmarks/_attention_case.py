"""Attention over packed tokens: the inputs, the dense softmax to beat, and the float64 oracle.

B = batch, T = tokens, N/K = query/key heads, D = head_dim.
"""

import dataclasses
import functools

import einops
import jax
import jax.numpy as jnp
import numpy as np

import masks
from benchmarks import _measure, _progress

_EMBEDDING_WIDTH = 256
_ORACLE_ROWS = 256  # per step: float64 scores of one head stay in the cache for a few thousand keys


def project_tokens(
  tokens: np.ndarray, num_heads: int, num_kv_heads: int, head_dim: int, dtype: jnp.dtype
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Embeds byte tokens and projects them to queries, keys and values, with fixed seeds.

  Args:
    tokens: uint8 [B, T].
    num_heads: N.
    num_kv_heads: K.
    head_dim: D.
    dtype: Type of the results.

  Returns:
    q [B, T, N, D], k and v [B, T, K, D]. Their entries are about standard normal, so that the
    scaled scores are, too.
  """
  rng = np.random.default_rng(0)
  table = rng.standard_normal((256, _EMBEDDING_WIDTH))

  def project(heads: int) -> jax.Array:
    weights = rng.standard_normal((_EMBEDDING_WIDTH, heads, head_dim)) / np.sqrt(_EMBEDDING_WIDTH)
    projected = einops.einsum(table, weights, "byte w, w n d -> byte n d")
    return jnp.asarray(projected[tokens], dtype)  # the lookup commutes with the projection

  return project(num_heads), project(num_kv_heads), project(num_kv_heads)


def dense_mask(mask: masks.Mask, seq_len: int) -> jax.Array:
  """The mask as bool [B or 1, N or 1, T, T]."""
  return jnp.asarray(mask.to_dense(seq_len, seq_len).reshape(*mask.lead, seq_len, seq_len))


def dense_scores_bytes(q: jax.Array) -> int:
  """Bytes of the float32 scores that `dense_softmax` forms for q [B, T, N, D]."""
  batch, seq_len, num_heads, _ = q.shape
  return 4 * batch * num_heads * seq_len**2


@jax.jit
def dense_softmax(q: jax.Array, k: jax.Array, v: jax.Array, allowed: jax.Array) -> jax.Array:
  """Attention as most people write it: all scores, a mask, a softmax, with float32 statistics.

  Args:
    q: [B, T, N, D].
    k: [B, T, K, D].
    v: [B, T, K, D].
    allowed: bool [B or 1, N or 1, T, T].

  Returns:
    [B, T, N, D] in the type of q; 0 for a query without an allowed key.
  """
  num_kv_heads = k.shape[2]
  allowed = einops.rearrange(
    allowed, "b (k g) t s -> b k g t s", k=num_kv_heads if allowed.shape[1] > 1 else 1
  )
  # float32 matmuls on a TPU round their operands to bfloat16 unless told not to.
  precision = jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
  matmul = functools.partial(jnp.einsum, precision=precision, preferred_element_type=jnp.float32)
  grouped = einops.rearrange(q, "b t (k g) d -> b k g t d", k=num_kv_heads)
  scores = matmul("bkgtd,bskd->bkgts", grouped, k) * q.shape[-1] ** -0.5
  scores = jnp.where(allowed, scores, -jnp.inf)
  m = scores.max(axis=-1, keepdims=True)
  weights = jnp.exp(scores - jnp.where(m == -jnp.inf, 0, m))
  l = weights.sum(axis=-1, keepdims=True)
  # Divided after the matmul: three times as fast on CPU as weights that are divided first.
  out = matmul("bkgts,bskd->bkgtd", weights.astype(v.dtype), v) / jnp.where(l == 0, 1, l)
  return einops.rearrange(out, "b k g t d -> b t (k g) d").astype(q.dtype)


@dataclasses.dataclass(frozen=True)
class Oracle:
  """float64 attention for some or all rows.

  Attributes:
    rows: Token indices, ascending.
    values: float64 [B, rows, N, D].
  """

  rows: np.ndarray
  values: np.ndarray

  def relative_rms(self, out: jax.Array) -> float:
    """Relative RMS error of `out` [B, T, N, D] in the rows of the oracle."""
    return _measure.relative_rms(np.asarray(out)[:, self.rows], self.values)


def float64_oracle(
  q: jax.Array, k: jax.Array, v: jax.Array, mask: masks.Mask, *, max_scores: int = 2**29
) -> Oracle:
  """Dense softmax in float64 on the inputs as they are rounded, some rows at a time.

  Args:
    q: [B, T, N, D].
    k: [B, T, K, D].
    v: [B, T, K, D].
    mask: Which keys each query may use.
    max_scores: Where all rows would need more scores than this, evenly spread groups of rows are
      taken.

  Returns:
    The oracle.
  """
  batch, seq_len, num_heads, _ = q.shape
  q64, k64, v64 = (np.asarray(x).astype(np.float64) for x in (q, k, v))
  starts = np.arange(0, seq_len, _ORACLE_ROWS)
  max_groups = max(1, max_scores // (batch * num_heads * seq_len * _ORACLE_ROWS))
  if len(starts) > max_groups:
    starts = starts[((np.arange(max_groups) + 0.5) * len(starts) / max_groups).astype(int)]
  spans = [(int(start), min(int(start) + _ORACLE_ROWS, seq_len)) for start in starts]
  rows = np.concatenate([np.arange(*span) for span in spans])
  values = np.empty((batch, len(rows), num_heads, v.shape[-1]))
  steps = [(b, n, i) for b in range(batch) for n in range(num_heads) for i in range(len(spans))]
  for b, n, i in _progress.track(steps, "float64 reference"):
    start, stop = spans[i]
    kv_head = n // (num_heads // k.shape[2])
    allowed = mask.select(b % mask.lead[0], n % mask.lead[1]).box(start, stop, 0, seq_len)
    taken = slice(i * _ORACLE_ROWS, i * _ORACLE_ROWS + stop - start)  # only the last span can be shorter
    values[b, taken, n] = _softmax_rows(
      q64[b, start:stop, n], k64[b, :, kv_head], v64[b, :, kv_head], allowed
    )
  return Oracle(rows, values)


def _softmax_rows(q: np.ndarray, k: np.ndarray, v: np.ndarray, allowed: np.ndarray) -> np.ndarray:
  scores = np.where(allowed, q @ k.T * q.shape[-1] ** -0.5, -np.inf)
  m = scores.max(axis=1, keepdims=True)
  weights = np.exp(scores - np.where(np.isfinite(m), m, 0))
  total = weights.sum(axis=1, keepdims=True)
  return weights @ v / np.where(total > 0, total, 1)
