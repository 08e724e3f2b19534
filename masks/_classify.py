"""Which tiles a mask leaves empty and which it fills, exactly and without building the dense mask.

Rules give bounds: tiles that may or must contain an allowed pair, tiles that may or must be full.
Bounds compose under `&`, `|` and `~` (three-valued logic over tiles); what they leave open is evaluated, see
masks/_evaluate.py.
"""

from __future__ import annotations

import dataclasses
import typing

import numpy as np

from masks import _checks, _evaluate, _tile_runs
from masks._spans import Spans
from masks._tile_runs import TileRuns

if typing.TYPE_CHECKING:
  from masks._mask import Mask


@dataclasses.dataclass(frozen=True)
class TileGrid:
  """The tiles of a mask: sizes in tokens, `lead` = (batch, heads) that the mask distinguishes."""

  q_len: int
  kv_len: int
  block_q: int
  block_kv: int
  lead: tuple[int, int] = (1, 1)

  @classmethod
  def of(cls, q_len, kv_len, block_q, block_kv, lead) -> TileGrid:
    """Checked sizes: lengths are non-negative (see `check_lengths`), tiles hold at least one token."""
    for name, value in (("block_q", block_q), ("block_kv", block_kv)):
      if _checks.integer(name, value) < 1:
        raise ValueError(f"`{name}` must be at least 1, got {name}={value}.")
    return cls(int(q_len), int(kv_len), int(block_q), int(block_kv), lead)

  @property
  def rows(self) -> int:
    """Tile rows of one example and head."""
    return -(-self.q_len // self.block_q)

  @property
  def cols(self) -> int:
    """Tile columns."""
    return -(-self.kv_len // self.block_kv)

  @property
  def groups(self) -> int:
    """Examples times heads that the mask distinguishes."""
    return self.lead[0] * self.lead[1]

  @property
  def all_rows(self) -> int:
    """Tile rows of all groups, below each other."""
    return self.groups * self.rows

  def complete(self) -> TileRuns:
    """The tiles without ragged tail: the others can never be full."""
    rows = np.arange(self.all_rows)
    rows = rows[(rows % max(self.rows, 1) + 1) * self.block_q <= self.q_len]
    stop = np.full_like(rows, self.kv_len // self.block_kv)
    return _tile_runs.covered(rows, 0 * rows, stop, 1, self.all_rows, self.cols)


@dataclasses.dataclass(frozen=True)
class TileBounds:
  """What is known of every tile.

  Attributes:
    grid: The tiles.
    may_hit: Tiles that may hold an allowed pair; all others hold none.
    must_hit: Tiles that surely hold an allowed pair.
    may_fill: Tiles that may be allowed throughout (ragged tails: within the lengths).
    must_fill: Tiles that surely are.
  """

  grid: TileGrid
  may_hit: TileRuns
  must_hit: TileRuns
  may_fill: TileRuns
  must_fill: TileRuns

  @classmethod
  def exact(cls, grid: TileGrid, hit: TileRuns, fill: TileRuns) -> TileBounds:
    """Bounds that leave nothing open."""
    return cls(grid, hit, hit, fill, fill)

  @property
  def is_exact(self) -> bool:
    """Whether they are known to leave nothing open."""
    return self.may_hit is self.must_hit and self.may_fill is self.must_fill

  @classmethod
  def unknown(cls, grid: TileGrid) -> TileBounds:
    """Bounds that leave everything open."""
    every = _tile_runs.all_tiles(grid.all_rows, grid.cols)
    none = _tile_runs.no_tiles(grid.all_rows, grid.cols)
    return cls(grid, every, none, every, none)

  @classmethod
  def from_spans(cls, spans: Spans, grid: TileGrid) -> TileBounds:
    """Exact bounds of intervals, in O(queries)."""
    return cls.exact(grid, *_tiles_of_spans(spans, grid))

  def __and__(self, other: TileBounds) -> TileBounds:
    """Bounds of the keys that both rules allow."""
    return TileBounds(
      self.grid,
      self.may_hit & other.may_hit,
      (self.must_hit & other.must_fill) | (self.must_fill & other.must_hit),
      self.may_fill & other.may_fill,
      self.must_fill & other.must_fill,
    )

  def __or__(self, other: TileBounds) -> TileBounds:
    """Bounds of the keys that either rule allows."""
    return ~(~self & ~other)

  def __invert__(self) -> TileBounds:
    """Bounds of the complement."""
    return TileBounds(self.grid, ~self.must_fill, ~self.may_fill, ~self.must_hit, ~self.may_hit)


def classify(mask: Mask, grid: TileGrid) -> tuple[TileRuns, TileRuns]:
  """The active tiles and, among them, the full ones. Exact.

  Args:
    mask: Any mask.
    grid: Its tiles.

  Returns:
    Tiles that hold an allowed pair, and tiles that are allowed throughout and have no ragged tail.
  """
  bounds = mask.tile_bounds(grid)
  hit, fill, complete = bounds.must_hit, bounds.must_fill, grid.complete()
  if bounds.is_exact:
    return hit, fill & complete
  open_hit, open_fill = bounds.may_hit - hit, (bounds.may_fill - fill) & complete
  if open_hit.num_tiles or open_fill.num_tiles:
    any_, all_ = _evaluate.decide(mask, grid, open_hit, open_fill)
    hit, fill = hit | any_, fill | all_
  return hit, fill & complete


def _tiles_of_spans(spans: Spans, grid: TileGrid) -> tuple[TileRuns, TileRuns]:
  """Tiles that some query's intervals touch, and tiles that every query's intervals contain."""
  # Segments that no border of tile rows cuts: an interval moves by at most one per query, so that the union
  # of a segment's intervals goes from the first lo to the last hi, and their intersection the other way.
  start = np.union1d(spans.start, np.arange(grid.rows) * grid.block_q)
  spans = spans.cut(start)
  first, last = spans.bounds, spans.ends()
  tile_row = start // grid.block_q
  touched = (first[0] // grid.block_kv, np.where(first[0] < first[1], _ceil_div(last[1], grid.block_kv), 0))
  # A ragged last tile counts as contained here; `classify` takes it out of the full ones.
  inside_stop = np.where(first[1] == grid.kv_len, grid.cols, first[1] // grid.block_kv)
  contained = (_ceil_div(last[0], grid.block_kv), inside_stop)
  need = np.tile(np.maximum(np.bincount(tile_row, minlength=grid.rows), 1), grid.groups)
  return _covered(*touched, tile_row, 1, grid), _covered(*contained, tile_row, need, grid)


def _covered(start, stop, tile_row, need, grid: TileGrid) -> TileRuns:
  """Tiles that enough of the runs [batch, heads, n, segments] of their tile row cover."""
  shape = (*grid.lead, *start.shape[2:])
  groups = np.arange(grid.groups).reshape(*grid.lead, 1, 1) * grid.rows
  row, start, stop = (np.broadcast_to(x, shape).ravel() for x in (groups + tile_row, start, stop))
  return _tile_runs.covered(row, start, stop, need, grid.all_rows, grid.cols)


def _ceil_div(x, block: int):
  return -(-x // block)
