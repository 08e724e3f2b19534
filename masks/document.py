"""Documents: queries see the keys of their own document."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np

from masks import _checks, _device_bounds, _group_tiles, _scattered_ids, _spans, _tile_rule
from masks._frozen import FrozenArray, TracedArray, hold
from masks._mask import Mask

# More intervals than this, and more than one for 8 queries, count as scattered.
_FEW_INTERVALS = 2**12


@dataclasses.dataclass(frozen=True, repr=False)
class Document(Mask):
  """See `document`. The ids are [batch, tokens] int32."""

  q_ids: FrozenArray | TracedArray
  kv_ids: FrozenArray | TracedArray
  array_fields = ("q_ids", "kv_ids")

  @property
  def lead(self):
    return (self.q_ids.array.shape[0], 1)

  def check(self, q_len, kv_len):
    lengths = (self.q_ids.array.shape[1], self.kv_ids.array.shape[1])
    if lengths != (q_len, kv_len):
      raise ValueError(
        f"Document ids fit only their own lengths (queries, keys) = {lengths}, got {(q_len, kv_len)}. "
        "Give one id per token of the call; where queries and keys differ, give kv_ids too."
      )

  def allows(self, q_idx, kv_idx):
    q_ids = self.q_ids.array[0][q_idx]
    return (q_ids == self.kv_ids.array[0][kv_idx]) & (q_ids >= 0)

  def select(self, batch, head):
    if self.lead == (1, 1):
      return self
    q_ids = FrozenArray(self.q_ids.array[batch : batch + 1])
    if self.q_ids is self.kv_ids:
      return Document(q_ids, q_ids)
    return Document(q_ids, FrozenArray(self.kv_ids.array[batch : batch + 1]))

  def spans(self, q_len, kv_len):
    if self.is_traced:
      return None
    return self._spans

  @functools.cached_property
  def _spans(self) -> _spans.Spans | None:
    pairs = zip(self.q_ids.array, self.kv_ids.array, strict=True)
    examples = [x for x in (_id_spans(q, kv) for q, kv in pairs) if x is not None]
    return _spans.stack(examples, axis=0) if len(examples) == self.lead[0] else None

  def tile_bounds(self, grid):
    if self.is_traced or self._spans is not None:
      return super().tile_bounds(grid)
    return _group_tiles.exact(grid, self.lead, lambda batch, head: self._tiles(batch, grid))

  def _tiles(self, batch: int, grid):
    q_ids = self.q_ids.array[batch]
    kv_ids = q_ids if self.q_ids is self.kv_ids else self.kv_ids.array[batch]
    return _scattered_ids.tiles_of_ids(q_ids, kv_ids, grid)

  def device_bounds(self, grid):
    return _device_bounds.of_ids(self.q_ids.array, self.kv_ids.array, grid)

  def tile_rule(self, q_len, kv_len):
    rule = super().tile_rule(q_len, kv_len)
    if rule is not None:
      return rule
    tokens = (x.array[:, None, None] for x in (self.q_ids, self.kv_ids))
    return _tile_rule.TileRule(_tile_rule.SameIdTest(), *tokens)

  def __repr__(self):
    if self.q_ids == self.kv_ids:
      return f"document({self.q_ids!r})"
    return f"document({self.q_ids!r}, kv_ids={self.kv_ids!r})"


def document(ids, kv_ids=None) -> Mask:
  """Query i may use key j if ids[i] == kv_ids[j] and ids[i] >= 0.

  Packs several documents into one sequence (segment ids). Equality is all that counts: ids need not be
  sorted, and an id that appears again belongs to the same document. Negative ids are padding: such
  queries see nothing and such keys are seen by none.

  Args:
    ids: int [tokens] or [batch, tokens], the document of each query, and of each key if kv_ids is None.
      May be traced: tiles are then told apart by the range of ids in each, exactly for sorted ids.
    kv_ids: The same for the keys, where they differ from the queries.

  Returns:
    The mask; it fits only these lengths.

  Raises:
    TypeError: The ids are not integer.
    ValueError: The ids have another rank, or different batch sizes.

  References:
    Krell et al., Efficient sequence packing without cross-contamination, arXiv:2107.02027.

  >>> document([0, 0, 1, -1]).to_dense(4, 4).astype(int)
  array([[1, 1, 0, 0],
         [1, 1, 0, 0],
         [0, 0, 1, 0],
         [0, 0, 0, 0]])
  """
  shapes = "[tokens] or [batch, tokens]"
  q_ids = _batched(_checks.id_array("ids", ids, (1, 2), shapes))
  if kv_ids is None:
    held = hold(q_ids)
    return Document(held, held)
  keys = _batched(_checks.id_array("kv_ids", kv_ids, (1, 2), shapes))
  if len(q_ids) != len(keys) and 1 not in (len(q_ids), len(keys)):
    raise ValueError(
      f"`ids` and `kv_ids` must have the same batch size or 1, got {len(q_ids)} and {len(keys)}."
    )
  batch = max(len(q_ids), len(keys))
  xp = np if isinstance(q_ids, np.ndarray) and isinstance(keys, np.ndarray) else jnp
  return Document(*(hold(xp.broadcast_to(x, (batch, x.shape[1]))) for x in (q_ids, keys)))


def _batched(ids):
  return ids if ids.ndim == 2 else ids[None]


def document_from_lengths(lengths, total: int | None = None) -> Mask:
  """The `document` mask of documents that stand one behind the other.

  Args:
    lengths: int [documents], tokens of each document; at least 0.
    total: Tokens in all; those behind the last document are padding. None means no padding.

  Returns:
    The mask, for `total` queries and as many keys.

  Raises:
    TypeError: lengths is traced or not integer.
    ValueError: A length is negative, or they exceed `total`.

  >>> document_from_lengths([2, 1], total=4) == document([0, 0, 1, -1])
  True
  """
  lengths = _checks.concrete_ids("lengths", lengths, (1,), "[documents]").astype(np.int64)
  if lengths.size and lengths.min() < 0:
    raise ValueError(f"`lengths` must be at least 0, got {int(lengths.min())}.")
  used = int(lengths.sum())
  total = used if total is None else _checks.integer("total", total)
  if used > total:
    raise ValueError(
      f"`lengths` must sum to at most total={total}, got {used}. Cut the last document or raise total."
    )
  ids = np.full(total, -1, np.int32)
  ids[:used] = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
  return document(ids)


def _id_runs(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """(id, start, stop) of each run of equal ids, without padding, ordered by id and then position."""
  start = _spans.changes(ids[None])
  stop = np.append(start[1:], len(ids))[: len(start)]
  order = np.argsort(ids[start], kind="stable")
  order = order[ids[start][order] >= 0]
  return ids[start][order], start[order], stop[order]


def _id_spans(q_ids, kv_ids) -> _spans.Spans | None:
  """The keys with the id of each query; None where ids are so scattered that intervals do not pay."""
  run_id, run_start, run_stop = _id_runs(kv_ids)
  new = np.append(True, run_id[1:] != run_id[:-1])[: len(run_id)]
  known, first = run_id[new], np.flatnonzero(new)
  runs = np.diff(first, append=len(run_id))
  count = int(runs.max(initial=1))
  if count > _spans.MAX_SPANS:
    return None
  table = np.zeros((2, len(known) + 1, count), np.int32)  # the last entry: ids that no key has
  entry = np.repeat(np.arange(len(known)), runs)
  nth = np.arange(len(run_id)) - np.repeat(first, runs)
  table[0, entry, nth], table[1, entry, nth] = run_start, run_stop
  start = _spans.changes(q_ids[None])
  if count > 1 and count * len(start) > max(len(q_ids) // 8, _FEW_INTERVALS):
    return None
  values = q_ids[start]
  where = np.searchsorted(known, values)
  found = (where < len(known)) & (np.append(known, 0)[where] == values) & (values >= 0)
  which = np.where(found, where, len(known))
  lo, hi = (t[which].T[None, None] for t in table)
  return _spans.from_intervals(start, lo, hi, len(q_ids), len(kv_ids))
