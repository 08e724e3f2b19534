"""PackedSteps: the schedule as one int32 word per grid step, which is what SMEM has room for."""

from __future__ import annotations

import dataclasses
import typing

import jax
import jax.numpy as jnp

from blockattn._kernels import _limits

_KIND_BITS, _FLAG_BITS, _WORD_BITS = 2, 4, 32
REMEDY = "Use larger block_q and block_kv."


class StepFields(typing.NamedTuple):
  """What a step works on; scalars inside a kernel.

  Attributes:
    batch: Example, where the mask distinguishes examples, else 0.
    head: Query head, where the mask distinguishes heads, else 0.
    q_tile: Tile of queries within the example and head.
    kv_tile: Tile of keys.
    kind: `masks.TileKind`.
    is_first: Nonzero at the first step of an output tile.
    is_last: Nonzero at its last step.
  """

  batch: typing.Any
  head: typing.Any
  q_tile: typing.Any
  kv_tile: typing.Any
  kind: typing.Any
  is_first: typing.Any
  is_last: typing.Any


@dataclasses.dataclass(frozen=True)
class StepLayout:
  """Bit widths of a word: from high to low batch, head, output tile, other tile, kind, is_first, is_last.

  Attributes:
    lead: (batch, heads) that the mask distinguishes.
    rows: Tiles of queries of one example and head.
    cols: Tiles of keys.
    by_column: Whether tiles of keys are the output tiles, as in the backward pass, or tiles of queries.
  """

  lead: tuple[int, int]
  rows: int
  cols: int
  by_column: bool = False

  @property
  def sizes(self) -> tuple[int, int, int, int]:
    """Number of values of each field, from high to low."""
    tiles = (self.cols, self.rows) if self.by_column else (self.rows, self.cols)
    return (*self.lead, *tiles)

  def grid(self, batch: int, heads: int) -> tuple[int, int]:
    """Leading grid sizes: what the schedule distinguishes is in its steps and not in the grid."""
    return (1 if self.lead[0] > 1 else batch, 1 if self.lead[1] > 1 else heads)

  def pack(self, steps) -> jax.Array:
    """One int32 word per step from expanded `masks.Schedule` steps, of NumPy or JAX arrays.

    Raises:
      ValueError: The fields do not fit into a word.
    """
    bits = sum(_bits(n) for n in self.sizes) + _FLAG_BITS
    if bits > _WORD_BITS:
      raise ValueError(
        f"A step of the schedule must fit into {_WORD_BITS} bits, got {bits} for (examples, heads, output "
        f"tiles, other tiles) = {self.sizes}. {REMEDY}"
      )
    group, outer = divmod(steps.outer, self.sizes[2])
    batch, head = divmod(group, self.lead[1])
    word = outer * 0
    for value, size in zip((batch, head, outer, steps.inner), self.sizes, strict=True):
      word = (word << _bits(size)) | value
    word = (word << _KIND_BITS) | steps.kinds
    return (word << 2) | (steps.is_first << 1) | steps.is_last

  def unpack(self, word) -> StepFields:
    """The fields of a word."""
    kind, is_first, is_last = (word >> 2) & 3, (word >> 1) & 1, word & 1
    fields, shift = [], _FLAG_BITS
    for size in reversed(self.sizes):
      bits = _bits(size)
      fields.append((word >> shift) & ((1 << bits) - 1) if bits else 0)
      shift += bits
    inner, outer, head, batch = fields
    q_tile, kv_tile = (inner, outer) if self.by_column else (outer, inner)
    return StepFields(batch, head, q_tile, kv_tile, kind, is_first, is_last)


class PackedSteps(typing.NamedTuple):
  """What kernels prefetch.

  Attributes:
    words: [steps] int32, see `StepLayout`.
    tile_ids: [steps] int32, the stored partial tile that the step or the next PARTIAL one fetches; [1] zero
      when no tiles are stored.
    num_steps: Steps to run, an int or int32 [].
  """

  words: typing.Any
  tile_ids: typing.Any
  num_steps: typing.Any


def pack_schedule(schedule, layout: StepLayout, tile_ids=None) -> PackedSteps:
  """Expands and packs a `masks` schedule; runs under jit.

  Raises:
    ValueError: The words do not fit into SMEM, or the fields into a word.
  """
  steps = schedule.expand()
  num_words = len(steps.outer)
  _limits.check_smem(f"{num_words} active tiles", num_words * (1 if tile_ids is None else 2), REMEDY)
  tile_ids = jnp.zeros(1, jnp.int32) if tile_ids is None else jnp.asarray(tile_ids)
  return PackedSteps(layout.pack(steps), tile_ids, schedule.num_steps)


def _bits(size: int) -> int:
  return max(size - 1, 0).bit_length()
