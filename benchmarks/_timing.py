"""Timing of several callables in turns, so that a busy machine slows all of them alike."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from benchmarks import _progress


@dataclasses.dataclass(frozen=True)
class Timing:
  """Wall-clock seconds of the runs of one callable, without its first call.

  Attributes:
    seconds: One figure per run, in the order they were taken.
    first_call: Seconds of the first call, which compiles.
  """

  seconds: tuple[float, ...]
  first_call: float

  @property
  def median(self) -> float:
    """Median of the runs, in seconds."""
    return statistics.median(self.seconds)

  def speedup_over(self, other: "Timing") -> float:
    """How many times faster than `other`, by medians."""
    return other.median / self.median


def compare(
  candidates: Mapping[str, Callable[[], Any]], *, num_runs: int, label: str = "Timing"
) -> dict[str, Timing]:
  """Times `candidates` against each other.

  Each is called once to compile it. After that every round calls each of them, and every other
  round in reverse, so that none always follows the same neighbour.

  Args:
    candidates: The callables by name; what they return is waited for.
    num_runs: Number of rounds.
    label: What the progress line says.

  Returns:
    A `Timing` for each name.

  Raises:
    ValueError: `num_runs` is not positive.
  """
  if num_runs < 1:
    raise ValueError(f"`num_runs` must be at least 1, got num_runs={num_runs}. Use 5, or more.")
  names = list(candidates)
  rounds = [names if i % 2 == 0 else names[::-1] for i in range(num_runs)]
  calls = names + [name for order in rounds for name in order]
  seconds: dict[str, list[float]] = {name: [] for name in names}
  for name in _progress.track(calls, label):
    start = time.perf_counter()
    jax.block_until_ready(candidates[name]())
    seconds[name].append(time.perf_counter() - start)
  return {name: Timing(tuple(runs[1:]), first_call=runs[0]) for name, runs in seconds.items()}
