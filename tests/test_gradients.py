"""Gradients of every implementation against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

import masks
from blockattn import BlockSizes, block_sparse_attention
from blockattn._compat import interpret_mode
from tests import support
from tests.gradient_oracle import gradients

RUNS = {
  "reference": ("reference", None),
  "xla": ("xla", None),
  "plain": ("pallas_tpu", True),
  "emulated": ("pallas_tpu", pltpu.InterpretParams()),
}
T, S, N, K, D, DV, B = 100, 140, 4, 2, 16, 24, 2
BLOCKS = BlockSizes(block_q=64, block_kv=128)
TOLERANCES = {("float32", 1): 5e-6, ("float32", 5): 5e-5, ("bfloat16", 1): 4e-3, ("bfloat16", 5): 1.2e-2}


@pytest.fixture(params=["xla", "plain"])
def implementation(request):
  name, mode = RUNS[request.param]
  with interpret_mode(mode):
    yield name


def _every_third(q_idx, kv_idx):
  return (q_idx + kv_idx) % 3 == 0


def _masks():
  rng = np.random.default_rng(5)
  sorted_ids = [np.sort(rng.integers(-1, 4, (B, n)), axis=1) for n in (T, S)]
  return {
    "full": masks.full(),
    "causal": masks.causal(S - T),
    "documents": masks.document(*sorted_ids),
    "unsorted documents": masks.document(rng.integers(-1, 3, T), rng.integers(-1, 3, S)),
    "function": masks.from_function(_every_third) & masks.causal(),
    "array per head": masks.from_array(rng.random((B, N, T, S)) < 0.3) & masks.causal(70),
    "nothing": ~masks.full(),
    "empty rows and columns": masks.causal(-40) & masks.padding([70, S]),
  }


MASKS = _masks()


def _inputs(dtype="float32", amplitude=1, num_kv_heads=K):
  rng = np.random.default_rng(7)
  shapes = ((B, T, N, D), (B, S, num_kv_heads, D), (B, S, num_kv_heads, DV), (B, T, N, DV))
  scales = (amplitude, amplitude, 1, 1)
  q, k, v, dout = (
    jnp.asarray(c * rng.standard_normal(s), dtype) for s, c in zip(shapes, scales, strict=True)
  )
  return q, k, v, dout, jnp.asarray(rng.standard_normal((B, N, T)), jnp.float32)


def _loss(q, k, v, sinks, mask, dout, dlse, name, **options):
  out, lse = block_sparse_attention(
    q, k, v, mask, sinks=sinks, return_lse=True, implementation=name, block_sizes=BLOCKS, **options
  )
  lse_part = jnp.where(jnp.isfinite(lse), lse * dlse, 0).sum()
  return (out.astype(jnp.float32) * dout.astype(jnp.float32)).sum() + lse_part


def _dense(mask):
  return mask.to_dense(T, S).reshape(*mask.lead, T, S)


# The emulated TPU is slow and finds what the plain interpreter hides: revisited blocks, indices out of range.
CASES = [
  *((run, mask, True) for run in ("xla", "plain") for mask in MASKS),
  *((run, "causal", False) for run in RUNS),
  ("reference", "causal", True),
  *(("emulated", mask, True) for mask in ("unsorted documents", "array per head", "empty rows and columns")),
]


@pytest.mark.parametrize(("run", "mask", "with_options"), CASES)
def test_gradients_equal_float64(run, mask, with_options):
  implementation, mode = RUNS[run]
  with interpret_mode(mode):
    _check_gradients(implementation, MASKS[mask], with_options)


def _check_gradients(implementation, mask, with_options):
  q, k, v, dout, dlse = _inputs()
  sinks = jnp.linspace(-1, 1, N) if with_options else None
  options = {"logits_soft_cap": 5.0} if with_options else {}
  argnums = (0, 1, 2, 3) if with_options else (0, 1, 2)
  got = jax.grad(_loss, argnums)(q, k, v, sinks, mask, dout, dlse, implementation, **options)
  want = gradients(q, k, v, dout, dlse, _dense(mask), sinks=sinks, **options)
  for name, a, b in zip(("dq", "dk", "dv", "dsinks"), got, want, strict=False):
    assert support.rel_rms(a, b) <= TOLERANCES["float32", 1], name


@pytest.mark.parametrize(("dtype", "amplitude"), [*TOLERANCES][1:])
def test_gradients_keep_their_precision_at_real_logit_scales(implementation, dtype, amplitude):
  mask = MASKS["causal"]
  q, k, v, dout, dlse = _inputs(dtype, amplitude)
  got = jax.grad(_loss, (0, 1, 2))(q, k, v, None, mask, dout, dlse, implementation)
  want = gradients(*(np.asarray(x, np.float32) for x in (q, k, v, dout)), dlse, _dense(mask))
  for name, a, b in zip(("dq", "dk", "dv"), got, want, strict=False):
    assert a.dtype == q.dtype
    assert support.rel_rms(np.asarray(a, np.float32), b) <= TOLERANCES[dtype, amplitude], name


@pytest.mark.parametrize("num_kv_heads", [1, 4])
def test_gradients_for_one_and_for_all_kv_heads(implementation, num_kv_heads):
  mask = MASKS["array per head"]
  q, k, v, dout, dlse = _inputs(num_kv_heads=num_kv_heads)
  got = jax.grad(_loss, (0, 1, 2))(q, k, v, None, mask, dout, dlse, implementation)
  want = gradients(q, k, v, dout, dlse, _dense(mask))
  assert all(support.rel_rms(a, b) <= TOLERANCES["float32", 1] for a, b in zip(got, want, strict=False))


def test_rows_and_keys_without_partner_have_exactly_zero_gradients(implementation):
  """E01: huge gradients of rows without allowed key must not leak; E07: keys without a query."""
  allowed = np.array(masks.causal().to_dense(T, S))
  allowed[[5, 90]] = False
  allowed[:, 110:] = False
  q, k, v, dout, dlse = _inputs()
  dout = dout.at[:, np.array([5, 90])].set(1e4)
  args = (masks.from_array(allowed), dout, dlse, implementation)
  dq, dk, dv = jax.grad(_loss, (0, 1, 2))(q, k, v, None, *args)
  want = gradients(q, k, v, dout, dlse, allowed)
  np.testing.assert_array_equal(dq[:, np.array([5, 90])], 0)
  np.testing.assert_array_equal(dk[:, 110:], 0)
  np.testing.assert_array_equal(dv[:, 110:], 0)
  for got, expected in zip((dq, dk, dv), want, strict=False):
    assert support.rel_rms(got, expected) <= TOLERANCES["float32", 1]


@pytest.mark.parametrize("name", ["xla", "pallas_tpu"])
def test_scan_over_layers_unrolled_or_not_gives_the_same_gradients(name):
  """R03."""
  mask = masks.causal()
  x = jax.random.normal(jax.random.key(0), (64, 32))
  weights = jax.random.normal(jax.random.key(1), (3, 32, 32)) / 6

  def layer(x, w):
    heads = (x @ w).reshape(64, 2, 16)
    out = block_sparse_attention(heads, heads, heads, mask, implementation=name)
    return x + out.reshape(64, 32), None

  def loop(weights):
    y = x
    for w in weights:
      y, _ = layer(y, w)
    return (y**2).sum()

  def scan(weights, **options):
    return (jax.lax.scan(layer, x, weights, **options)[0] ** 2).sum()

  want = jax.grad(loop)(weights)
  for fn in (scan, lambda w: scan(w, unroll=3), jax.checkpoint(scan), jax.jit(scan)):
    np.testing.assert_allclose(jax.grad(fn)(weights), want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("name", ["xla", "pallas_tpu"])
def test_forward_mode_says_that_it_is_missing(name):
  """R05, jvp."""
  q = jax.random.normal(jax.random.key(0), (16, 1, 8))

  def f(q):
    return block_sparse_attention(q, q, q, masks.causal(), implementation=name).sum()

  with pytest.raises(TypeError, match="custom_vjp"):
    jax.jvp(f, (q,), (q,))


def test_remat_policy_keeps_out_and_lse_by_name():
  """R08: with the documented names saved, the forward kernel appears once."""
  q = jax.random.normal(jax.random.key(0), (128, 1, 32))
  names = ("block_sparse_attention_out", "block_sparse_attention_lse")

  def f(q):
    return block_sparse_attention(q, q, q, masks.causal(), implementation="pallas_tpu").sum()

  def forward_kernels(policy):
    remat = jax.checkpoint(f, policy=policy)
    return str(jax.make_jaxpr(jax.grad(remat))(q)).count("name=attention_forward"), jax.grad(remat)(q)

  saved, gradient = forward_kernels(jax.checkpoint_policies.save_only_these_names(*names))
  recomputed, same = forward_kernels(jax.checkpoint_policies.nothing_saveable)
  assert saved < recomputed
  np.testing.assert_array_equal(gradient, same)
