"""explain: what a call of block_sparse_attention would do."""

from __future__ import annotations

import dataclasses

from blockattn import _api
from blockattn._block_sizes import BlockSizes
from masks import MaskStats


@dataclasses.dataclass(frozen=True)
class Explanation:
  """What a call would do; `print` it.

  Attributes:
    implementation: Which implementation runs.
    reason: Why this one.
    interpreted: Whether its Pallas kernels run in the interpreter.
    block_sizes: Tile sizes.
    sizes_from: Where these come from: "call", "block mask" or "default".
    partial_tiles: "computed" in the kernel, or "stored" and fetched.
    stats: Tiles and pairs of the mask.
    flops: Floating-point operations of the two matmuls over active tiles, all heads and examples.
    dense_flops: The same without skipping.
  """

  implementation: str
  reason: str
  interpreted: bool
  block_sizes: BlockSizes
  sizes_from: str
  partial_tiles: str
  stats: MaskStats
  flops: int
  dense_flops: int

  def __str__(self):
    interpreted = ", interpreted: correct but slow" if self.interpreted else ""
    share = self.flops / self.dense_flops if self.dense_flops else 0.0
    return "\n".join(
      [
        f"implementation: {self.implementation} ({self.reason}{interpreted})",
        f"block sizes:    {self.block_sizes} (from: {self.sizes_from})",
        f"tiles:          {self.stats}",
        f"partial tiles:  {self.partial_tiles}",
        f"matmul FLOPs:   {self.flops:.3e}, {share:.1%} of dense {self.dense_flops:.3e}",
      ]
    )


def explain(
  q, k, v, mask, *, scale=None, logits_soft_cap=None, sinks=None, block_sizes=None, implementation=None
) -> Explanation:
  """Says what `block_sparse_attention` would do with these arguments, without doing it.

  Args:
    q: As in `block_sparse_attention`; arrays or `jax.ShapeDtypeStruct`.
    k: Likewise.
    v: Likewise.
    mask: As in `block_sparse_attention`.
    scale: Likewise.
    logits_soft_cap: Likewise.
    sinks: Likewise.
    block_sizes: Likewise.
    implementation: Likewise.

  Returns:
    The explanation.

  Raises:
    ValueError: As `block_sparse_attention`.
    TypeError: As `block_sparse_attention`.
    NotImplementedError: As `block_sparse_attention`.

  >>> import jax, masks
  >>> q = jax.ShapeDtypeStruct((1, 512, 8, 64), "float32")
  >>> explanation = explain(q, q, q, masks.causal(), block_sizes=BlockSizes(block_q=128, block_kv=128))
  >>> explanation.implementation, explanation.stats.num_active
  ('xla', 10)
  """
  plan = _api.plan_call(q, k, v, mask, scale, logits_soft_cap, sinks, block_sizes, implementation)
  block_mask = plan.block_mask
  batch, num_heads = q.shape[0] if q.ndim == 4 else 1, q.shape[-2]
  per_tile = 2 * block_mask.block_q * block_mask.block_kv * (q.shape[-1] + v.shape[-1])
  copies = batch * num_heads // block_mask.grid.groups
  stats = block_mask.stats()
  dense = plan.implementation == "reference"
  return Explanation(
    implementation=plan.implementation,
    reason=plan.reason,
    interpreted=plan.implementation == "pallas_tpu" and plan.interpret is not False,
    block_sizes=plan.block_sizes,
    sizes_from=plan.sizes_from,
    partial_tiles="none" if not stats.num_partial else "computed" if block_mask.tile_rule else "stored",
    stats=stats,
    flops=per_tile * copies * (stats.num_tiles if dense else stats.num_active),
    dense_flops=per_tile * copies * stats.num_tiles,
  )
