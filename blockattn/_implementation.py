"""Implementation: what every way to compute attention offers."""

from __future__ import annotations

import typing

from masks import BlockMask


class Implementation(typing.Protocol):
  """A hashable object that computes attention and its gradients.

  B = batch, T/S = query/key tokens, N/K = query/key heads, D/Dv = head dimensions.
  """

  def forward(self, q, k, v, sinks, block_mask: BlockMask) -> typing.Any:
    """Attention.

    Args:
      q: [B, T, N, D].
      k: [B, S, K, D].
      v: [B, S, K, Dv].
      sinks: [N] float32 or None.
      block_mask: Of these lengths.

    Returns:
      Output [B, T, N, Dv] in q.dtype, and lse [B, N, T] float32 (natural log).
    """

  def backward(self, q, k, v, dout, lse, delta, block_mask: BlockMask) -> typing.Any:
    """Gradients of q, k and v.

    Args:
      q: [B, T, N, D].
      k: [B, S, K, D].
      v: [B, S, K, Dv].
      dout: [B, T, N, Dv], gradient of the output, in q.dtype.
      lse: [B, N, T] float32.
      delta: [B, N, T] float32, sum(dout * out) minus the gradient of lse.
      block_mask: Of these lengths.

    Returns:
      (dq, dk, dv) in the shapes and dtypes of q, k and v.
    """
