"""What a case of attention is, and the table of all of them."""

import dataclasses
import typing

import numpy as np

import masks
from tests.support import BlockSizes, grid_of


@dataclasses.dataclass
class Case:
  """A call and the mask that it means, as a dense array.

  Attributes:
    inputs: q, k and v.
    mask: What is passed.
    dense: bool, broadcasts to [B, N, T, S]; written out without the package.
    options: scale, logits_soft_cap and sinks of the call.
    block_sizes: Tiles.
    amplitude: Of q and k, which decides the tolerance.
  """

  inputs: tuple
  mask: masks.Mask
  dense: np.ndarray
  options: dict = dataclasses.field(default_factory=dict)
  block_sizes: BlockSizes | None = dataclasses.field(default_factory=lambda: BlockSizes(128, 128))
  amplitude: int = 1


CASES: dict[str, typing.Callable[[], Case]] = {}

# Those whose point is how a kernel is tiled and launched.
KERNEL_ONLY: set[str] = set()

# Those in which the interpreter that emulates TPU memory can find what the plain one cannot: revisited
# output blocks, indices out of range, memory that was never written.
EMULATED: set[str] = set()


def register(name, *, emulated=False, kernel_only=False):
  def add(build):
    CASES[name] = build
    if emulated:
      EMULATED.add(name)
    if kernel_only:
      KERNEL_ONLY.add(name)
    return build

  return add


def causal(q_len, kv_len, offset=0):
  i, j = grid_of(q_len, kv_len)
  return j <= i + offset


def same_id(q_ids, kv_ids=None):
  q_ids, kv_ids = np.asarray(q_ids), np.asarray(q_ids if kv_ids is None else kv_ids)
  return (q_ids[..., :, None] == kv_ids[..., None, :]) & (q_ids[..., :, None] >= 0)
