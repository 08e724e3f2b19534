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
    schedule: Active tiles in row order.
    q_tokens: [batch, heads, numbers, q_len] as `LinearRuns`, or the array if traced: the numbers per query
      that `test` takes; None if it takes none.
    kv_tokens: [batch, heads, numbers, kv_len] likewise.
    tiles: [n, block_q, block_kv] int8, the stored PARTIAL tiles; None where `test` computes them.
    tile_ids: [steps] int32, the stored tile of each step or of the next PARTIAL step; None likewise.
    test: Hashable test of (query, key) pairs, see `masks._tile_rule`; None where tiles are stored.
    lead: (batch, heads) that the mask distinguishes.
    rows: Tile rows of one example and head.
    cols: Tile columns.
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

  @classmethod
  def of(cls, block_mask: BlockMask) -> MaskOperands:
    """The operands of a block mask."""
    rule, schedule = block_mask.tile_rule, block_mask.schedule
    grid = block_mask.grid
    common = {"schedule": schedule, "lead": grid.lead, "rows": grid.rows, "cols": grid.cols}
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
      tile_ids=_tile_ids(block_mask),
      test=None,
      **common,
    )

  def expand_tokens(self) -> tuple[jax.Array | None, jax.Array | None]:
    """The numbers per query and per key as arrays; None where there are none."""
    return tuple(
      t.expand() if isinstance(t, LinearRuns) else t for t in (self.q_tokens, self.kv_tokens)
    )


def _token_runs(tokens):
  if not tokens.shape[2]:
    return None
  return LinearRuns.encode(tokens) if isinstance(tokens, np.ndarray) else tokens


def _tile_ids(block_mask: BlockMask) -> np.ndarray:
  """For each step in row order, the stored tile that it or the next PARTIAL step needs."""
  steps = block_mask.schedule.expand(np)
  partial = np.flatnonzero(steps.kinds == TileKind.PARTIAL)
  if not partial.size:
    return np.zeros(block_mask.schedule.num_steps, np.int32)
  rows, cols = steps.outer[partial], steps.inner[partial]
  ids = block_mask.partial_ids.reshape(-1, block_mask.grid.cols)[rows, cols]
  return ids[np.searchsorted(partial, np.arange(block_mask.schedule.num_steps)) % partial.size]


def pad_tokens(tokens: jax.Array | None, length: int) -> jax.Array | None:
  """Tokens padded with zeros along their last axis."""
  if tokens is None:
    return None
  return jnp.pad(tokens, ((0, 0), (0, 0), (0, 0), (0, length - tokens.shape[-1])))
