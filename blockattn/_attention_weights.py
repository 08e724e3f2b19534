"""attention_weights: the probabilities of attention, of the active tiles only, for inspection."""

from __future__ import annotations

import functools
from typing import Any

import einops
import jax
import jax.numpy as jnp
import numpy as np

from blockattn._block_matmul import masked_blocks
from blockattn._kernels import _limits
from blockattn._mask_argument import resolve_block_mask
from blockattn.block_coo import BlockCOO
from masks import BlockMask, Mask


def attention_weights(
  q: jax.Array,
  k: jax.Array,
  mask: Mask | BlockMask,
  *,
  scale: float | None = None,
  block_shape: tuple[int, int] | None = None,
  preferred_element_type: Any = None,
) -> BlockCOO:
  """The attention probabilities softmax(scale * q @ k.T) as a block-sparse matrix per head.

  Stores the active tiles of `mask` and nothing else, so that the weights of a long context can be
  looked at whose dense matrix does not fit. `dsd_matmul(weights, v)` is the attention output.

  B = batch, T/S = query/key tokens, N/K = query/key heads, D = head_dim, n = active tiles.

  Args:
    q: [T, D], [T, N, D] or [B, T, N, D], float32 or bfloat16.
    k: [S, D], [S, K, D] or [B, S, K, D], likewise. N is a multiple of K.
    mask: Which keys each query may use; the same for all batches and heads.
    scale: What the scores are multiplied by; None is 1/sqrt(D).
    block_shape: Tile size for a Mask, multiples of (8, 128) or all of (T, S); None is (512, 512),
      less for short sequences.
    preferred_element_type: dtype of the weights; None is that of `q`. Scores and softmax are
      float32 always.

  Returns:
    BlockCOO of shape (T, S). Its blocks are [n, block_q, block_kv], with [N] or [B, N] in front as
    in `q`; all heads share `rows` and `cols`. Every row of the matrix sums to 1, and is zero where
    no key is allowed.

  Raises:
    TypeError: `mask` is no mask, or a dtype is neither float32 nor bfloat16.
    ValueError: Shapes that do not fit together; a mask of another shape, or that differs between
      heads; a block size that is illegal on TPU.
    NotImplementedError: A mask with traced arrays.

  Examples:
    >>> import masks
    >>> from blockattn import dsd_matmul
    >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 256, 2, 64))  # B=1, T=256, N=2, D=64
    >>> weights = attention_weights(q, k, masks.sliding_window(16), block_shape=(64, 128))
    >>> weights
    BlockCOO(shape=(256, 256), block_shape=(64, 128), dtype=float32, capacity=5, num_blocks=5, batch=(1, 2))
    >>> dsd_matmul(weights, v.swapaxes(1, 2)).shape
    (1, 2, 256, 64)
  """
  _check_operands(q, k)
  dtype = jnp.dtype(q.dtype if preferred_element_type is None else preferred_element_type)
  _limits.check_float("preferred_element_type", dtype)
  scores = _scores(q, k, mask, q.shape[-1] ** -0.5 if scale is None else scale, block_shape)
  blocks = _row_softmax(scores.blocks, scores.rows, num_rows=scores.grid_shape[0], dtype=dtype)
  if q.ndim > 2:
    blocks = einops.rearrange(blocks, "... k g n bq bkv -> ... (k g) n bq bkv")
  return BlockCOO(blocks, scores.rows, scores.cols, scores.shape)


def _scores(q, k, mask, scale, block_shape) -> BlockCOO:
  """The scores in float32, heads as [..., K, N // K], and -inf where the mask is False."""
  if q.ndim == 2:
    x, y = q, k
  else:
    x = einops.rearrange(q, "... t (k g) d -> ... k g t d", k=k.shape[-2])
    y = einops.rearrange(k, "... s k d -> ... k 1 s d")
  block_mask = resolve_block_mask(mask, (x.shape[-2], y.shape[-2]), block_shape, default=(512, 512))
  return masked_blocks(
    x,
    y,
    block_mask,
    out_dtype=jnp.dtype(jnp.float32),
    scale=float(scale),
    fill=-np.inf,
    transpose_y=True,
  )


@functools.partial(jax.jit, static_argnames=("num_rows", "dtype"))
def _row_softmax(scores: jax.Array, rows: jax.Array, *, num_rows: int, dtype: Any) -> jax.Array:
  """Softmax along the rows of a block-sparse matrix.

  Args:
    scores: [..., n, bm, bn] float32; -inf where nothing is stored.
    rows: [n], the block row of each.
    num_rows: Of blocks.
    dtype: Of the result.

  Returns:
    [..., n, bm, bn]; 0 where the score is -inf, also in a row that has nothing else.
  """
  per_row = (*scores.shape[:-3], num_rows, scores.shape[-2])
  m = jnp.full(per_row, -jnp.inf).at[..., rows, :].max(scores.max(axis=-1))
  m = jnp.where(m == -jnp.inf, 0, m)  # -inf - -inf is NaN
  weights = jnp.exp(scores - m[..., rows, :, None])
  total = jnp.zeros(per_row).at[..., rows, :].add(weights.sum(axis=-1))
  total = jnp.where(total == 0, 1, total)
  return (weights / total[..., rows, :, None]).astype(dtype)


def _check_operands(q: jax.Array, k: jax.Array) -> None:
  for name, operand in (("q", q), ("k", k)):
    _limits.check_float(name, operand.dtype)
  if q.ndim not in (2, 3, 4) or k.ndim != q.ndim or 0 in q.shape + k.shape:
    raise ValueError(
      "`q` and `k` must both be [tokens, D], [tokens, heads, D] or [B, tokens, heads, D] and not "
      f"empty, got shapes {q.shape} and {k.shape}. Add or drop the batch dimension."
    )
  if q.shape[-1] != k.shape[-1] or (q.ndim == 4 and q.shape[0] != k.shape[0]):
    raise ValueError(
      f"`q` and `k` must agree in head_dim and batch, got shapes {q.shape} and {k.shape}. "
      "Pad or repeat one of them."
    )
  if q.ndim > 2 and q.shape[-2] % k.shape[-2]:
    raise ValueError(
      "The heads of `q` must be a multiple of the heads of `k`, "
      f"got {q.shape[-2]} and {k.shape[-2]}. Repeat the heads of `k`."
    )
