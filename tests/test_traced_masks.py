"""Attention and block masks whose mask holds traced arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

import masks
from blockattn import block_sparse_attention
from blockattn._compat import interpret_mode
from tests import support

B, T, N, K, D = 2, 160, 2, 1, 32
RULES = {
  "documents": lambda ids, lengths: masks.document(ids) & masks.causal(),
  "not documents": lambda ids, lengths: ~masks.document(ids) & masks.causal(),
  "padding": lambda ids, lengths: masks.padding(lengths) & masks.sliding_window(50),
  "prefix": lambda ids, lengths: masks.causal() | masks.prefix(lengths),
  "mixed": lambda ids, lengths: (masks.document(ids) | masks.prefix(3)) & masks.padding(lengths),
}
LENGTHS = np.array([70, 160])


def _ids(seed, sort=True):
  ids = np.random.default_rng(seed).integers(-1, 4, (B, T))
  return np.sort(ids, axis=1) if sort else ids


def _qkv():
  return support.draw(3, T, batch=B, num_heads=N, num_kv_heads=K, head_dim=D)


CASES = [
  *(("xla", None, rule, sort) for rule in RULES for sort in (True, False)),
  *(("pallas_tpu", True, rule, False) for rule in RULES),
  ("pallas_tpu", pltpu.InterpretParams(), "mixed", False),
  ("reference", None, "mixed", False),
]


@pytest.mark.parametrize(("name", "mode", "rule", "sort"), CASES)
def test_traced_arrays_give_the_same_attention_without_recompiling(name, mode, rule, sort):
  q, k, v = _qkv()

  @jax.jit
  def attend(q, k, v, ids, lengths):
    block_mask = RULES[rule](ids, lengths).block_mask(T, T, 64, 64)
    return block_sparse_attention(q, k, v, block_mask, implementation=name)

  with interpret_mode(mode):
    for seed in range(1 if mode not in (None, True) else 2):
      ids = _ids(seed, sort)
      mask = RULES[rule](ids, LENGTHS)
      want, _ = support.oracle(q, k, v, mask.to_dense(T, T).reshape(*mask.lead, T, T))
      got = attend(q, k, v, ids, LENGTHS)
      assert support.rel_rms(got, want) <= support.tolerance("float32")
    assert attend._cache_size() == 1


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("sort", [True, False], ids=["sorted", "unsorted"])
def test_device_kinds_are_safe_bounds_and_maps_stay_in_range(rule, sort):
  ids = _ids(0, sort)
  build = jax.jit(lambda ids, lengths: RULES[rule](ids, lengths).block_mask(T, T, 32, 48))
  device, host = build(ids, LENGTHS), RULES[rule](ids, LENGTHS).block_mask(T, T, 32, 48)
  kinds, exact = np.asarray(device.kinds), host.kinds
  assert not ((kinds == masks.TileKind.EMPTY) & (exact != masks.TileKind.EMPTY)).any()
  assert not ((kinds == masks.TileKind.FULL) & (exact != masks.TileKind.FULL)).any()
  np.testing.assert_array_equal(device.num_active, (kinds > 0).sum(-1))
  for schedule, by_outer in ((device.schedule, kinds), (device.column_schedule, kinds.swapaxes(1, 2))):
    by_outer = by_outer.reshape(-1, by_outer.shape[-1])
    steps, count = schedule.expand(), int(schedule.num_steps)
    outer, inner = np.asarray(steps.outer), np.asarray(steps.inner)
    assert outer.min() >= 0
    assert outer.max() < by_outer.shape[0]
    assert inner.min() >= 0
    assert inner.max() < by_outer.shape[1]
    outer, inner, kind = outer[:count], inner[:count], np.asarray(steps.kinds)[:count]
    visits = np.zeros(by_outer.shape, int)
    np.add.at(visits, (outer[kind > 0], inner[kind > 0]), 1)
    np.testing.assert_array_equal(visits, by_outer > 0)
    np.testing.assert_array_equal(np.unique(outer), np.arange(len(by_outer)))
    assert np.asarray(steps.is_last)[:count].sum() == len(by_outer)
  shape = (B, -1)
  next_i, next_j = (np.asarray(x).reshape(shape) for x in (device.prefetch_i, device.prefetch_j))
  flat, cols = kinds.reshape(shape), kinds.shape[-1]
  for group in range(B):
    for at in range(flat.shape[1]):
      order = [*range(at, flat.shape[1]), *range(at)]
      want = next((t for t in order if flat[group, t]), 0)
      assert (next_i[group, at], next_j[group, at]) == divmod(want, cols)


def test_sorted_ids_are_classified_exactly():
  ids = np.sort(np.random.default_rng(1).integers(0, 6, (B, T)), axis=1)
  device = jax.jit(lambda ids: masks.document(ids).block_mask(T, T, 32, 32))(ids)
  np.testing.assert_array_equal(device.kinds, masks.document(ids).block_mask(T, T, 32, 32).kinds)


def test_a_mask_passes_through_jit_as_an_argument():
  q, k, v = _qkv()
  attend = jax.jit(block_sparse_attention)
  for seed in range(3):
    mask = masks.document(_ids(seed)) & masks.causal()
    want, _ = support.oracle(q, k, v, mask.to_dense(T, T).reshape(B, 1, T, T))
    assert support.rel_rms(attend(q, k, v, mask), want) <= support.tolerance("float32")
  assert attend._cache_size() == 1


def test_one_block_mask_serves_every_layer_of_a_scan():
  """R01: built once outside the scan over layers and passed in, with gradients."""
  x = jax.random.normal(jax.random.key(0), (B, T, 2 * D))
  weights = jax.random.normal(jax.random.key(1), (3, 2 * D, 2 * D)) / 8

  def loss(weights, mask):
    def layer(x, w):
      heads = (x @ w).reshape(B, T, 2, D)
      out = block_sparse_attention(heads, heads, heads, mask, implementation="xla")
      return x + out.reshape(B, T, 2 * D), None

    return (jax.lax.scan(layer, x, weights)[0] ** 2).sum()

  @jax.jit
  def traced(weights, ids):
    block_mask = (masks.document(ids) & masks.causal()).block_mask(T, T, 64, 64)
    return jax.value_and_grad(loss)(weights, block_mask)

  ids = _ids(0)
  value, gradient = traced(weights, ids)
  want, want_gradient = jax.value_and_grad(loss)(weights, masks.document(ids) & masks.causal())
  np.testing.assert_allclose(value, want, rtol=1e-5)
  np.testing.assert_allclose(gradient, want_gradient, atol=1e-5 * np.abs(want_gradient).max())


def test_beyond_its_capacity_a_mask_gives_nan_and_check_raises():
  q, k, v = _qkv()
  # One document: 3 tiles per example. A document per 64 tokens: 1 tile in each of the 3 rows, too.
  build = jax.jit(lambda ids: masks.document(ids).block_mask(T, T, 64, 64, capacity=6))
  fits, overflows = build(np.tile(np.arange(T) // 64, (B, 1))), build(np.zeros((B, T), int))
  attend = jax.jit(lambda block_mask: block_sparse_attention(q, k, v, block_mask, return_lse=True))
  for result in attend(overflows):
    assert np.isnan(result).all()
  with pytest.raises(ValueError, match="capacity of 6 steps"):
    overflows.check()
  fits.check()
  assert np.isfinite(attend(fits)[0]).all()


def test_capacity_of_a_concrete_mask_is_refused():
  with pytest.raises(ValueError, match=r"`capacity` is for masks with traced arrays, got capacity=4"):
    masks.causal().block_mask(64, 64, 32, 32, capacity=4)


def test_stored_tiles_cannot_join_a_traced_mask():
  array = masks.from_array(np.eye(T, dtype=bool))
  with pytest.raises(NotImplementedError, match="cannot be combined with one whose tiles have to be stored"):
    jax.jit(lambda ids: (masks.document(ids) & array).block_mask(T, T, 32, 32).kinds)(_ids(0))


def test_statistics_of_a_traced_block_mask_wait_for_values():
  def build(ids):
    return masks.document(ids).block_mask(T, T, 32, 32)

  with pytest.raises(TypeError, match="need concrete arrays"):
    jax.jit(lambda ids: build(ids).sparsity())(_ids(0))
  ids = _ids(0)
  assert str(jax.jit(build)(ids)) == str(build(ids))


def test_vmap_over_ids_equals_a_batch():
  q, k, v = _qkv()
  ids = jnp.asarray(_ids(2))
  attend = jax.vmap(lambda q, k, v, ids: block_sparse_attention(q, k, v, masks.document(ids)))
  mask = masks.document(np.asarray(ids))
  want, _ = support.oracle(q, k, v, mask.to_dense(T, T).reshape(B, 1, T, T))
  assert support.rel_rms(attend(q, k, v, ids), want) <= support.tolerance("float32")
