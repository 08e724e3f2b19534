"""AttentionOptions: what is static in a call, whatever implementation runs it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class AttentionOptions:
  """Static choices of a call.

  Attributes:
    scale: Multiplies the scores.
    logits_soft_cap: c in c * tanh(score / c), or None.
  """

  scale: float
  logits_soft_cap: float | None
