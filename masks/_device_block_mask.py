"""DeviceBlockMask: the block mask of a mask with traced arrays, classified on the device."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.experimental import checkify

from masks import _checks, _draw
from masks._classify import TileGrid
from masks._mask import Mask, require_tile_rule, squeeze_lead
from masks._schedule import DeviceSchedule
from masks._stats import MaskStats
from masks._tile_rule import TileRule
from masks.block_mask import BlockMask
from masks.tile_kind import TileKind


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=["mask", "all_kinds", "schedule", "column_schedule"],
  meta_fields=["grid", "may_overflow"],
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class DeviceBlockMask(BlockMask):
  """Tiles as a dense map; the schedules have room for a fixed number of steps.

  Attributes:
    mask: See `BlockMask`.
    grid: See `BlockMask`.
    all_kinds: [batch, heads, rows, cols] int8.
    schedule: See `BlockMask`.
    column_schedule: See `BlockMask`.
    may_overflow: Whether the capacity is below what the mask could need.
  """

  mask: Mask
  grid: TileGrid
  all_kinds: jax.Array
  schedule: DeviceSchedule
  column_schedule: DeviceSchedule
  may_overflow: bool

  @property
  def kinds(self):
    return squeeze_lead(self.all_kinds)

  @property
  def num_active(self):
    return squeeze_lead((self.all_kinds != TileKind.EMPTY).sum(axis=-1, dtype=jnp.int32))

  @property
  def prefetch_i(self):
    return self._next(self.all_kinds != TileKind.EMPTY) // self.grid.cols

  @property
  def prefetch_j(self):
    return self._next(self.all_kinds != TileKind.EMPTY) % self.grid.cols

  @property
  def prefetch_mask(self):
    self._refuse_stored_tiles("prefetch_mask")

  @property
  def partial_tiles(self):
    self._refuse_stored_tiles("partial_tiles")

  @property
  def partial_ids(self):
    self._refuse_stored_tiles("partial_ids")

  @property
  def tile_rule(self) -> TileRule:
    return require_tile_rule(self.mask, self.q_len, self.kv_len)

  @property
  def overflow(self):
    """Whether the mask needs more steps than its capacity, bool []."""
    return self.schedule.overflow | self.column_schedule.overflow

  def check(self) -> None:
    """Raises if the mask needs more steps than its capacity; under jit, for `jax.experimental.checkify`.

    Raises:
      ValueError: The mask needs more steps, and its arrays are concrete.
    """
    message = f"A traced mask must fit its capacity of {self.schedule.capacity} steps: raise it."
    if isinstance(self.overflow, Tracer):
      checkify.check(~self.overflow, message)
    elif bool(self.overflow):
      raise ValueError(message)

  def stats(self) -> MaskStats:
    return self._on_host().stats()

  def __str__(self):
    return _draw.text(self._on_host())

  def _on_host(self):
    """The exact block mask of the same mask, once its arrays are known."""
    mask = jax.tree.map(lambda x: x, self.mask)  # takes arrays that are concrete by now as values
    if mask.is_traced:
      raise TypeError(
        "The statistics and the picture of a block mask need concrete arrays, got traced ones. Return the "
        "block mask from the jitted function and look at it there."
      )
    return mask.block_mask(self.q_len, self.kv_len, self.block_q, self.block_kv)

  def _next(self, wanted):
    """Flat index of the next wanted tile in row order, wrapping, [rows, cols]; 0 without any."""
    flat = wanted.reshape(*self.lead, -1)
    count = flat.shape[-1]
    index = jnp.where(flat, jnp.arange(count, dtype=jnp.int32), count)
    following = jax.lax.cummin(index, axis=2, reverse=True)
    first = jnp.where(following[..., :1] == count, 0, following[..., :1])
    following = jnp.where(following == count, first, following)
    return squeeze_lead(following.reshape(self.all_kinds.shape))

  def _refuse_stored_tiles(self, name: str):
    raise NotImplementedError(
      f"`{name}` needs a mask without traced arrays; the tiles of this one are computed by its tile_rule. "
      "Build the mask outside of jit."
    )


def build(mask: Mask, grid: TileGrid, capacity: int | None) -> DeviceBlockMask:
  """Bounds the tiles of a mask with traced arrays and lists the active ones."""
  require_tile_rule(mask, grid.q_len, grid.kv_len)
  bounds = mask.device_bounds(grid)
  shape = (*grid.lead, grid.rows, grid.cols)
  complete = jnp.asarray(_complete(grid))
  full = bounds.must_fill & complete
  kinds = jnp.where(full, TileKind.FULL, jnp.where(bounds.may_hit, TileKind.PARTIAL, TileKind.EMPTY))
  kinds = jnp.broadcast_to(kinds, shape).astype(jnp.int8)
  by_row = kinds.reshape(grid.all_rows, grid.cols)
  by_col = kinds.swapaxes(2, 3).reshape(grid.groups * grid.cols, grid.rows)
  needed = _room(mask, grid)
  room = needed if capacity is None else tuple(min(n, _checked(capacity)) for n in needed)
  schedules = (DeviceSchedule.build(x, n) for x, n in zip((by_row, by_col), room, strict=True))
  return DeviceBlockMask(mask, grid, kinds, *schedules, may_overflow=room != needed)


def _checked(capacity) -> int:
  if _checks.integer("capacity", capacity) < 1:
    raise ValueError(f"`capacity` must be at least 1, got capacity={capacity}.")
  return int(capacity)


def _complete(grid: TileGrid) -> np.ndarray:
  """Tiles without ragged tail, bool [rows, cols]."""
  rows, cols = np.arange(1, grid.rows + 1), np.arange(1, grid.cols + 1)
  return (rows * grid.block_q <= grid.q_len)[:, None] & (cols * grid.block_kv <= grid.kv_len)


def _room(mask: Mask, grid: TileGrid) -> tuple[int, int]:
  """Steps that suffice in row and in column order: what the concrete parts of the mask leave possible."""
  possible = np.zeros((grid.all_rows, grid.cols), bool)
  possible[mask.tile_bounds(grid).may_hit.tile_indices()] = True
  by_row = np.maximum(possible.sum(axis=1), 1).sum()
  by_col = possible.reshape(grid.groups, grid.rows, grid.cols).sum(axis=1)
  return int(by_row), int(np.maximum(by_col, 1).sum())
