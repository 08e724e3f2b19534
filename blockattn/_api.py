"""block_sparse_attention: checks the call, picks an implementation and runs it."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from blockattn import _compat, _pallas_tpu, _reference, _validate, _vjp, _xla
from blockattn._block_sizes import BlockSizes, choose_blocks, kernel_tiling
from blockattn._implementation import Implementation
from blockattn._options import AttentionOptions
from masks import BlockMask, Mask


@dataclasses.dataclass(frozen=True)
class Plan:
  """How a call runs.

  Attributes:
    implementation: Name of the implementation.
    reason: Why this one.
    block_sizes: Tile sizes, chosen.
    sizes_from: Where they come from: "call", "block mask" or "default".
    block_mask: The tiles.
    options: Static choices.
    interpret: How Pallas kernels run, see `blockattn._compat`.
  """

  implementation: str
  reason: str
  block_sizes: BlockSizes
  sizes_from: str
  block_mask: BlockMask
  options: AttentionOptions
  interpret: _compat.InterpretMode


def block_sparse_attention(
  q,
  k,
  v,
  mask: Mask | BlockMask,
  *,
  scale: float | None = None,
  logits_soft_cap: float | None = None,
  sinks=None,
  return_lse: bool = False,
  block_sizes: BlockSizes | None = None,
  implementation: str | None = None,
):
  """Attention that computes only the tiles of the score matrix that the mask keeps.

  out[i] = sum_j softmax_j(cap(scale * q[i] . k[j]) + mask[i, j]) v[j], where cap(x) = c * tanh(x / c) for
  logits_soft_cap = c, and the softmax runs over the allowed keys (and the sink). Accumulation and softmax
  statistics are float32 for every dtype.

  B = batch, T/S = query/key tokens, N/K = query/key heads, D/Dv = head dimensions. Query head n reads
  key/value head n // (N / K).

  Args:
    q: [B, T, N, D], float32, bfloat16 or (off TPU) float16; or [T, N, D].
    k: [B, S, K, D] in the dtype of q, or [S, K, D]. N is a multiple of K.
    v: [B, S, K, Dv] in the dtype of q, or [S, K, Dv].
    mask: Which keys each query may use: a `masks.Mask`, or the `masks.BlockMask` of these lengths.
    scale: Multiplies the scores. None means 1 / sqrt(D).
    logits_soft_cap: c in c * tanh(score / c), applied after the scale and before the mask; None means none.
    sinks: [N] floating, an extra logit per query head that only enters the softmax denominator; or None.
    return_lse: Whether to return the log-sum-exp of each row as well.
    block_sizes: Tile sizes; None, or fields that are None, let the package choose.
    implementation: "pallas_tpu" (the TPU kernel; interpreted, slowly, off TPU), "xla" (skips tiles on any
      device) or "reference" (dense, for tests). None means "pallas_tpu" on TPU and "xla" elsewhere.

  Returns:
    Output [B, T, N, Dv] in q.dtype, and with return_lse also lse [B, N, T] float32 (natural log), both
    without B if q has none. A row with no allowed key gives 0 and -inf (with sinks: the sink's logit).

  Raises:
    ValueError: Shapes, lengths, head counts, options or block sizes that do not fit together.
    TypeError: Other dtypes, mixed dtypes, or a mask that is not one.
    NotImplementedError: The named implementation cannot do this; the message names one that can.

  References:
    Dao, FlashAttention-2, arXiv:2307.08691, section 3.1; Milakov and Gimelshein, Online normalizer
    calculation for softmax, arXiv:1805.02867.

  >>> import jax, masks
  >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 256, 4, 64))
  >>> out = block_sparse_attention(q, k, v, masks.causal() & masks.sliding_window(100))
  >>> out.shape
  (1, 256, 4, 64)
  """
  plan = plan_call(q, k, v, mask, scale, logits_soft_cap, sinks, block_sizes, implementation)
  batched = q.ndim == 4
  if not batched:
    q, k, v = (x[None] for x in (q, k, v))
  out, lse = _run(q, k, v, sinks, plan)
  if not batched:
    out, lse = out[0], lse[0]
  return (out, lse) if return_lse else out


def plan_call(
  q, k, v, mask, scale=None, logits_soft_cap=None, sinks=None, block_sizes=None, implementation=None
) -> Plan:
  """Checks a call and decides how it runs; q, k and v need only shapes and dtypes."""
  _validate.check_arrays(q, k, v)
  _validate.check_options(q, scale, logits_soft_cap, sinks)
  q_len, num_heads, head_dim = q.shape[-3:]
  kv_len = k.shape[-3]
  _validate.check_mask(mask, q.shape[0] if q.ndim == 4 else 1, num_heads, q_len, kv_len)
  _validate.check_block_sizes(block_sizes, mask)
  interpret = _compat.resolve_interpret()
  _validate.check_implementation(implementation, q.dtype, on_tpu=interpret is False)
  name, reason = _pick(implementation)
  sizes = block_sizes or BlockSizes()
  given = sizes.block_q is not None or sizes.block_kv is not None
  sizes_from = "call" if given else "default"
  if isinstance(mask, BlockMask):
    sizes = dataclasses.replace(sizes, block_q=mask.block_q, block_kv=mask.block_kv)
    sizes_from, block_mask = "block mask", mask
  else:
    sizes = choose_blocks(sizes, name, q_len, kv_len)
    block_mask = mask.block_mask(q_len, kv_len, sizes.block_q, sizes.block_kv)
  if name == "pallas_tpu":
    kernel_tiling(sizes, compiled=interpret is False)
  cap = None if logits_soft_cap is None else float(logits_soft_cap)
  options = AttentionOptions(head_dim**-0.5 if scale is None else float(scale), cap)
  return Plan(name, reason, sizes, sizes_from, block_mask, options, interpret)


def _pick(implementation: str | None) -> tuple[str, str]:
  if implementation is not None:
    return implementation, "named in the call"
  platform = _compat.default_platform()
  if platform == "tpu":
    return "pallas_tpu", "the default device is a TPU"
  return "xla", f"the default device is a {platform.upper()}, not a TPU"


def _run(q, k, v, sinks, plan: Plan):
  if sinks is not None:
    sinks = sinks.astype(jnp.float32)
  if 0 in q.shape or 0 in k.shape:
    return _nothing_to_attend(q, v, sinks)
  if plan.implementation == "reference":
    return _reference.Reference(plan.options).forward(q, k, v, sinks, plan.block_mask)
  out, lse = _vjp.attend(_implementation(plan), q, k, v, sinks, plan.block_mask)  # pyright: ignore
  if not plan.block_mask.may_overflow:
    return out, lse
  # Never a truncated result: NaN throughout where a traced mask needs more steps than its capacity.
  overflow = plan.block_mask.overflow
  return tuple(jnp.where(overflow, jnp.nan, x).astype(x.dtype) for x in (out, lse))


def _implementation(plan: Plan) -> Implementation:
  if plan.implementation == "xla":
    return _xla.Xla(plan.options, plan.block_mask.block_q, plan.block_mask.block_kv)
  tiling = kernel_tiling(plan.block_sizes, compiled=plan.interpret is False)
  return _pallas_tpu.PallasTpu(plan.options, tiling, plan.interpret)


def _nothing_to_attend(q, v, sinks):
  """Results where there is no query, or no key for any query."""
  batch, q_len, num_heads, _ = q.shape
  lse = jnp.full((batch, num_heads, q_len), -jnp.inf, jnp.float32)
  if sinks is not None:
    lse = jnp.maximum(lse, sinks[:, None])
  return jnp.zeros((batch, q_len, num_heads, v.shape[-1]), q.dtype), lse
