"""Tile bounds of masks whose arrays are traced: dense maps, computed on the device.

Shapes must not depend on values there, so tiles are a dense map and not runs. Bounds are conservative: an
EMPTY tile surely holds no allowed pair and a FULL one nothing else; PARTIAL tiles are computed by the kernel,
so results are exact whatever the bounds leave open.
"""

from __future__ import annotations

import typing

import jax.numpy as jnp

from masks import _classify
from masks._tile_runs import TileRuns

if typing.TYPE_CHECKING:
  from masks._classify import TileGrid
  from masks._mask import Mask


class DeviceBounds(typing.NamedTuple):
  """Dense bool maps [batch, heads, rows, cols], with 1 where all examples or heads agree.

  Attributes:
    may_hit: Tiles that may hold an allowed pair.
    must_fill: Tiles that surely are allowed throughout, ragged tails within the lengths.
  """

  may_hit: typing.Any
  must_fill: typing.Any

  def __and__(self, other: DeviceBounds) -> DeviceBounds:
    """Bounds of the keys that both rules allow."""
    return DeviceBounds(self.may_hit & other.may_hit, self.must_fill & other.must_fill)

  def __or__(self, other: DeviceBounds) -> DeviceBounds:
    """Bounds of the keys that either rule allows."""
    return DeviceBounds(self.may_hit | other.may_hit, self.must_fill | other.must_fill)

  def __invert__(self) -> DeviceBounds:
    """Bounds of the complement."""
    return DeviceBounds(~self.must_fill, ~self.may_hit)


def of_concrete(mask: Mask, grid: TileGrid) -> DeviceBounds:
  """Exact bounds of a mask without traced arrays, carried into the program as runs."""
  own = _classify.TileGrid(grid.q_len, grid.kv_len, grid.block_q, grid.block_kv, mask.lead)
  hit, fill = _classify.classify(mask, own)
  return DeviceBounds(_dense(hit, own), _dense(fill, own))


def _dense(tiles: TileRuns, grid: TileGrid):
  """The set as a map, from its runs by a scatter and a sum along rows."""
  edges = jnp.zeros((grid.all_rows, grid.cols + 1), jnp.int8)
  edges = edges.at[tiles.row, tiles.start].add(1).at[tiles.row, tiles.stop].add(-1)
  inside = jnp.cumsum(edges[:, : grid.cols], axis=1, dtype=jnp.int8) > 0
  return inside.reshape(*grid.lead, grid.rows, grid.cols)


def of_key_limits(limits, grid: TileGrid) -> DeviceBounds:
  """Bounds of `key < limits[b]`, limits [batch]."""
  first = jnp.arange(grid.cols) * grid.block_kv
  last = jnp.minimum(first + grid.block_kv, grid.kv_len)
  shape = (limits.shape[0], 1, grid.rows, grid.cols)
  hit, fill = (limits[:, None, None, None] >= x for x in (first + 1, last))
  return DeviceBounds(jnp.broadcast_to(hit, shape), jnp.broadcast_to(fill, shape))


def of_ids(q_ids, kv_ids, grid: TileGrid) -> DeviceBounds:
  """Bounds of equal, non-negative ids from the range of ids in each tile; exact for sorted ids."""
  q_low, q_high = _ranges(q_ids, grid.rows, grid.block_q)
  kv_low, kv_high = _ranges(kv_ids, grid.cols, grid.block_kv)
  q_low, q_high = (x[:, None, :, None] for x in (q_low, q_high))
  kv_low, kv_high = (x[:, None, None, :] for x in (kv_low, kv_high))
  hit = (jnp.maximum(q_low, kv_low) <= jnp.minimum(q_high, kv_high)) & (q_high >= 0) & (kv_high >= 0)
  # Padding has ids below 0, so a tile that holds any does not count as filled by one id.
  q_least, kv_least = (
    _reduce(ids, n, block, jnp.iinfo(jnp.int32).max, jnp.min)
    for ids, n, block in ((q_ids, grid.rows, grid.block_q), (kv_ids, grid.cols, grid.block_kv))
  )
  one_id = (q_least[:, None, :, None] == q_high) & (kv_least[:, None, None, :] == kv_high)
  fill = one_id & (q_high == kv_high) & (q_high >= 0)
  return DeviceBounds(hit, fill)


def _ranges(ids, num_tiles: int, block: int):
  """(least, greatest) id of the tokens of each tile that are not padding; (max, -1) without any."""
  most = jnp.iinfo(jnp.int32).max
  low = _reduce(jnp.where(ids < 0, most, ids), num_tiles, block, most, jnp.min)
  return low, _reduce(jnp.where(ids < 0, -1, ids), num_tiles, block, -1, jnp.max)


def _reduce(ids, num_tiles: int, block: int, fill: int, reduction):
  padded = jnp.pad(ids, ((0, 0), (0, num_tiles * block - ids.shape[1])), constant_values=fill)
  return reduction(padded.reshape(ids.shape[0], num_tiles, block), axis=2)
