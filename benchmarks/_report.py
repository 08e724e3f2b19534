"""Results as a table for people and as JSON lines for programs, both with device and versions."""

import dataclasses
import importlib.metadata
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import rich.box
from rich.console import Console
from rich.table import Table

_LOG_COLUMNS = 120


@dataclasses.dataclass(frozen=True)
class Result:
  """One row of a report; None where a figure does not apply.

  Attributes:
    name: What was run.
    error: Relative RMS error against float64.
    seconds: Median time.
    speedup: Over the baseline, by medians.
    flops: Useful floating-point operations, those of active tiles.
    predicted: Whether the time was computed for hardware that it was not taken on.
    details: Further figures, for the JSON line only.
  """

  name: str
  error: float | None = None
  seconds: float | None = None
  speedup: float | None = None
  flops: float | None = None
  predicted: bool = False
  details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def record(self) -> dict[str, Any]:
    """The row as one flat dictionary."""
    row = dataclasses.asdict(self)
    return {**row.pop("details"), **row}


def environment() -> dict[str, str]:
  """Device and versions that a figure depends on."""
  return {
    "device": jax.devices()[0].device_kind,
    "backend": jax.default_backend(),
    "jax": jax.__version__,
    "blockattn": importlib.metadata.version("blockattn"),
    "python": platform.python_version(),
    "platform": platform.platform(),
  }


def emit(title: str, notes: Sequence[str], results: Sequence[Result], json_path: str | None) -> None:
  """Prints the report, and appends its JSON lines to a file if asked to.

  Args:
    title: What was measured.
    notes: Lines above the table.
    results: The rows.
    json_path: File for the JSON lines; "-" writes them to stdout and the table to stderr.
  """
  to_stdout = json_path == "-"
  console = Console(stderr=to_stdout, highlight=False, soft_wrap=True)
  if not console.is_terminal:  # a log file has no width: 80 columns would cut the table
    console.width = _LOG_COLUMNS
  env = environment()
  where = "{device} ({backend}), jax {jax}, blockattn {blockattn}, Python {python}".format(**env)
  for line in (title, where, *notes):
    console.print(line, markup=False)
  console.print(_table(results))
  lines = [json.dumps({"benchmark": title, **env, **result.record()}) + "\n" for result in results]
  if to_stdout:
    sys.stdout.writelines(lines)
  elif json_path:
    with open(json_path, "a", encoding="utf-8") as file:
      file.writelines(lines)


def _table(results: Sequence[Result]) -> Table:
  table = Table(box=rich.box.SIMPLE_HEAD, safe_box=True)
  table.add_column("")
  for header in ("relative RMS error", "median time", "speedup", "useful GFLOP/s"):
    table.add_column(header, justify="right", no_wrap=True)
  for result in results:
    rate = result.flops / result.seconds / 1e9 if result.flops and result.seconds else None
    mark = " (predicted)" if result.predicted else ""
    table.add_row(
      result.name,
      _format(result.error, "{:.2e}"),
      _format(result.seconds and 1e3 * result.seconds, "{:,.2f} ms") + mark,
      _format(result.speedup, "{:.2f}x"),
      _format(rate, "{:,.1f}"),
    )
  return table


def _format(value: float | None, template: str) -> str:
  return "-" if value is None else template.format(value)
