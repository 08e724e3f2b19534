"""Checks of a call, before anything is traced: the rule, the value received and the remedy."""

from __future__ import annotations

import math
import numbers

import jax.numpy as jnp

from blockattn._block_sizes import BlockSizes
from masks import BlockMask, Mask

IMPLEMENTATIONS = ("pallas_tpu", "xla", "reference")
_DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


def check_arrays(q, k, v) -> None:
  """Checks ranks, dtypes and shapes of batched or unbatched q, k and v."""
  for name, x in (("q", q), ("k", k), ("v", v)):
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
      raise TypeError(f"`{name}` must be an array, got {type(x).__name__}. Convert it with jnp.asarray.")
  shapes = f"q {q.shape}, k {k.shape}, v {v.shape}"
  if q.ndim not in (3, 4) or not q.ndim == k.ndim == v.ndim:
    raise ValueError(
      "`q`, `k` and `v` must be [B, T, N, D], [B, S, K, D] and [B, S, K, Dv], or all without B, "
      f"got {shapes}. Add or remove axes so that the ranks agree."
    )
  _check_dtypes(q, k, v)
  for name, other, axes in (("q and k", k, {-1: "D"}), ("q and v", v, {})):
    axes = axes | ({0: "B"} if q.ndim == 4 else {})
    for axis, letter in axes.items():
      if q.shape[axis] != other.shape[axis]:
        raise ValueError(
          f"`{name.replace(' and ', '` and `')}` must agree in {letter}, got {q.shape[axis]} and "
          f"{other.shape[axis]} ({shapes})."
        )
  if k.shape[:-1] != v.shape[:-1]:
    raise ValueError(f"`k` and `v` must agree in all but the last axis, got k {k.shape} and v {v.shape}.")
  num_heads, num_kv_heads = q.shape[-2], k.shape[-2]
  if num_kv_heads < 1 or num_heads % num_kv_heads:
    raise ValueError(
      "The number of query heads must be a multiple of the number of key/value heads, got "
      f"{num_heads} query heads and {num_kv_heads} key/value heads."
    )
  if q.shape[-1] < 1 or v.shape[-1] < 1:
    raise ValueError(f"The head dimensions must be at least 1, got D={q.shape[-1]} and Dv={v.shape[-1]}.")


def _check_dtypes(q, k, v) -> None:
  dtypes = [x.dtype for x in (q, k, v)]
  if len(set(dtypes)) > 1:
    raise TypeError(
      "`q`, `k` and `v` must have the same dtype (dtypes must match), got "
      f"{', '.join(map(str, dtypes))}. Cast them to one of them."
    )
  if dtypes[0] not in _DTYPES:
    raise TypeError(
      f"`q`, `k` and `v` must be float32, bfloat16 or float16, got {dtypes[0]}. Cast them, for example to "
      "float32; accumulation is in float32 in any case."
    )


def check_options(q, scale, logits_soft_cap, sinks) -> None:
  """Checks scale, logits_soft_cap and sinks."""
  for name, value in (("scale", scale), ("logits_soft_cap", logits_soft_cap)):
    if value is None:
      continue
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
      raise TypeError(
        f"`{name}` must be a Python number or None, got {type(value).__name__}. It is compiled into the kernel."
      )
    if not math.isfinite(value):
      raise ValueError(f"`{name}` must be finite, got {name}={value}.")
  if logits_soft_cap is not None and logits_soft_cap <= 0:
    raise ValueError(
      f"`logits_soft_cap` must be positive, got logits_soft_cap={logits_soft_cap}. Use None for no cap."
    )
  if sinks is not None:
    if not hasattr(sinks, "shape") or sinks.shape != (q.shape[-2],):
      raise ValueError(
        f"`sinks` must be [N] = [{q.shape[-2]}], one logit per query head, got "
        f"{getattr(sinks, 'shape', type(sinks).__name__)}."
      )
    if not jnp.issubdtype(sinks.dtype, jnp.floating):
      raise TypeError(f"`sinks` must be floating, got {sinks.dtype}.")


def check_mask(mask, batch: int, num_heads: int, q_len: int, kv_len: int) -> None:
  """Checks that the mask is one and fits the call."""
  if not isinstance(mask, Mask | BlockMask):
    hint = "masks.from_array(mask)" if hasattr(mask, "shape") else "masks.full() for no mask"
    raise TypeError(f"`mask` must be a masks.Mask or masks.BlockMask, got {type(mask).__name__}. Use {hint}.")
  if isinstance(mask, BlockMask) and mask.shape != (q_len, kv_len):
    raise ValueError(
      f"A BlockMask fits only its own lengths (queries, keys) = {mask.shape}, got {(q_len, kv_len)}. "
      "Build it for the lengths of the call, or pass the mask itself."
    )
  for name, size, given in zip(("batch", "heads"), (batch, num_heads), mask.lead, strict=True):
    if given not in (1, size):
      raise ValueError(
        f"The mask's {name} must be 1 or that of q, {size}, got {given}. Build the mask for the {name} of q."
      )


def check_block_sizes(block_sizes, mask) -> None:
  """Checks the type of block_sizes, and that they do not contradict a BlockMask."""
  if block_sizes is not None and not isinstance(block_sizes, BlockSizes):
    raise TypeError(
      f"`block_sizes` must be a BlockSizes or None, got {type(block_sizes).__name__}. "
      "Use BlockSizes(block_q=..., block_kv=...)."
    )
  if block_sizes is None or not isinstance(mask, BlockMask):
    return
  for name in ("block_q", "block_kv"):
    chosen, built = getattr(block_sizes, name), getattr(mask, name)
    if chosen not in (None, built):
      raise ValueError(
        f"`{name}` must be that of the BlockMask, {built}, got {name}={chosen}. Leave it None, or build "
        "the BlockMask with it."
      )


def check_implementation(implementation, dtype, on_tpu: bool) -> None:
  """Checks the name of the implementation, and that it takes the dtype."""
  if implementation is not None and implementation not in IMPLEMENTATIONS:
    raise ValueError(
      f"`implementation` must be one of {', '.join(map(repr, IMPLEMENTATIONS))} or None, got {implementation!r}."
    )
  if implementation == "pallas_tpu" and on_tpu and dtype == jnp.float16:
    raise NotImplementedError(
      "'pallas_tpu' takes float32 and bfloat16 on TPU, which has no float16, got float16. Cast to bfloat16, or "
      "use implementation='xla'."
    )
