"""Progress of longer work on stderr: a bar on a terminal, else a line every few seconds."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track as rich_track

_PATIENCE_S = 5.0

T = TypeVar("T")


def track(steps: Sequence[T], label: str, *, patience: float = _PATIENCE_S) -> Iterator[T]:
  """Yields `steps`, and tells on stderr how far the work is.

  Args:
    steps: What to go through.
    label: What the work is.
    patience: Seconds without a line where stderr is not a terminal; work shorter than this is
      silent.

  Yields:
    The steps, in order.
  """
  console = Console(stderr=True)
  if console.is_terminal:
    yield from rich_track(steps, label, console=console, transient=True)
    return
  start = last = time.monotonic()
  for done, step in enumerate(steps):
    now = time.monotonic()
    if now - last >= patience:
      print(f"{label}: {done} of {len(steps)} after {now - start:.0f} s", file=sys.stderr, flush=True)
      last = now
    yield step
