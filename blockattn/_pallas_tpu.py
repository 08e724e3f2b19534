"""The TPU implementation: arranges operands for the Pallas kernel and launches it."""

from __future__ import annotations

import einops
import jax.numpy as jnp

from blockattn._kernels import attention_forward, packed_steps
from blockattn._mask_operands import MaskOperands
from blockattn._options import AttentionOptions


def attend(q, k, v, sinks, operands: MaskOperands, options: AttentionOptions, *, tiling, interpret):
  """Attention over the active tiles by the Pallas kernel.

  Args:
    q: [B, T, N, D].
    k: [B, S, K, D].
    v: [B, S, K, Dv].
    sinks: [N] float32 or None.
    operands: Of the block mask.
    options: Static choices.
    tiling: `KernelTiling` from `_block_sizes`.
    interpret: See `blockattn._compat`.

  Returns:
    Output [B, T, N, Dv] in q.dtype, and lse [B, N, T] float32.
  """
  layout = packed_steps.StepLayout(operands.lead, operands.rows, operands.cols)
  steps = packed_steps.pack_schedule(operands.schedule, layout, operands.tile_ids)
  q_tokens, kv_tokens = operands.expand_tokens()
  to_heads = "b t n d -> b n t d"
  inputs = attention_forward.ForwardInputs(
    q=einops.rearrange(q, to_heads),
    k=einops.rearrange(k, to_heads),
    v=einops.rearrange(v, to_heads),
    sinks=None if sinks is None else sinks[:, None],
    q_tokens=q_tokens,
    kv_tokens=None if kv_tokens is None else kv_tokens.swapaxes(2, 3),
    tiles=None if operands.tiles is None else jnp.asarray(operands.tiles).swapaxes(1, 2),
  )
  config = attention_forward.ForwardConfig(
    tiling=tiling,
    scale=options.scale,
    logits_soft_cap=options.logits_soft_cap,
    test=operands.test,
    layout=layout,
    interpret=interpret,
  )
  out, lse = attention_forward.attention_forward(inputs, steps, config)
  return einops.rearrange(out, "b n t d -> b t n d"), lse[:, :, 0]
