"""What every benchmark does with its candidates: check the numbers, then time them, then report."""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import _progress, _report, _timing

# Relative RMS against float64. Right float32 results are near 5e-7, right bfloat16 ones near
# 2.3e-3.
ERROR_LIMITS = {"float32": 5e-6, "bfloat16": 4e-3}


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Callables that compute the same thing.

  Attributes:
    title: What is measured.
    candidates: The callables by name.
    baseline: What speedups are over, or None.
    error_of: Relative RMS error against float64 of what one of them returned.
    dtype: Of the results. It sets the largest error of a right one, `ERROR_LIMITS`; the baseline
      may have ten times as much, since it may sum its long rows less well than what it is compared
      with.
    flops: Useful floating-point operations of one call, those of active tiles.
    details: Settings and counts for the JSON lines.
  """

  title: str
  candidates: Mapping[str, Callable[[], Any]]
  baseline: str | None
  error_of: Callable[[Any], float]
  dtype: np.dtype
  flops: float
  details: Mapping[str, Any]

  def run(self, notes: Sequence[str], *, num_runs: int, json_path: str | None) -> int:
    """Checks, times and reports.

    Args:
      notes: Lines above the table.
      num_runs: Timed runs of each candidate.
      json_path: As in `_report.emit`.

    Returns:
      The exit status: 1 if a result is wrong, which is then not timed, and 0 otherwise.
    """
    names = _progress.track(list(self.candidates), "Checking")
    errors = {name: self.error_of(self.candidates[name]()) for name in names}
    # `not <=` and not `>`: NaN is wrong, too.
    wrong = {name: error for name, error in errors.items() if not error <= self._limit(name)}
    right = {name: call for name, call in self.candidates.items() if name not in wrong}
    timings = _timing.compare(right, num_runs=num_runs) if right else {}
    results = [self._result(name, error, timings) for name, error in errors.items()]
    _report.emit(self.title, notes, results, json_path)
    for name, error in wrong.items():
      print(
        f"WRONG: {name} must have a relative RMS error of at most {self._limit(name):g}, got "
        f"{error:.3g}. Its time was not taken.",
        file=sys.stderr,
      )
    return 1 if wrong else 0

  def _limit(self, name: str) -> float:
    return ERROR_LIMITS[self.dtype.name] * (10 if name == self.baseline else 1)

  def _result(self, name: str, error: float, timings: Mapping[str, _timing.Timing]) -> _report.Result:
    timing, baseline = timings.get(name), timings.get(self.baseline or "")
    return _report.Result(
      name,
      error=error,
      seconds=timing.median if timing else None,
      speedup=timing.speedup_over(baseline) if timing and baseline else None,
      flops=self.flops,
      details=self.details,
    )


def relative_rms(values: np.ndarray, reference: np.ndarray) -> float:
  """Relative RMS error over the float64 `reference`; not relative where that is all zero."""
  error = np.sum((np.asarray(values).astype(np.float64) - reference) ** 2)
  return float(np.sqrt(error / (np.sum(reference**2) or 1.0)))
