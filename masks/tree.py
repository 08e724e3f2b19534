"""Trees: the nodes of a speculative decoding tree see their ancestors."""

import dataclasses

import numpy as np

from masks import _checks, _group_tiles, _tile_rule
from masks._fixed_lengths import FixedLengths
from masks._frozen import FrozenArray
from masks._mask import Mask


@dataclasses.dataclass(frozen=True)
class DescendantTest:
  """Whether the query's number lies in the range of the key's descendants."""

  num_q = 1
  num_kv = 2

  def __call__(self, q_idx, kv_idx, q_tokens, kv_tokens):
    del q_idx, kv_idx
    return (q_tokens[0] >= kv_tokens[0]) & (q_tokens[0] < kv_tokens[1])


@dataclasses.dataclass(frozen=True, repr=False)
class Tree(FixedLengths):
  """See `tree`.

  Nodes are numbered in depth-first order, in which the descendants of a node, itself included, are a
  range. Cached tokens are ancestors of all.

  Attributes:
    order: Number of each query, int32 [batch, queries].
    descendants: First number below each key and one past the last, int32 [batch, 2, keys].
  """

  order: FrozenArray
  descendants: FrozenArray

  lead = property(lambda self: (len(self.order.array), 1))
  lengths = property(lambda self: (self.order.array.shape[1], self.descendants.array.shape[2]))

  def allows(self, q_idx, kv_idx):
    kv_tokens = [x[kv_idx] for x in self.descendants.array[0]]
    return DescendantTest()(q_idx, kv_idx, [self.order.array[0][q_idx]], kv_tokens)

  def cut(self, q, kv):
    return Tree(FrozenArray(self.order.array[:, q]), FrozenArray(self.descendants.array[:, :, kv]))

  def select(self, batch, head):
    pick = slice(batch, batch + 1)
    return Tree(FrozenArray(self.order.array[pick]), FrozenArray(self.descendants.array[pick]))

  def tile_bounds(self, grid):
    return _group_tiles.exact(grid, self.lead, lambda batch, head: self._tiles(batch, grid))

  def tile_rule(self, q_len, kv_len):
    tokens = (self.order.array[:, None, None], self.descendants.array[:, None])
    return _tile_rule.TileRule(DescendantTest(), *tokens)

  def __repr__(self):
    nodes, keys = self.lengths
    return f"tree({self.order!r}, prefix={keys - nodes})"

  def _tiles(self, batch: int, grid):
    order, descendants = self.order.array[batch], self.descendants.array[batch]
    # Keys with the same descendants, as all cached tokens have, are decided once.
    new = np.append(True, (descendants[:, 1:] != descendants[:, :-1]).any(axis=0))[: grid.kv_len]
    start = np.flatnonzero(new)
    stop = np.append(start, grid.kv_len)[1:]
    low, high = descendants[:, start]
    seen_by = np.zeros((2, grid.rows, len(start)), bool)
    tiles = zip(*_group_tiles.token_ranges(grid.q_len, grid.block_q), strict=True)
    for row, (begin, end) in enumerate(tiles):
      numbers = np.unique(order[begin:end])
      count = np.searchsorted(numbers, high) - np.searchsorted(numbers, low)
      seen_by[:, row] = count > 0, count == len(numbers)
    (hit_row, hit), (fill_row, fill) = map(np.nonzero, seen_by)
    return (
      _group_tiles.touched(hit_row, start[hit], stop[hit], grid),
      _group_tiles.contained(fill_row, start[fill], stop[fill], grid),
    )


def tree(parents, prefix: int = 0) -> Mask:
  """Query i, a node of a tree, may use the cached tokens, its ancestors and itself.

  Verifies a tree of drafted tokens in one call. The queries are the nodes; the keys are `prefix` cached
  tokens and then the nodes, in the same order.

  Args:
    parents: int [nodes] or [batch, nodes], the parent of each node, -1 for a node without one. Parents
      come before their children. To pad trees of different size to one length, append nodes with -1.
    prefix: Number of cached tokens before the nodes; at least 0.

  Returns:
    The mask, for as many queries as nodes and prefix + nodes keys.

  Raises:
    TypeError: parents is traced or not integer, or prefix is not an int.
    ValueError: A parent is below -1 or does not come before its child, or prefix is negative.

  References:
    Miao et al., SpecInfer, arXiv:2305.09781, section 4 (tree attention); Cai et al., Medusa,
    arXiv:2401.10774, section 2.1.2.

  >>> tree([-1, 0, 0, 1], prefix=2).to_dense(4, 6).astype(int)
  array([[1, 1, 1, 0, 0, 0],
         [1, 1, 1, 1, 0, 0],
         [1, 1, 1, 0, 1, 0],
         [1, 1, 1, 1, 0, 1]])
  """
  parents = np.atleast_2d(_checks.concrete_ids("parents", parents, (1, 2), "[nodes] or [batch, nodes]"))
  prefix = _checks.non_negative("prefix", prefix, "Give the number of cached tokens.")
  nodes = np.arange(parents.shape[1])
  wrong = np.argwhere((parents < -1) | (parents >= nodes))
  if len(wrong):
    batch, node = wrong[0]
    raise ValueError(
      f"`parents` must be -1 or an earlier node, got parents[{node}]={parents[batch, node]}. Order the "
      "nodes so that parents come first, as breadth-first order does."
    )
  first, stop = _depth_first(parents)
  every_node = np.broadcast_to([[0], [len(nodes)]], (len(parents), 2, prefix))
  descendants = np.concatenate([every_node, np.stack([first, stop], axis=1)], axis=2)
  return Tree(FrozenArray(first), FrozenArray(descendants.astype(np.int32)))


def _depth_first(parents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Number of each node in depth-first order and one past its last descendant's, int32 [batch, nodes]."""
  batch, count = np.arange(len(parents)), parents.shape[1]
  # An extra last entry stands for the parent of the nodes without one.
  size = np.ones((len(parents), count + 1), np.int32)
  for node in range(count - 1, -1, -1):
    size[batch, parents[:, node]] += size[:, node]
  first, following = np.zeros_like(size), np.zeros_like(size)
  for node in range(count):
    above = parents[:, node]
    first[:, node] = following[batch, above]
    following[batch, above] += size[:, node]
    following[:, node] = first[:, node] + 1
  return first[:, :count], (first + size)[:, :count]
