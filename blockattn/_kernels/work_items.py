"""WorkItems: what the forward kernel does in each grid step, as lists of int32 words in SMEM.

A grid step holds one tile of queries and a chunk of keys in VMEM. Its items say which parts of that rectangle
are active: whole tiles without mask code, and strips (sub_q queries) of one or more sub-tiles of keys.
"""

from __future__ import annotations

import dataclasses
import typing

from jax.experimental import pallas as pl

from blockattn._kernels.packed_steps import REMEDY


class SubTile(typing.NamedTuple):
  """A sub-tile of a tile.

  Attributes:
    strip: Its strip of queries; in a part, a scalar of the kernel.
    col: Its position along the keys.
    kinds: `TileKind` of each of its cells, side by side along the queries; not all EMPTY.
  """

  strip: typing.Any
  col: int
  kinds: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ItemLayout:
  """Bit fields of an item: from high to low body, strip, first column, count.

  Body 0 works on `count` whole tiles without mask, then come a body for each pattern, which works on part of a
  tile, and one for each length of parts, which work on one strip. Columns and strips are those of the block mask
  that is worked on: of sub-tiles where masks are computed, of whole tiles where they are stored.

  Attributes:
    strips: Rows of the block mask per tile of queries.
    cols: Columns per chunk of keys.
    width: Columns per whole tile.
    col_keys: Keys per column.
    cells: Cells into which the queries of a sub-tile are cut, of which patterns know which are active.
    patterns: Sub-tiles that each pattern works on.
    parts: Sub-tiles that each part works on, all in strip 0, for which the strip of an item stands.
  """

  strips: int
  cols: int
  width: int
  col_keys: int
  cells: int
  patterns: tuple[tuple[SubTile, ...], ...]
  parts: tuple[tuple[SubTile, ...], ...]

  @property
  def first_pattern(self) -> int:
    """Number of the first pattern's body."""
    return 1

  @property
  def first_part(self) -> int:
    """Number of the longest part's body."""
    return 1 + len(self.patterns)

  def first_key(self, col):
    """First key of a column, in the chunk."""
    return pl.multiple_of(col * self.col_keys, self.col_keys)

  def pack(self, body, strip, col, count):
    """The word of an item; also of arrays of either library.

    Raises:
      ValueError: The fields do not fit into a word.
    """
    bits = sum(self._bits)
    if bits > 31:
      raise ValueError(
        f"An item of the schedule must fit into 31 bits, got {bits} for {self.strips} strips and {self.cols} "
        f"columns. {REMEDY}"
      )
    word = body
    for value, size in zip((strip, col, count), self._bits[1:], strict=True):
      word = (word << size) | value
    return word

  def unpack(self, word) -> tuple:
    """(body, strip, col, count) of a word."""
    values = []
    for size in reversed(self._bits[1:]):
      values.append(word & ((1 << size) - 1))
      word = word >> size
    return word, *reversed(values)

  @property
  def _bits(self) -> tuple[int, ...]:
    most = (len(self.patterns) + len(self.parts), self.strips - 1, self.cols - 1, self.cols)
    return tuple(n.bit_length() for n in most)


class WorkItems(typing.NamedTuple):
  """What the forward kernel prefetches.

  Attributes:
    steps: [steps] int32, see `packed_steps.StepLayout`; the other tile is a chunk of keys.
    first_item: [steps + 1] int32, where the items of each step begin.
    items: [items] int32, see `ItemLayout`.
    tile_ids: [items] int32, the stored tile of each item; [1] where no tiles are stored.
  """

  steps: typing.Any
  first_item: typing.Any
  items: typing.Any
  tile_ids: typing.Any
