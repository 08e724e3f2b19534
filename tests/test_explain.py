"""explain: what a call would do, without doing it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

import masks
from blockattn._compat import interpret_mode
from tests.support import BlockSizes, explain


def _arrays(q_len=512, kv_len=None, num_heads=8, num_kv_heads=2, head_dim=64, value_dim=None, batch=2):
  kv_len = q_len if kv_len is None else kv_len
  shapes = (
    (batch, q_len, num_heads, head_dim),
    (batch, kv_len, num_kv_heads, head_dim),
    (batch, kv_len, num_kv_heads, value_dim or head_dim),
  )
  return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]


SIZES = BlockSizes(128, 128)


class TestImplementation:
  def test_default_off_tpu_is_xla(self):
    explanation = explain(*_arrays(), masks.causal())
    assert explanation.implementation == "xla"
    assert explanation.reason == "the default device is a CPU, not a TPU"
    assert not explanation.interpreted

  @pytest.mark.parametrize("name", ["pallas_tpu", "xla", "reference"])
  def test_named(self, name):
    explanation = explain(*_arrays(), masks.causal(), implementation=name)
    assert explanation.implementation == name
    assert explanation.reason == "named in the call"

  @pytest.mark.parametrize(
    ("mode", "interpreted"), [(True, True), (pltpu.InterpretParams(), True), (False, False), (None, True)]
  )
  def test_says_whether_kernels_are_interpreted(self, mode, interpreted):
    with interpret_mode(mode):
      explanation = explain(*_arrays(), masks.causal(), implementation="pallas_tpu")
      assert explanation.interpreted == interpreted
      assert ("interpreted: correct but slow" in str(explanation)) == interpreted
      assert not explain(*_arrays(), masks.causal(), implementation="xla").interpreted


class TestBlockSizes:
  def test_from_the_call(self):
    explanation = explain(*_arrays(), masks.causal(), block_sizes=BlockSizes(block_q=128))
    assert explanation.sizes_from == "call"
    assert (explanation.block_sizes.block_q, explanation.block_sizes.block_kv) == (128, 256)

  def test_from_the_block_mask(self):
    block_mask = masks.causal().block_mask(512, 512, 64, 32)
    explanation = explain(*_arrays(), block_mask)
    assert explanation.sizes_from == "block mask"
    assert explanation.block_sizes == BlockSizes(64, 32)
    assert explanation.stats == block_mask.stats()

  @pytest.mark.parametrize("length", [1, 100, 128, 129, 300, 5000])
  @pytest.mark.parametrize("name", ["pallas_tpu", "xla"])
  def test_defaults_are_legal_on_tpu_and_no_longer_than_needed(self, length, name):
    with interpret_mode(False):
      explanation = explain(*_arrays(length, 77), masks.causal(), implementation=name)
    assert explanation.sizes_from == "default"
    for size, most in (
      (explanation.block_sizes.block_q, length),
      (explanation.block_sizes.block_kv, 77),
    ):
      assert size % 128 == 0
      assert size < most + 128

  def test_of_empty_arrays(self):
    explanation = explain(*_arrays(0, 5), masks.causal())
    assert explanation.flops == explanation.dense_flops == 0
    assert "0 of 0 tiles active" in str(explanation)


class TestTiles:
  @pytest.mark.parametrize(
    ("mask", "how"),
    [
      (masks.full(), "none"),
      (masks.causal(), "computed"),
      (masks.causal() & masks.document(np.repeat([0, 1, 2], [200, 200, 112])), "computed"),
      (masks.from_function(lambda i, j: (i + j) % 2 == 0), "computed"),
      (masks.from_array(np.tri(512, dtype=bool)), "stored"),
      (masks.from_array(np.ones((512, 512), bool)), "none"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
  )
  def test_says_how_partial_tiles_come_about(self, mask, how):
    assert explain(*_arrays(), mask, block_sizes=SIZES).partial_tiles == how

  def test_counts_floating_point_operations_of_both_matmuls(self):
    explanation = explain(*_arrays(head_dim=64, value_dim=32), masks.causal(), block_sizes=SIZES)
    per_tile = 2 * 128 * 128 * (64 + 32)
    assert explanation.flops == 2 * 8 * 10 * per_tile
    assert explanation.dense_flops == 2 * 8 * 16 * per_tile

  def test_counts_examples_and_heads_that_the_mask_distinguishes_once(self):
    mask = masks.padding([128, 512]) & masks.from_array(np.ones((1, 8, 512, 512), bool))
    explanation = explain(*_arrays(), mask, block_sizes=SIZES)
    assert explanation.flops == 8 * (4 + 16) * 2 * 128 * 128 * (64 + 64)

  def test_reference_is_dense_whatever_the_mask(self):
    explanation = explain(*_arrays(), masks.causal(), block_sizes=SIZES, implementation="reference")
    assert explanation.flops == explanation.dense_flops


def test_takes_arrays_with_and_without_batch():
  q = jnp.ones((64, 2, 8))
  explanation = explain(q, q, q, masks.causal(), scale=0.1, logits_soft_cap=20, sinks=jnp.zeros(2))
  assert explanation.flops == 2 * 2 * 128 * 128 * 16


def test_prints_every_line():
  lines = str(explain(*_arrays(), masks.causal(), block_sizes=SIZES)).splitlines()
  assert lines == [
    "implementation: xla (the default device is a CPU, not a TPU)",
    "block sizes:    BlockSizes(block_q=128, block_kv=128, sub_q=None, sub_kv=None) (from: call)",
    "tiles:          10 of 16 tiles active (62.5%): 6 full, 4 partial; per row 1 to 4, mean 2.5; 50.10% of "
    "pairs allowed, 80% of those computed",
    "partial tiles:  computed",
    "matmul FLOPs:   6.711e+08, 62.5% of dense 1.074e+09",
  ]


def test_runs_nothing():
  """A call of this size would take hours and hold terabytes."""
  q = jax.ShapeDtypeStruct((1, 2**20, 128, 128), jnp.bfloat16)
  explanation = explain(q, q, q, masks.causal(), block_sizes=BlockSizes(2048, 2048))
  assert explanation.stats.num_active == 512 * 513 // 2
