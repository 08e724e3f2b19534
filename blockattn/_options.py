"""AttentionOptions: what is static in a call, whatever implementation runs it."""

import dataclasses

import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class AttentionOptions:
  """Static choices of a call.

  Attributes:
    scale: Multiplies the scores.
    logits_soft_cap: c in c * tanh(score / c), or None.
  """

  scale: float
  logits_soft_cap: float | None

  @property
  def score_unit(self) -> float:
    """Logits (natural log) per unit of what `scores` returns; positive.

    Maxima are taken and subtracted in scores and only the difference is scaled. Scaled first, huge equal
    logits can differ by a rounding, or by a fused multiply-add, which the exponential turns into infinity.
    """
    if self.logits_soft_cap is not None:
      return self.logits_soft_cap
    return self.scale if self.scale > 0 else 1.0

  def scores(self, products):
    """Scores of q . k products, float32: logits = score_unit * scores."""
    if self.logits_soft_cap is not None:
      return jnp.tanh(products * (self.scale / self.logits_soft_cap))
    return products if self.scale > 0 else products * self.scale
