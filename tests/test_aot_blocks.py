"""Every building block compiles for every TPU generation, at the sizes of the tutorial."""

import functools

import jax
import jax.numpy as jnp
import pytest

import masks
from blockattn import (
  BlockCOO,
  attention_weights,
  block_dynamic_slice,
  dsd_matmul,
  masked_matmul,
  sdd_matmul,
)
from blockattn._block_matmul import masked_blocks
from tests import aot

SIZE, BLOCK = 16384, 512
CHIP = pytest.mark.parametrize("chip", aot.CHIPS)
DTYPE = pytest.mark.parametrize("dtype", ["bfloat16", "float32"])


def array(*shape, dtype="bfloat16"):
  return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def coo(capacity, shape, block_shape, dtype):
  """A BlockCOO of abstract arrays, with a traced live count."""
  places = [array(capacity, dtype="int32")] * 2
  build = functools.partial(BlockCOO, shape=shape)
  leaves = array(capacity, *block_shape, dtype=dtype), *places
  return jax.eval_shape(lambda *x: build(*x[:3], num_blocks=x[3]), *leaves, array(dtype="int32"))


@CHIP
@DTYPE
def test_dsd_matmul_compiles(chip, dtype):
  a = coo(128, (SIZE, SIZE), (BLOCK, BLOCK), dtype)
  program = aot.compile_for(chip, dsd_matmul, a, array(SIZE, SIZE, dtype=dtype))
  assert "dsd_matmul" in program.as_text()
  # Besides the product, there is only the schedule: neither operand is copied.
  assert program.memory_analysis().temp_size_in_bytes < 2**20


@CHIP
def test_dsd_matmul_compiles_with_a_ragged_end_and_many_matrices(chip):
  a = coo(40, (5000, 5000), (256, 512), "bfloat16")
  batch = jax.tree.map(lambda x: array(4, *x.shape, dtype=x.dtype), (a, array(5000, 128)))
  aot.compile_for(chip, jax.vmap(dsd_matmul), *batch)


@CHIP
@DTYPE
def test_masked_matmul_compiles(chip, dtype):
  x = array(SIZE, SIZE, dtype=dtype)
  program = aot.compile_for(chip, lambda x, y: masked_matmul(x, y, masks.causal()), x, x)
  assert program.memory_analysis().temp_size_in_bytes < 2**20


@CHIP
def test_masked_matmul_compiles_with_the_tiles_of_the_tutorial(chip):
  x = array(SIZE, SIZE)
  f = functools.partial(masked_matmul, mask=masks.causal(), block_shape=(BLOCK, BLOCK))
  aot.compile_for(chip, f, x, x)


@CHIP
@DTYPE
def test_sdd_matmul_compiles(chip, dtype):
  x = array(8192, 5000, dtype=dtype)  # a ragged end in K
  f = lambda x, y: sdd_matmul(x, y, masks.sliding_window(1024)).blocks  # noqa: E731
  aot.compile_for(chip, f, x, array(5000, 8000, dtype=dtype))


@CHIP
@DTYPE
def test_scores_of_attention_weights_compile(chip, dtype):
  q = array(8192, 128, dtype=dtype)
  block_mask = masks.causal().block_mask(8192, 8192, 512, 512)

  def scores(q, k):
    kwargs = {"out_dtype": jnp.dtype("float32"), "scale": 0.1, "fill": -jnp.inf, "transpose_y": True}
    return masked_blocks(q, k, block_mask, **kwargs).blocks

  aot.compile_for(chip, scores, q, q)


def test_attention_weights_compile_without_a_dense_matrix():
  tokens = 2**15
  q, mask = array(tokens, 128), masks.sliding_window(1024)

  def output(q, k, v):
    return dsd_matmul(attention_weights(q, k, mask), v)

  program = aot.compile_for("v4", output, q, q, q)
  active = mask.block_mask(tokens, tokens, 512, 512).num_active.sum()
  scores = 4 * 512**2 * active  # float32
  assert program.memory_analysis().temp_size_in_bytes < 2.5 * scores < 4 * tokens**2 / 8


@CHIP
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "int8"])
@pytest.mark.parametrize("shape", [(1_000_003,), (2, 3, 500, 1100)])
def test_block_dynamic_slice_compiles(chip, dtype, shape):
  sizes = tuple(size // 2 + 1 for size in shape)
  f = functools.partial(block_dynamic_slice, sizes=sizes)
  x = array(*shape, dtype=dtype)
  program = aot.compile_for(chip, f, x, array(len(shape), dtype="int32"))
  assert "block_dynamic_slice" in program.as_text()
