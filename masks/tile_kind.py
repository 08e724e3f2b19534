"""TileKind: what a tile of a mask holds."""

import enum


class TileKind(enum.IntEnum):
  """EMPTY tiles are skipped, FULL ones run without mask code, PARTIAL ones pay for a mask."""

  EMPTY = 0
  PARTIAL = 1
  FULL = 2
