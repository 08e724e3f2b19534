"""from_function: which functions run inside a kernel, and how the others are evaluated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import masks
from tests.support import grid_of

_TABLE = np.arange(64) % 3

COMPUTED = {
  "operators": lambda i, j: ((i >= j) & ~(i - j > 4)) | ((i ^ j) % 3 == 0),
  "floor division and remainder": lambda i, j: (i // 3 == j // 5) | (i % 7 > j % 4),
  "jax.numpy": lambda i, j: jnp.logical_and(jnp.abs(i - j) < 9, jnp.minimum(i, j) > 2),
  "a choice of integers": lambda i, j: jnp.where(i > j, i - j, 2 * j) < 9,
  "jax.lax": lambda i, j: jax.lax.shift_right_logical(i - j, jnp.full_like(i - j, 2)) == 1,
  "a jitted function": lambda i, j: jax.jit(lambda a, b: a - b < 5)(i, j),
  "one position": lambda i, j: i % 2 == 0,
}
STORED = {
  "a captured array": lambda i, j: _TABLE[i] == _TABLE[j],
  "a captured JAX array": lambda i, j: jnp.asarray(_TABLE)[i] == jnp.asarray(_TABLE)[j],
  "functions of NumPy": lambda i, j: np.abs(i - j) < 9,
  "floats": lambda i, j: (i - j) / 3 < 5,
  "a number beyond int32": lambda i, j: (j < 2**40) & (i >= j),
  "int64": lambda i, j: (i.astype(np.int64) * 2_000_000_000 + j) % 7 < 4,
  "a reduction": lambda i, j: jnp.stack([i + 0 * j, j + 0 * i]).sum(0) < 9,
  "a loop": lambda i, j: jax.lax.fori_loop(0, 3, lambda n, x: x + i, i - j) < 5,
  "a checkpoint": lambda i, j: jax.checkpoint(lambda a, b: a - b < 5)(i, j),
  # What the TPU compiler has for integers only.
  "a choice of booleans": lambda i, j: jnp.where(i > j, i % 2 == 0, j % 3 == 0),
  "a maximum of booleans": lambda i, j: jnp.maximum(i > j, i % 2 == 0),
}


def _brute(fn):
  i, j = grid_of(64, 64)
  return np.broadcast_to(np.asarray(fn(i.astype(np.int32), j.astype(np.int32))), (64, 64))


@pytest.mark.parametrize("name", COMPUTED)
def test_elementwise_integer_functions_are_computed(name):
  mask = masks.from_function(COMPUTED[name])
  rule = mask.block_mask(64, 64, 8, 16).tile_rule
  i, j = (jnp.asarray(x) for x in grid_of(64, 64))
  got = jnp.broadcast_to(rule.test(i, j, [], []), (64, 64))
  np.testing.assert_array_equal(got, _brute(COMPUTED[name]))


@pytest.mark.parametrize("name", STORED)
def test_other_functions_are_stored(name):
  mask = masks.from_function(STORED[name])
  block_mask = mask.block_mask(64, 64, 8, 16)
  assert block_mask.tile_rule is None
  want = _brute(STORED[name])
  np.testing.assert_array_equal(mask.to_dense(64, 64), want)
  assert block_mask.stats().num_allowed == want.sum()


@pytest.mark.parametrize("name", [*COMPUTED, *STORED])
def test_functions_are_evaluated_within_jit_as_outside(name):
  """jax.numpy would otherwise trace what it computes from constants there."""
  mask = masks.from_function((COMPUTED | STORED)[name])
  seen = []

  def traced(x):
    seen.append(masks.from_function(mask.fn).block_mask(64, 64, 16, 8).kinds)
    return x

  want = mask.block_mask(64, 64, 16, 8).kinds
  masks._host_block_mask.build.cache_clear()
  jax.make_jaxpr(traced)(1)
  np.testing.assert_array_equal(seen[0], want)
