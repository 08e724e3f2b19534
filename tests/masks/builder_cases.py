"""Random masks of every builder with an independent scalar definition of each."""

import dataclasses
import itertools
import math
import typing

import numpy as np
from hypothesis import strategies as st

import masks


@dataclasses.dataclass(frozen=True)
class Case:
  """A mask and what it should be.

  Attributes:
    mask: The mask.
    rule: Function (batch, head, i, j) -> bool.
    lead: (batch, heads) that the rule distinguishes.
    lengths: (queries, keys) that the mask fits; None for any.
    is_analytic: Whether the mask must classify its tiles without evaluating any.
  """

  mask: masks.Mask
  rule: typing.Callable
  lead: tuple[int, int] = (1, 1)
  lengths: tuple[int, int] | None = None
  is_analytic: bool = True

  def dense(self, q_len, kv_len, q=0, kv=0):
    """bool [batch, heads, q_len, kv_len] of tokens that stand q and kv positions further on."""
    shape = (*self.lead, q_len, kv_len)
    pairs = (self.rule(b, h, i + q, j + kv) for b, h, i, j in np.ndindex(*shape))
    return np.fromiter(pairs, bool, math.prod(shape)).reshape(shape)


@st.composite
def chunk(draw):
  size = draw(st.integers(1, 9))
  return Case(masks.chunk(size), lambda b, h, i, j: i // size == j // size)


@st.composite
def block_causal(draw):
  size = draw(st.integers(1, 9))
  return Case(masks.block_causal(size), lambda b, h, i, j: j // size <= i // size)


@st.composite
def dilated(draw):
  window, dilation, is_causal = draw(st.integers(1, 7)), draw(st.integers(1, 12)), draw(st.booleans())
  window += not is_causal and window % 2 == 0
  mask = masks.dilated(window, dilation, is_causal)
  back = range(window) if is_causal else range(-(window // 2), window // 2 + 1)
  return Case(mask, lambda b, h, i, j: i - j in [t * dilation for t in back])


@st.composite
def strided(draw):
  stride = draw(st.integers(1, 25))
  return Case(masks.strided(stride), lambda b, h, i, j: j <= i and (i - j) % stride == 0)


def _flags(draw, batch, length):
  if draw(st.booleans()):  # one run
    start, stop = draw(st.integers(0, length)), draw(st.integers(0, length))
    return np.tile(np.arange(length) >= start, (batch, 1)) & (np.arange(length) < stop)
  return np.array(
    draw(st.lists(st.booleans(), min_size=batch * length, max_size=batch * length)), bool
  ).reshape(batch, length)


@st.composite
def global_tokens(draw):
  q_len, kv_len, batch = draw(st.integers(1, 20)), draw(st.integers(1, 20)), draw(st.integers(1, 2))
  q_flags = _flags(draw, batch, q_len)
  if draw(st.booleans()):
    mask = masks.global_tokens(q_flags)
    kv_flags, kv_len = q_flags, q_len
  else:
    kv_flags = _flags(draw, batch, kv_len)
    mask = masks.global_tokens(q_flags, kv_flags)
  rule = lambda b, h, i, j: q_flags[b, i] or kv_flags[b, j]  # noqa: E731
  return Case(mask, rule, (batch, 1), (q_len, kv_len))


@st.composite
def same_group(draw):
  q_len, kv_len = draw(st.integers(1, 20)), draw(st.integers(1, 20))
  q_ids, kv_ids = (
    np.array(draw(st.lists(st.integers(-2, 3), min_size=n, max_size=n))) for n in (q_len, kv_len)
  )
  mask = masks.same_group(q_ids, kv_ids)
  return Case(mask, lambda b, h, i, j: q_ids[i] == kv_ids[j], lengths=(q_len, kv_len))


@st.composite
def bigbird(draw):
  size, globals_ = draw(st.integers(1, 5)), draw(st.integers(0, 2))
  reach, random_range = draw(st.integers(0, 1)), draw(st.integers(0, 9))
  num_random = draw(st.integers(0, 8))
  mask = masks.bigbird(size, num_random, 2 * reach + 1, globals_, random_range, draw(st.integers(0, 9)))
  # The random blocks are the mask's own choice: tests of their number and range are in test_builders.
  blocks = dataclasses.replace(mask, block_size=1).to_dense(60, 60)
  drawn = [
    {b for b in range(globals_, random_range) if blocks[a, b] and abs(a - b) > reach} for a in range(60)
  ]

  def rule(b, h, i, j):
    row, col = i // size, j // size
    return min(row, col) < globals_ or abs(row - col) <= reach or col in drawn[row]

  return Case(mask, rule)


def _window(x, length, kernel, dilation, stride, is_causal):
  """The coordinates that x sees along an axis, from NATTEN's definition token by token."""
  group = [y for y in range(length) if y % dilation == x % dilation]
  at = group.index(x)
  same_stride = [n for n in range(len(group)) if n // stride == at // stride]
  if is_causal:
    leader = same_stride[-1]
    return [group[n] for n in range(len(group)) if leader - kernel < n <= at]
  leader = min(at // stride * stride + stride // 2, len(group) - 1)
  first = leader - kernel // 2
  while first < 0:
    first += 1
  while first + kernel > len(group):
    first -= 1
  return group[first : first + kernel]


@st.composite
def neighborhood(draw):
  axes = []
  for longest in draw(st.sampled_from([(25,), (6, 6), (5, 7), (4, 3, 3), (2, 2, 2, 3)])):
    length = draw(st.integers(1, longest))
    dilation = draw(st.integers(1, max(1, length // 2)))
    kernel = draw(st.integers(1, length // dilation))
    axes.append((length, kernel, dilation, draw(st.integers(1, kernel)), draw(st.booleans())))
  shape = tuple(axis[0] for axis in axes)
  mask = masks.neighborhood(shape, *(tuple(x) for x in zip(*[axis[1:] for axis in axes], strict=True)))
  seen = [{(x, y) for x in range(axis[0]) for y in _window(x, *axis)} for axis in axes]
  coordinates = list(itertools.product(*map(range, shape)))

  def rule(b, h, i, j):
    if i < 0 or j < 0:
      return False
    pairs = zip(coordinates[i], coordinates[j], strict=True)
    return all(pair in axis for pair, axis in zip(pairs, seen, strict=True))

  return Case(mask, rule, lengths=(len(coordinates),) * 2)


@st.composite
def tree(draw):
  nodes, prefix, batch = draw(st.integers(1, 15)), draw(st.integers(0, 9)), draw(st.integers(1, 2))
  parents = [[draw(st.integers(-1, n - 1)) for n in range(nodes)] for _ in range(batch)]

  def rule(b, h, i, j):
    if j < prefix:
      return True
    while i >= 0 and i != j - prefix:
      i = parents[b][i]
    return i >= 0

  mask = masks.tree(parents if batch > 1 else parents[0], prefix)
  return Case(mask, rule, (batch, 1), (nodes, prefix + nodes))


@st.composite
def from_blocks(draw):
  block = draw(st.integers(1, 5)), draw(st.integers(1, 5))
  lead = draw(st.sampled_from([(1, 1), (1, 2), (2, 2)]))
  q_len, kv_len = draw(st.integers(1, 20)), draw(st.integers(1, 24))
  shape = (*lead, *(-(-n // size) for n, size in zip((q_len, kv_len), block, strict=True)))
  rng = np.random.default_rng(draw(st.integers(0, 99)))
  blocks = rng.random(shape) < draw(st.sampled_from([0, 0.2, 0.7, 1]))
  mask = masks.from_blocks(blocks if draw(st.booleans()) else blocks.astype(int), block)
  rule = lambda b, h, i, j: blocks[b, h, i // block[0], j // block[1]]  # noqa: E731
  return Case(mask, rule, lead, (q_len, kv_len))


@st.composite
def causal(draw):
  offset = draw(st.integers(-3, 3))
  return Case(masks.causal(offset), lambda b, h, i, j: j <= i + offset)


@st.composite
def window(draw):
  left, right = draw(st.none() | st.integers(0, 5)), draw(st.none() | st.integers(0, 5))

  def rule(b, h, i, j):
    return (left is None or j >= i - left) and (right is None or j <= i + right)

  return Case(masks.local(left, right), rule)


@st.composite
def prefix(draw):
  limits = draw(st.lists(st.integers(0, 12), min_size=1, max_size=2))
  mask = masks.prefix(limits[0] if len(limits) == 1 else limits)
  return Case(mask, lambda b, h, i, j: j < limits[b], (len(limits), 1))


def _third(i, j):
  return (i + 2 * j) % 3 == 0


FUNCTION = Case(masks.from_function(_third), lambda b, h, i, j: _third(i, j), is_analytic=False)


@st.composite
def document(draw):
  length, batch = draw(st.integers(1, 20)), draw(st.integers(1, 2))
  ids = np.array(draw(st.lists(st.integers(-1, 2), min_size=length * batch, max_size=length * batch)))
  ids = ids.reshape(batch, length)
  rule = lambda b, h, i, j: ids[b, i] == ids[b, j] >= 0  # noqa: E731
  return Case(masks.document(ids), rule, (batch, 1), (length, length))


@st.composite
def array(draw):
  q_len, kv_len = draw(st.integers(1, 20)), draw(st.integers(1, 20))
  dense = np.random.default_rng(draw(st.integers(0, 99))).random((q_len, kv_len)) < 0.5
  rule = lambda b, h, i, j: dense[i, j]  # noqa: E731
  return Case(masks.from_array(dense), rule, lengths=(q_len, kv_len), is_analytic=False)


POSITIONAL = {
  "chunk": chunk(),
  "block_causal": block_causal(),
  "dilated": dilated(),
  "strided": strided(),
  "bigbird": bigbird(),
}
FIXED = {
  "global_tokens": global_tokens(),
  "same_group": same_group(),
  "neighborhood": neighborhood(),
  "tree": tree(),
  "from_blocks": from_blocks(),
}
BUILDERS = POSITIONAL | FIXED
OLD = {
  "full": st.just(Case(masks.full(), lambda b, h, i, j: True)),
  "causal": causal(),
  "window": window(),
  "prefix": prefix(),
  "function": st.just(FUNCTION),
  "document": document(),
  "array": array(),
}
EVERY = BUILDERS | OLD
BLOCKS = st.tuples(st.integers(1, 9), st.integers(1, 9))
LENGTHS = st.tuples(st.integers(0, 22), st.integers(0, 22))
