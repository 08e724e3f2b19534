"""Schedule: the order in which a kernel visits the active tiles.

All tiles of one output block stand next to each other, and a block without active tile keeps one EMPTY
step, in which the kernel writes its zeros. A schedule is stored as runs of consecutive tiles and expanded
to one entry per step by array operations that also run under jit, so programs do not carry long constants.
"""

from __future__ import annotations

import dataclasses
import typing

import jax
import jax.numpy as jnp
import numpy as np

from masks.tile_kind import TileKind


class Steps(typing.NamedTuple):
  """One entry per step, int32 [num_steps].

  Attributes:
    outer: Output tile (of all groups below each other), in order.
    inner: The other tile.
    kinds: `TileKind` of the tile.
    is_first: 1 at the first step of an output tile.
    is_last: 1 at its last step.
  """

  outer: typing.Any
  inner: typing.Any
  kinds: typing.Any
  is_first: typing.Any
  is_last: typing.Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Schedule:
  """Runs of consecutive tiles with one kind, by output tile.

  Attributes:
    outer: [runs] int32, output tile of each run, non-decreasing; every output tile has a run.
    start: [runs] int32, first inner tile.
    lengths: [runs] int32, tiles in the run.
    kinds: [runs] int32, `TileKind`.
    num_steps: Steps in all.
  """

  outer: typing.Any
  start: typing.Any
  lengths: typing.Any
  kinds: typing.Any
  num_steps: int = dataclasses.field(metadata={"static": True})

  @classmethod
  def build(cls, outer, start, stop, kinds, num_outer: int) -> Schedule:
    """From the runs of active tiles in order; adds an EMPTY step for each output tile without one."""
    idle = np.setdiff1d(np.arange(num_outer), outer)
    outer = np.concatenate([outer, idle])
    start = np.concatenate([start, np.zeros_like(idle)])
    lengths = np.concatenate([stop, np.ones_like(idle)]) - start
    kinds = np.concatenate([kinds, np.full_like(idle, TileKind.EMPTY)])
    order = np.argsort(outer, kind="stable")
    runs = (x[order].astype(np.int32) for x in (outer, start, lengths, kinds))
    return cls(*runs, num_steps=int(lengths.sum()))

  def expand(self, xp=jnp) -> Steps:
    """One entry per step, computed by `xp` (jax.numpy or numpy)."""
    if xp is np:
      run = np.repeat(np.arange(len(self.outer)), self.lengths)
    else:
      run = jnp.repeat(jnp.arange(len(self.outer)), self.lengths, total_repeat_length=self.num_steps)
    outer, kinds = (xp.asarray(x)[run] for x in (self.outer, self.kinds))
    lengths = xp.asarray(self.lengths)
    begin = (xp.cumsum(lengths) - lengths)[run]
    inner = xp.asarray(self.start)[run] + xp.arange(self.num_steps) - begin
    return _steps(outer, inner, kinds, xp)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DeviceSchedule:
  """A schedule whose steps are known on the device only.

  Attributes:
    steps: One entry per step and beyond `num_steps` anything in range, [capacity].
    num_steps: int32 [], at most the capacity.
    overflow: bool [], whether the mask needs more steps.
  """

  steps: Steps
  num_steps: typing.Any
  overflow: typing.Any

  @classmethod
  def build(cls, kinds, capacity: int) -> DeviceSchedule:
    """From `TileKind`s by output tile, [num_outer, num_inner]."""
    num_outer, num_inner = kinds.shape
    idle = (kinds == TileKind.EMPTY).all(axis=1)
    wanted = (kinds != TileKind.EMPTY).at[:, :1].max(idle[:, None])
    needed = wanted.sum(dtype=jnp.int32)
    (flat,) = jnp.nonzero(wanted.reshape(-1), size=capacity, fill_value=-1)
    outer = jnp.where(flat < 0, num_outer, flat // max(num_inner, 1))  # ends the last output tile
    steps = _steps(outer, flat % max(num_inner, 1), kinds.reshape(-1)[flat], jnp)
    steps = steps._replace(outer=jnp.minimum(steps.outer, num_outer - 1))
    return cls(steps, jnp.minimum(needed, capacity), needed > capacity)

  @property
  def capacity(self) -> int:
    """Steps there is room for."""
    return self.steps.outer.shape[0]

  def expand(self, xp=jnp) -> Steps:
    """One entry per step."""
    del xp
    return self.steps


def _steps(outer, inner, kinds, xp) -> Steps:
  edge = xp.ones(1, bool)
  differs = outer[1:] != outer[:-1]
  first = xp.concatenate([edge, differs])[: len(outer)]
  last = xp.concatenate([differs, edge])[: len(outer)]
  return Steps(*(x.astype(xp.int32) for x in (outer, inner, kinds, first, last)))
