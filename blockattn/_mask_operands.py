"""MaskOperands: what a block mask hands to a program, as few and small arrays as possible."""

from __future__ import annotations

import dataclasses
import typing

import jax
import jax.numpy as jnp
import numpy as np

from masks import BlockMask, TileKind
from masks._linear_runs import LinearRuns
from masks._schedule import DeviceSchedule, Schedule


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MaskOperands:
  """The schedule of a block mask and what its PARTIAL tiles are computed or fetched from.

  Attributes:
    schedule: Active tiles in row or in column order.
    q_tokens: [batch, heads, numbers, q_len] as `LinearRuns`, or the array if traced: the numbers per query
      that `test` takes; None if it takes none.
    kv_tokens: [batch, heads, numbers, kv_len] likewise.
    tiles: [n, block_q, block_kv] int8, the stored PARTIAL tiles; None where `test` computes them.
    tile_ids: [steps] int32, the stored tile of each step or of the next PARTIAL step; None likewise.
    test: Hashable test of (query, key) pairs, see `masks._tile_rule`; None where tiles are stored.
    lead: (batch, heads) that the mask distinguishes.
    rows: Tile rows of one example and head.
    cols: Tile columns.
    is_by_column: Whether the schedule is in column order.
  """

  schedule: Schedule | DeviceSchedule
  q_tokens: typing.Any
  kv_tokens: typing.Any
  tiles: typing.Any
  tile_ids: typing.Any
  test: typing.Any = dataclasses.field(metadata={"static": True})
  lead: tuple[int, int] = dataclasses.field(metadata={"static": True})
  rows: int = dataclasses.field(metadata={"static": True})
  cols: int = dataclasses.field(metadata={"static": True})
  is_by_column: bool = dataclasses.field(metadata={"static": True})

  @classmethod
  def by_row(cls, block_mask: BlockMask) -> MaskOperands:
    """The operands of a block mask, tiles in row order."""
    return cls._of(block_mask, is_by_column=False)

  @classmethod
  def by_column(cls, block_mask: BlockMask) -> MaskOperands:
    """The operands of a block mask, tiles in column order."""
    return cls._of(block_mask, is_by_column=True)

  @classmethod
  def _of(cls, block_mask: BlockMask, is_by_column: bool) -> MaskOperands:
    rule, grid = block_mask.tile_rule, block_mask.grid
    schedule = block_mask.column_schedule if is_by_column else block_mask.schedule
    common = {"schedule": schedule, "lead": grid.lead, "rows": grid.rows, "cols": grid.cols}
    common["is_by_column"] = is_by_column
    if rule is not None:
      return cls(
        q_tokens=_token_runs(rule.q_tokens),
        kv_tokens=_token_runs(rule.kv_tokens),
        tiles=None,
        tile_ids=None,
        test=rule.test,
        **common,
      )
    return cls(
      q_tokens=None,
      kv_tokens=None,
      tiles=block_mask.partial_tiles.astype(np.int8),
      tile_ids=_tile_ids(block_mask, schedule, is_by_column),
      test=None,
      **common,
    )

  def expand_tokens(self) -> tuple:
    """The numbers per query and per key as arrays; None where there are none."""
    return tuple(t.expand() if isinstance(t, LinearRuns) else t for t in (self.q_tokens, self.kv_tokens))


def _token_runs(tokens):
  if not tokens.shape[2]:
    return None
  return LinearRuns.encode(tokens) if isinstance(tokens, np.ndarray) else tokens


def _tile_ids(block_mask: BlockMask, schedule, is_by_column: bool) -> np.ndarray:
  """For each step, the stored tile that it or the next PARTIAL step needs."""
  steps, grid = schedule.expand(np), block_mask.grid
  ids = block_mask.partial_ids.reshape(grid.groups, grid.rows, grid.cols)
  ids = ids.swapaxes(1, 2) if is_by_column else ids
  ids = ids.reshape(-1, ids.shape[2])[steps.outer, steps.inner]
  partial = np.flatnonzero(steps.kinds == TileKind.PARTIAL)
  if not partial.size:
    return np.zeros(schedule.num_steps, np.int32)
  return ids[partial[np.searchsorted(partial, np.arange(schedule.num_steps)) % partial.size]]


def pad_tokens(tokens: jax.Array | None, length: int) -> jax.Array | None:
  """Tokens padded with zeros along their last axis."""
  if tokens is None:
    return None
  return jnp.pad(tokens, ((0, 0), (0, 0), (0, 0), (0, length - tokens.shape[-1])))
