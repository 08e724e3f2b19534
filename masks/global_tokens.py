"""Global tokens: some tokens see all others and are seen by them."""

import dataclasses

import numpy as np

from masks import _flags, _group_tiles, _spans, _tile_rule, _tile_runs
from masks._fixed_lengths import FixedLengths
from masks._frozen import FrozenArray
from masks._mask import Mask

# Up to so many runs of global keys are intervals, which fold with others; comparing more of them costs
# a kernel more than the flags of the query and the key.
_MAX_RUNS = 2


@dataclasses.dataclass(frozen=True)
class EitherTest:
  """Whether the query or the key carries a flag."""

  num_q = 1
  num_kv = 1

  def __call__(self, q_idx, kv_idx, q_tokens, kv_tokens):
    del q_idx, kv_idx
    return (q_tokens[0] | kv_tokens[0]) != 0


@dataclasses.dataclass(frozen=True, repr=False)
class GlobalTokens(FixedLengths):
  """See `global_tokens`. The flags are [batch, tokens] bool."""

  q_global: FrozenArray
  kv_global: FrozenArray

  lead = property(lambda self: (len(self.q_global.array), 1))
  lengths = property(lambda self: (self.q_global.array.shape[1], self.kv_global.array.shape[1]))

  def allows(self, q_idx, kv_idx):
    return self.q_global.array[0][q_idx] | self.kv_global.array[0][kv_idx]

  def cut(self, q, kv):
    return GlobalTokens(*_sliced(self, slice(None), q, kv))

  def select(self, batch, head):
    return GlobalTokens(*_sliced(self, slice(batch, batch + 1), slice(None), slice(None)))

  def spans(self, q_len, kv_len):
    runs = [_tile_runs.from_map(flags[None]) for flags in self.kv_global.array]
    count = max((len(run.start) for run in runs), default=0)
    if count > _MAX_RUNS:
      return None
    ends = np.zeros((2, len(runs), 1, max(count, 1), 1), np.int64)
    for batch, run in enumerate(runs):
      ends[:, batch, 0, : len(run.start), 0] = run.start, run.stop
    start = _spans.changes(self.q_global.array)
    everywhere = self.q_global.array[:, None, None, start]
    lo, hi = np.where(everywhere, 0, ends[0]), np.where(everywhere, kv_len, ends[1])
    return _spans.from_intervals(start, lo, hi, q_len, kv_len)

  def tile_bounds(self, grid):
    return _group_tiles.exact(grid, self.lead, lambda batch, head: self._tiles(batch, grid))

  def tile_rule(self, q_len, kv_len):
    rule = super().tile_rule(q_len, kv_len)
    if rule is not None:
      return rule
    flags = (x.array[:, None, None].astype(np.int32) for x in (self.q_global, self.kv_global))
    return _tile_rule.TileRule(EitherTest(), *flags)

  def __repr__(self):
    if self.q_global == self.kv_global:
      return f"global_tokens({self.q_global!r})"
    return f"global_tokens({self.q_global!r}, kv_is_global={self.kv_global!r})"

  def _tiles(self, batch: int, grid):
    every_row, every_col = np.ones(grid.rows, bool), np.ones(grid.cols, bool)
    tiles = []
    # A pair is forbidden where neither is global, so a tile is full where one side is global throughout.
    for reduction in (np.logical_or, np.logical_and):
      rows = _per_tile(reduction, self.q_global.array[batch], grid.block_q)
      cols = _per_tile(reduction, self.kv_global.array[batch], grid.block_kv)
      parts = ((rows, every_col), (~rows & every_row, cols))
      by_row, by_col = (_group_tiles.product(*part) for part in parts)
      tiles.append(by_row | by_col)
    return tuple(tiles)


def _sliced(mask: GlobalTokens, batch: slice, q: slice, kv: slice):
  pairs = ((mask.q_global, q), (mask.kv_global, kv))
  return (FrozenArray(flags.array[batch, tokens]) for flags, tokens in pairs)


def _per_tile(reduction: np.ufunc, flags: np.ndarray, block: int) -> np.ndarray:
  return reduction.reduceat(flags, np.arange(0, len(flags), block)) if len(flags) else flags


def global_tokens(is_global, kv_is_global=None) -> Mask:
  """Query i may use key j if is_global[i] or kv_is_global[j].

  Global tokens see every key, and every query sees them: `local(256, 256) | global_tokens(flags)` is
  Longformer's pattern. For decoders add `& causal()`.

  Args:
    is_global: bool, or integers 0 and 1, [tokens] or [batch, tokens]: which queries are global, and
      which keys if kv_is_global is None.
    kv_is_global: The same for the keys, where they differ from the queries.

  Returns:
    The mask; it fits only these lengths.

  Raises:
    TypeError: The flags are traced, or neither bool nor integer.
    ValueError: The flags have another rank, integers other than 0 and 1, or different batch sizes.

  References:
    Beltagy et al., Longformer, arXiv:2004.05150, section 3.1; Zaheer et al., Big Bird,
    arXiv:2007.14062, section 2 (ITC: existing tokens are made global).

  >>> global_tokens([1, 0, 0]).to_dense(3, 3).astype(int)
  array([[1, 1, 1],
         [1, 0, 0],
         [1, 0, 0]])
  """
  shapes = "[tokens] or [batch, tokens]"
  q_global = np.atleast_2d(_flags.concrete_flags("is_global", is_global, (1, 2), shapes))
  kv_global = q_global
  if kv_is_global is not None:
    kv_global = np.atleast_2d(_flags.concrete_flags("kv_is_global", kv_is_global, (1, 2), shapes))
  batches = (len(q_global), len(kv_global))
  if batches[0] != batches[1] and 1 not in batches:
    raise ValueError(
      f"`is_global` and `kv_is_global` must have the same batch size or 1, got {batches[0]} and "
      f"{batches[1]}. Give one row of flags per example to both."
    )
  flags = (np.broadcast_to(x, (max(batches), x.shape[1])) for x in (q_global, kv_global))
  return GlobalTokens(*map(FrozenArray, flags))
