"""Attention kernels compile for every TPU generation: the only proof, without a TPU, that they are TPU kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import masks
from blockattn import block_sparse_attention
from masks import _tile_rule
from tests import aot

LENGTH = 8192


def _shapes(q_len, kv_len, num_heads, num_kv_heads, head_dim, value_dim=None, dtype="bfloat16", batch=1):
  return (
    jax.ShapeDtypeStruct((batch, q_len, num_heads, head_dim), dtype),
    jax.ShapeDtypeStruct((batch, kv_len, num_kv_heads, head_dim), dtype),
    jax.ShapeDtypeStruct((batch, kv_len, num_kv_heads, value_dim or head_dim), dtype),
  )


def _packed(batch=2):
  return np.sort(np.random.default_rng(0).integers(0, 9, (batch, LENGTH)), axis=1)


def _attend(mask, **options):
  def fn(q, k, v):
    return block_sparse_attention(q, k, v, mask, return_lse=True, implementation="pallas_tpu", **options)

  return fn


def _gradients(mask, **options):
  def loss(q, k, v):
    out = block_sparse_attention(q, k, v, mask, implementation="pallas_tpu", **options)
    return out.astype(jnp.float32).sum()

  return jax.grad(loss, (0, 1, 2))


def _calls_kernel(compiled, *names):
  text = compiled.as_text()
  return all(name in text for name in names)


@pytest.mark.parametrize("head_dim", [64, 256])  # 128 in the gradients
@pytest.mark.parametrize("chip", aot.CHIPS)
def test_causal_compiles(chip, head_dim):
  compiled = aot.compile_for(chip, _attend(masks.causal()), *_shapes(LENGTH, LENGTH, 8, 2, head_dim))
  assert _calls_kernel(compiled, "attention_forward")


@pytest.mark.parametrize("chip", aot.CHIPS)
def test_gradients_compile(chip):
  compiled = aot.compile_for(chip, _gradients(masks.causal()), *_shapes(LENGTH, LENGTH, 8, 2, 128))
  assert _calls_kernel(compiled, "attention_forward", "attention_dq", "attention_dkv")


@pytest.mark.parametrize("chip", aot.CHIPS)
def test_packed_documents_per_example_compile(chip):
  mask = masks.causal() & masks.document(_packed())
  compiled = aot.compile_for(chip, _attend(mask), *_shapes(LENGTH, LENGTH, 8, 8, 128, batch=2))
  assert _calls_kernel(compiled, "attention_forward")


@pytest.mark.parametrize("chip", aot.CHIPS)
def test_stored_tiles_compile(chip):
  array = np.random.default_rng(0).random((1, 8, 2048, 2048)) < 0.5
  compiled = aot.compile_for(chip, _attend(masks.from_array(array)), *_shapes(2048, 2048, 8, 8, 128))
  assert _calls_kernel(compiled, "attention_forward")


def _every_fourth(q_idx, kv_idx):
  return (q_idx // 2 + kv_idx) % 4 == 0


_RAGGED = _shapes(1000, 1300, 4, 1, 80, 96)

OTHERS = {
  "float32": ("v5e", masks.causal(), _shapes(LENGTH, LENGTH, 8, 2, 128, dtype="float32"), {}),
  "unsorted documents": (
    "v5p",
    masks.document(np.random.default_rng(0).integers(0, 20, LENGTH)),
    _shapes(LENGTH, LENGTH, 2, 1, 128),
    {},
  ),
  "ragged lengths and other value dimension": ("v5e", masks.causal(), _RAGGED, {}),
  "ragged lengths and stored tiles": (
    "v4",
    masks.from_array(np.random.default_rng(0).random((1000, 1300)) < 0.5),
    _RAGGED,
    {},
  ),
  "one query": ("v6e", masks.causal(4), _shapes(1, 5, 3, 1, 64, dtype="float32"), {}),
  "one query, bfloat16": ("v5e", masks.causal(4), _shapes(1, 5, 3, 1, 64), {}),
  "soft cap": (
    "v5e",
    masks.sliding_window(300),
    _shapes(2048, 2048, 4, 2, 128),
    {"logits_soft_cap": 20.0},
  ),
  "soft cap and sinks": (
    "v7x",
    masks.causal(),
    _shapes(2048, 2048, 4, 2, 64),
    {"logits_soft_cap": 20.0, "sinks": np.zeros(4, np.float32)},
  ),
  "function": (
    "v6e",
    masks.causal() & masks.from_function(_every_fourth),
    _shapes(LENGTH, LENGTH, 8, 2, 128),
    {},
  ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_calls_compile(case):
  chip, mask, shapes, options = OTHERS[case]
  assert _calls_kernel(aot.compile_for(chip, _attend(mask, **options), *shapes), "attention_forward")


@pytest.mark.parametrize("setting", [jax.enable_x64(True), jax.default_matmul_precision("highest")])
def test_settings_of_jax_do_not_count_l08_r07(setting):
  with setting:
    compiled = aot.compile_for("v5e", _gradients(masks.causal()), *_shapes(300, 300, 4, 2, 64))
  assert _calls_kernel(compiled, "attention_forward", "attention_dq", "attention_dkv")


@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_traced_documents_with_sinks_and_gradients_compile(chip):
  def loss(q, k, v, ids, sinks):
    mask = masks.document(ids) & masks.causal()
    out = block_sparse_attention(q, k, v, mask, sinks=sinks, implementation="pallas_tpu")
    return out.astype(jnp.float32).sum()

  shapes = _shapes(2048, 2048, 4, 2, 128, batch=2)
  ids, sinks = jax.ShapeDtypeStruct((2, 2048), "int32"), jax.ShapeDtypeStruct((4,), "float32")
  compiled = aot.compile_for(chip, jax.grad(loss, (0, 1, 2, 4)), *shapes, ids, sinks)
  assert _calls_kernel(compiled, "attention_forward", "attention_dq", "attention_dkv")


def _use_every_primitive(i, j):
  shifted = (i << 1) ^ (j >> 1) ^ jax.lax.shift_right_logical(j, np.int32(2))
  near = abs(i - j) < jax.lax.clamp(np.int32(0), jnp.maximum(i, 3), np.int32(200)) + jnp.minimum(j, 1)
  divides = (i // 3 == j // 3) | (i % 7 >= jax.lax.rem(j, np.int32(5))) | (jnp.sign(i - 9) != 1)
  chosen = jnp.where(near, -i * 2, j | (i & 4)) <= shifted
  return (chosen & divides) ^ ~(i.astype(bool) > (j > 70))


def test_functions_of_allowed_primitives_run_in_the_kernel():
  shapes = [jax.ShapeDtypeStruct(s, "int32") for s in ((1, 128), (8, 1))]
  used = _tile_rule.primitives(jax.make_jaxpr(_use_every_primitive)(*shapes).jaxpr)
  assert used == _tile_rule.KERNEL_PRIMITIVES
  for chip in ("v5e", "v7x"):
    mask = masks.from_function(_use_every_primitive)
    compiled = aot.compile_for(chip, _attend(mask), *_shapes(512, 512, 2, 2, 128))
    assert _calls_kernel(compiled, "attention_forward")


def _use_booleans(i, j):
  """Every operation of KERNEL_PRIMITIVES that takes or gives booleans and runs in the kernel on them."""
  below, near, odd = i >= j, abs(i - j) < 9, (i ^ j) % 2 == 1
  ordered = (below < near) | (near <= odd) | (odd > below) | (below >= odd)
  compared = ((below == near) ^ (near != odd)) & ~odd
  converted = (below.astype(jnp.int32) + near) * i
  spread = jax.lax.broadcast_in_dim(np.bool_(True), jnp.shape(below), ())
  return (ordered & compared & spread) | converted.astype(bool)


@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_functions_of_booleans_run_in_the_kernel(chip):
  mask = masks.from_function(_use_booleans)
  assert mask.tile_rule(512, 512) is not None
  compiled = aot.compile_for(chip, _attend(mask), *_shapes(512, 512, 2, 2, 128))
  assert _calls_kernel(compiled, "attention_forward")
