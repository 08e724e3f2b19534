import jax.numpy as jnp
import numpy as np
import pytest

import masks
from benchmarks import _attention_case as case

TOKENS = np.random.default_rng(0).integers(0, 256, (2, 300), np.uint8)


def brute_force(q, k, v, allowed):
  q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
  out = np.zeros((*q.shape[:3], v.shape[-1]))
  for b, t, n in np.ndindex(q.shape[:3]):
    kv_head = n // (q.shape[2] // k.shape[2])
    weights = np.exp(k[b, :, kv_head] @ q[b, t, n] / np.sqrt(q.shape[-1])) * allowed[b, t]
    if weights.any():
      out[b, t, n] = weights @ v[b, :, kv_head] / weights.sum()
  return out


@pytest.mark.parametrize(
  "mask",
  [
    masks.causal(),
    masks.sliding_window(20) & masks.document([0] * 100 + [1] * 150 + [-1] * 50),
    masks.causal() & masks.document([[0] * 300, [0] * 100 + [1] * 200]),
  ],
  ids=["causal", "empty_rows", "per_example"],
)
def test_oracle_and_dense_softmax_agree_with_brute_force(mask):
  q, k, v = case.project_tokens(TOKENS, 4, 2, 8, jnp.dtype("float32"))
  allowed = np.broadcast_to(mask.to_dense(300, 300), (2, 300, 300))
  expected = brute_force(q, k, v, allowed)
  oracle = case.float64_oracle(q, k, v, mask)
  np.testing.assert_allclose(oracle.values, expected, rtol=1e-12, atol=1e-13)
  dense = case.dense_softmax(q, k, v, case.dense_mask(mask, 300))
  assert oracle.relative_rms(dense) < 5e-6
  assert oracle.relative_rms(dense * 1.001) == pytest.approx(1e-3, rel=1e-2)


def test_oracle_takes_evenly_spread_rows_where_all_are_too_many():
  q, k, v = case.project_tokens(np.tile(TOKENS, 5), 1, 1, 8, jnp.dtype("float32"))
  mask = masks.causal()
  every = case.float64_oracle(q, k, v, mask)
  some = case.float64_oracle(q, k, v, mask, max_scores=2 * 2 * 256 * 1500)
  np.testing.assert_array_equal(some.rows, [*range(256, 512), *range(1024, 1280)])
  np.testing.assert_array_equal(some.values, every.values[:, some.rows])


def test_projected_tokens_have_the_shapes_asked_for_and_unit_variance():
  q, k, v = case.project_tokens(TOKENS, 4, 2, 16, jnp.dtype("bfloat16"))
  assert [x.shape for x in (q, k, v)] == [(2, 300, 4, 16), (2, 300, 2, 16), (2, 300, 2, 16)]
  assert q.dtype == jnp.bfloat16
  assert np.std(np.asarray(k, np.float32)) == pytest.approx(1, abs=0.1)
