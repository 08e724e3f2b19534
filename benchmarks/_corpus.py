"""Real documents found on any machine: the running Python's own standard library, packed."""

import dataclasses
import pathlib
import sysconfig
from collections.abc import Iterator

import numpy as np

PAD_ID = -1

# Third-party packages and test suites: not part of the library, and not everywhere installed.
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})


@dataclasses.dataclass(frozen=True)
class PackedCorpus:
  """Documents packed into rows, as byte tokens.

  Attributes:
    tokens: uint8 [batch, seq_len]; 0 where no document is.
    segment_ids: int32 [batch, seq_len], counting documents from 0 over all rows; -1 where none is.
    names: The documents, by id.
  """

  tokens: np.ndarray
  segment_ids: np.ndarray
  names: tuple[str, ...]

  def __str__(self):
    live = self.segment_ids[self.segment_ids != PAD_ID]
    lengths = np.bincount(live, minlength=len(self.names))
    return (
      f"{len(self.names)} documents ({self.names[0]} to {self.names[-1]}) of {lengths.min():,} to "
      f"{lengths.max():,} byte tokens, mean {lengths.mean():,.0f}, in {len(self.tokens)} row(s) of "
      f"{self.tokens.shape[1]:,}; {self.segment_ids.size - live.size:,} of padding"
    )


def pack_standard_library(
  batch: int,
  seq_len: int,
  *,
  max_document_len: int | None = None,
  folder: str | pathlib.Path | None = None,
) -> PackedCorpus:
  """Packs standard-library sources, in the order of their paths, until the rows are full.

  A document that does not fit into the rest of its row is cut there; the next row starts with the
  next document. Where the documents run out, the rest is padding. The same Python gives the same
  rows.

  Args:
    batch: Number of rows.
    seq_len: Tokens per row.
    max_document_len: Longer documents, in bytes, are left out, so that a row holds several; None
      takes all.
    folder: Where to look for `*.py`, by default the standard library of this Python.

  Returns:
    The packed rows.

  Raises:
    ValueError: A size is not positive.
    FileNotFoundError: The folder holds no source that is short enough.
  """
  for name, value in (
    ("batch", batch),
    ("seq_len", seq_len),
    ("max_document_len", max_document_len),
  ):
    if value is not None and value < 1:
      raise ValueError(f"`{name}` must be at least 1, got {name}={value}. Use a positive number.")
  folder = pathlib.Path(sysconfig.get_path("stdlib") if folder is None else folder)
  tokens = np.zeros((batch, seq_len), np.uint8)
  segment_ids = np.full((batch, seq_len), PAD_ID, np.int32)
  names = []
  documents = _documents(folder, max_document_len)
  for row in range(batch):
    start = 0
    while start < seq_len and (document := next(documents, None)) is not None:
      name, content = document
      content = content[: seq_len - start]
      stop = start + len(content)
      tokens[row, start:stop] = np.frombuffer(content, np.uint8)
      segment_ids[row, start:stop] = len(names)
      names.append(name)
      start = stop
  if not names:
    limit = "" if max_document_len is None else f" of at most {max_document_len} bytes"
    raise FileNotFoundError(
      f"The corpus needs Python sources, got a folder without any *.py{limit}: {folder}. Use a "
      "Python whose standard library is installed as source files, or allow longer documents."
    )
  return PackedCorpus(tokens, segment_ids, tuple(names))


def _documents(folder: pathlib.Path, max_len: int | None) -> Iterator[tuple[str, bytes]]:
  """Name and content of each source that is not empty, in the order of their paths."""
  paths = ((path.relative_to(folder), path) for path in folder.rglob("*.py"))
  for relative, path in sorted(p for p in paths if _SKIPPED_FOLDERS.isdisjoint(p[0].parts)):
    if 0 < path.stat().st_size <= (max_len or path.stat().st_size):
      yield relative.as_posix(), path.read_bytes()
