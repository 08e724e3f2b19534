"""Random compositions of all builders, old and new, with shifts and per-head masks, against brute force."""

import functools
import operator

import hypothesis
import numpy as np
from hypothesis import strategies as st

import masks
from tests.masks import builder_cases, builder_checks

SETTINGS = hypothesis.settings(max_examples=150, deadline=None, derandomize=True)
OPERATORS = {"&": operator.and_, "|": operator.or_}


@st.composite
def _composition(draw):
  """A mask, its elements [batch, heads, q_len, kv_len], and whether a head or part has to be stored."""
  names = draw(st.lists(st.sampled_from(sorted(builder_cases.EVERY)), min_size=2, max_size=4))
  cases = [draw(builder_cases.EVERY[name]) for name in names]
  own = [case.lengths for case in cases if case.lengths] or [(20, 20)]
  room = [min(x) for x in zip(*own, strict=True)]
  lengths = [draw(st.integers(1, n)) for n in room]
  last = [draw(st.integers(0, n - length)) for n, length in zip(room, lengths, strict=True)]

  def part(case):
    """The case shifted to some of its tokens, such that `last` can be added to all."""
    most = [own - x - y for own, x, y in zip(case.lengths or (50, 50), lengths, last, strict=True)]
    shift = [draw(st.integers(0, n)) for n in most]
    total = [x + y for x, y in zip(shift, last, strict=True)]
    mask, dense = case.mask.shift(*shift), case.dense(*lengths, *total)
    return (~mask, ~dense) if draw(st.booleans()) else (mask, dense)

  def combined(parts):
    kind = draw(st.sampled_from(sorted(OPERATORS)))
    if kind == "|" and len(parts) > 2:
      parts = [combined(parts[:2]), *parts[2:]]
    return tuple(functools.reduce(OPERATORS[kind], x) for x in zip(*parts, strict=True))

  parts = [part(case) for case in cases]
  if draw(st.booleans()) and all(dense.shape[1] == 1 for _, dense in parts):
    heads = [combined(parts[:2]), *parts[2:], parts[0]]
    mask = masks.per_head([mask for mask, _ in heads])
    batch = max(len(dense) for _, dense in heads)
    dense = np.concatenate([np.broadcast_to(x, (batch, *x.shape[1:])) for _, x in heads], axis=1)
  else:
    mask, dense = combined(parts)
  return mask.shift(*last), dense, "array" in names


@SETTINGS
@hypothesis.given(_composition(), builder_cases.BLOCKS)
def test_compositions_are_exact(composition, block):
  mask, dense, _ = composition
  builder_checks.assert_elements(mask, dense)
  builder_checks.assert_kinds(mask, dense, block)
  stats = mask.block_mask(*dense.shape[2:], *block).stats()
  assert stats.num_allowed == mask.to_dense(*dense.shape[2:]).sum()


@SETTINGS
@hypothesis.given(_composition())
def test_compositions_are_computed_in_the_kernel(composition):
  mask, dense, has_array = composition
  rule = mask.tile_rule(*dense.shape[2:])
  if rule is None:
    assert has_array or isinstance(mask, type(masks.per_head([masks.full()])))
    return
  builder_checks.assert_rule(mask, dense, np.int32)


@SETTINGS
@hypothesis.given(_composition(), builder_cases.BLOCKS)
def test_bounds_of_compositions_hold(composition, block):
  mask, dense, _ = composition
  builder_checks.assert_bounds_hold(mask, dense, block)
