"""PackedSteps: the schedule as one int32 word per grid step, which is what SMEM has room for."""

from __future__ import annotations

import dataclasses
import typing

import jax
import jax.numpy as jnp

from masks._schedule import DeviceSchedule, Schedule

_KIND_BITS, _FLAG_BITS = 2, 4
WORD_BITS = 32


class StepFields(typing.NamedTuple):
  """What a step works on; scalars inside a kernel.

  Attributes:
    batch: Example, where the mask distinguishes examples, else 0.
    head: Query head, where the mask distinguishes heads, else 0.
    outer: Output tile within the example and head.
    inner: The other tile.
    kind: `masks.TileKind`.
    is_first: Nonzero at the first step of an output tile.
    is_last: Nonzero at its last step.
  """

  batch: typing.Any
  head: typing.Any
  outer: typing.Any
  inner: typing.Any
  kind: typing.Any
  is_first: typing.Any
  is_last: typing.Any


@dataclasses.dataclass(frozen=True)
class StepLayout:
  """Bit widths of a word: from high to low batch, head, outer, inner, kind, is_first, is_last.

  Attributes:
    lead: (batch, heads) that the mask distinguishes.
    num_outer: Output tiles of one example and head.
    num_inner: Tiles along the other axis.
  """

  lead: tuple[int, int]
  num_outer: int
  num_inner: int

  @property
  def sizes(self) -> tuple[int, int, int, int]:
    """Number of values of the fields batch, head, outer and inner."""
    return (*self.lead, self.num_outer, self.num_inner)

  @property
  def bits(self) -> int:
    """Bits of a word in use."""
    return sum(_bits(n) for n in self.sizes) + _FLAG_BITS

  def grid(self, batch: int, heads: int) -> tuple[int, int]:
    """Leading grid sizes: what the schedule distinguishes is in its steps and not in the grid."""
    return tuple(1 if n > 1 else size for n, size in zip(self.lead, (batch, heads), strict=True))

  def pack(self, steps) -> jax.Array:
    """One int32 word per step from expanded `masks.Schedule` steps."""
    group, outer = jnp.divmod(steps.outer, max(self.num_outer, 1))
    batch, head = jnp.divmod(group, self.lead[1])
    word = jnp.zeros_like(outer)
    for value, size in zip((batch, head, outer, steps.inner), self.sizes, strict=True):
      word = (word << _bits(size)) | value
    word = (word << _KIND_BITS) | steps.kinds
    return (word << 2) | (steps.is_first << 1) | steps.is_last

  def unpack(self, word) -> StepFields:
    """The fields of a word."""
    fields = [word & 1, (word >> 1) & 1, (word >> 2) & 3]
    shift = _FLAG_BITS
    for size in reversed(self.sizes):
      bits = _bits(size)
      fields.append((word >> shift) & ((1 << bits) - 1) if bits else 0)
      shift += bits
    return StepFields(*reversed(fields[3:]), kind=fields[2], is_first=fields[1], is_last=fields[0])


@dataclasses.dataclass(frozen=True)
class PackedSteps:
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


def _bits(size: int) -> int:
  return max(size - 1, 0).bit_length()


def pack_schedule(schedule: Schedule | DeviceSchedule, layout: StepLayout, tile_ids=None) -> PackedSteps:
  """Expands and packs a schedule; runs under jit."""
  words = layout.pack(schedule.expand())
  tile_ids = jnp.zeros(1, jnp.int32) if tile_ids is None else jnp.asarray(tile_ids)
  return PackedSteps(words, tile_ids, schedule.num_steps)
