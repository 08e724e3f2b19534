import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import masks
from blockattn import attention_weights, dsd_matmul
from blockattn._compat import interpret_mode
from tests.support import draw, oracle, rel_rms, tolerance


@functools.partial(jax.jit, static_argnames=("mask", "block_shape", "scale"))
def attend(q, k, v, mask, block_shape=None, scale=None):
  """The weights, and the output that they give, for [B, tokens, heads, D]."""
  weights = attention_weights(q, k, mask, block_shape=block_shape, scale=scale)
  v = jnp.repeat(v.swapaxes(1, 2), q.shape[2] // v.shape[2], axis=1)
  return weights, dsd_matmul(weights, v).swapaxes(1, 2)


# (T, S, mask)
CASES = {
  "causal": (256, 256, masks.causal()),
  "window_ragged": (200, 300, masks.causal(30) & masks.sliding_window(90)),
}


@pytest.mark.parametrize("case", CASES)
def test_weights_times_values_are_attention(interpret, case):
  q_len, kv_len, mask = CASES[case]
  q, k, v = draw(0, q_len, kv_len, num_heads=4, num_kv_heads=2)
  weights, out = attend(q, k, v, mask, block_shape=(64, 128))
  assert weights.blocks.shape[:2] == (1, 4)
  assert rel_rms(out, oracle(q, k, v, mask.to_dense(q_len, kv_len))[0]) <= tolerance("float32")


@pytest.mark.parametrize("amplitude", [1, 5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_precision_is_that_of_float32_softmax(dtype, amplitude):
  q, k, v = draw(2, 512, dtype=dtype, amplitude=amplitude)
  mask = masks.causal()
  _, out = attend(q, k, v, mask, block_shape=(128, 256))
  assert out.dtype == dtype
  want = oracle(q, k, v, mask.to_dense(512, 512))[0]
  assert rel_rms(out, want) <= tolerance(dtype, amplitude)


def test_rows_sum_to_one_and_masked_weights_are_zero():
  q, k, _ = draw(1, 200, 300, dtype="bfloat16")
  mask = masks.causal(30)
  a = attention_weights(q, k, mask, block_shape=(64, 128), preferred_element_type=jnp.float32)
  weights = np.asarray(a.to_dense())[0, 0]
  np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
  np.testing.assert_array_equal(weights[~mask.to_dense(200, 300)], 0)
  np.testing.assert_allclose(np.asarray(a.blocks).sum(), 200, rtol=1e-6)


def test_e01_rows_without_key_are_zero():
  q, k, v = draw(1, 256)
  mask = masks.from_function(lambda i, j: (j <= i) & (i != 5) & (i != 200))
  weights, out = attend(q, k, v, mask, block_shape=(128, 128))
  dense = mask.to_dense(256, 256)
  np.testing.assert_array_equal(np.asarray(out)[0, [5, 200]], 0)
  np.testing.assert_array_equal(np.asarray(weights.to_dense())[0, 0, [5, 200]], 0)
  assert rel_rms(out, oracle(q, k, v, dense)[0]) <= tolerance("float32")


def test_e03_a_masked_key_is_not_a_very_unlikely_one():
  q, k, v = draw(24, 192, 128)
  mask = masks.causal(-64)
  _, out = attend(q, k, v + 3, mask, block_shape=(128, 128))
  np.testing.assert_array_equal(np.asarray(out)[0, :64], 0)
  assert rel_rms(out, oracle(q, k, v + 3, mask.to_dense(192, 128))[0]) <= tolerance("float32")


def test_n05_very_negative_scores_are_not_masked_ones():
  v = draw(6, 256)[2]
  q = jnp.full((256, 64), 1e15)
  _, out = attend(q[None, :, None], -q[None, :, None], v, masks.causal(), block_shape=(128, 128))
  mean = np.cumsum(v, axis=1) / np.arange(1, 257)[:, None, None]
  np.testing.assert_allclose(out, mean, atol=1e-5)


def test_g01_query_heads_share_the_key_head_of_their_group():
  q, k, _ = draw(0, 128, num_heads=6, num_kv_heads=2)
  weights = attention_weights(q, k, masks.causal())
  for head in range(6):
    alone = attention_weights(q[0, :, head], k[0, :, head // 3], masks.causal())
    np.testing.assert_allclose(weights.blocks[0, head], alone.blocks, atol=1e-6)


def test_leading_dimensions_may_be_left_out():
  q, k, v = draw(3, 128, num_heads=2)
  full = attention_weights(q, k, masks.causal())
  heads = attention_weights(q[0], k[0], masks.causal())
  assert heads.blocks.shape == (2, 1, 128, 128)
  np.testing.assert_array_equal(heads.blocks, full.blocks[0])
  matrix = attention_weights(q[0, :, 0], k[0, :, 0], masks.causal())
  assert matrix.blocks.shape == (1, 128, 128)
  out = dsd_matmul(matrix, v[0, :, 0])
  want = oracle(q[:, :, :1], k[:, :, :1], v[:, :, :1], masks.causal().to_dense(128, 128))[0]
  assert rel_rms(out, want[0, :, 0]) <= tolerance("float32")


def test_i03_few_queries_and_very_many_keys_visit_one_tile():
  q, k, v = draw(93, 32, 65536)
  weights, out = attend(q, k, v, masks.causal(), block_shape=(32, 128))
  assert (weights.capacity, weights.shape) == (1, (32, 65536))
  want = oracle(q, k[:, :32], v[:, :32], masks.causal().to_dense(32, 32))[0]
  assert rel_rms(out, want) <= tolerance("float32")


@pytest.mark.parametrize("scale", [0.5, -2.0, 0.0])
def test_scale_may_be_any_number(scale):
  q, k, v = draw(3, 128)
  _, out = attend(q, k, v, masks.causal(), scale=scale)
  want = oracle(q, k, v, masks.causal().to_dense(128, 128), scale=scale)[0]
  assert rel_rms(out, want) <= tolerance("float32")


def test_l06_lowers_for_tpu():
  q, k, v = draw(0, 256, num_heads=2, dtype="bfloat16")
  with interpret_mode(False):
    f = jax.jit(lambda q, k, v: attend(q, k, v, masks.causal(), (64, 128))[1])
    assert jax.export.export(f, platforms=["tpu"])(q, k, v).out_avals[0].shape == q.shape


@pytest.mark.parametrize(
  ("kwargs", "error", "message"),
  [
    ({"q": np.ones((1, 128, 6, 64), np.float32)}, ValueError, "multiple of the heads of `k`, got 6 and 4"),
    (
      {"q": np.ones((1, 128, 4, 32), np.float32)},
      ValueError,
      r"agree in head_dim and batch, got shapes \(1, 128, 4, 32\)",
    ),
    ({"q": np.ones((2, 128, 4, 64), np.float32)}, ValueError, "agree in head_dim and batch"),
    (
      {"q": np.ones((128, 4, 64), np.float32)},
      ValueError,
      r"must both be \[tokens, D\].*got shapes \(128, 4, 64\)",
    ),
    ({"q": np.ones((1, 128, 4, 64), np.float16)}, TypeError, "`q` must be float32 or bfloat16, got float16"),
    ({"mask": np.ones((128, 128), bool)}, TypeError, "`mask` must be a masks.Mask .*got ndarray"),
    ({"preferred_element_type": np.int8}, TypeError, "`preferred_element_type` must be .* got int8"),
  ],
)
def test_wrong_operands_are_rejected(kwargs, error, message):
  k = np.ones((1, 128, 4, 64), np.float32)
  with pytest.raises(error, match=message):
    attention_weights(**{"q": k, "k": k, "mask": masks.causal()} | kwargs)
