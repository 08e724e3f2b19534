"""LinearRuns: integer arrays that are piecewise linear along their last axis, in few numbers.

Interval bounds grow by one per query (causal, window) or stay (documents), so a million of them take a few
runs. Programs then carry the runs, not the array, and expand them on the device.
"""

from __future__ import annotations

import dataclasses
import math
import typing

import jax
import jax.numpy as jnp
import numpy as np


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LinearRuns:
  """An int32 array as runs with constant steps, over all its rows one after the other.

  Attributes:
    value: [runs] int32, first value of each run.
    step: [runs] int32, difference of neighbours within the run.
    lengths: [runs] int32.
    shape: Shape of the array.
  """

  value: typing.Any
  step: typing.Any
  lengths: typing.Any
  shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})

  @classmethod
  def encode(cls, array: np.ndarray) -> LinearRuns:
    """Runs of an int32 array; O(size)."""
    flat = array.reshape(-1)
    if not flat.size:
      none = np.zeros(0, np.int32)
      return cls(none, none, none, array.shape)
    step = np.diff(flat, append=flat[-1])
    new = np.ones(flat.size, bool)
    new[1:] = step[:-1] != np.concatenate([step[:1], step[:-2]])
    begin = np.flatnonzero(new)
    lengths = np.diff(np.append(begin, flat.size))
    return cls(flat[begin], step[begin], lengths.astype(np.int32), array.shape)

  def expand(self):
    """The array, int32, by operations that also run under jit."""
    size = math.prod(self.shape)
    lengths = jnp.asarray(self.lengths)
    run = jnp.repeat(jnp.arange(len(self.lengths)), lengths, total_repeat_length=size)
    offset = jnp.arange(size, dtype=jnp.int32) - (jnp.cumsum(lengths) - lengths)[run]
    flat = jnp.asarray(self.value)[run] + jnp.asarray(self.step)[run] * offset
    return flat.astype(jnp.int32).reshape(self.shape)
