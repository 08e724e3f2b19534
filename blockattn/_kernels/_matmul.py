"""What the matmul kernels share: how K is cut, and the product of two blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from blockattn._kernels import _limits


def choose_block_k(k_len: int, num_bytes: Callable[[int], int]) -> int:
  """The longest block along K that fits into VMEM.

  Args:
    k_len: Length of K.
    num_bytes: VMEM that a kernel takes with a given block_k.

  Returns:
    `k_len`, or a multiple of 128; at least 128, also where that does not fit.
  """
  if k_len <= _limits.LANES or num_bytes(k_len) <= _limits.VMEM_BYTES:
    return k_len
  block_k = _limits.LANES
  while num_bytes(block_k + _limits.LANES) <= _limits.VMEM_BYTES:
    block_k += _limits.LANES
  # Blocks of one size, of which the last is whole where 128 divides K.
  num_blocks = pl.cdiv(k_len, block_k)
  while num_blocks * _limits.LANES < k_len and k_len % (num_blocks * _limits.LANES):
    num_blocks += 1
    if num_blocks * block_k > 2 * k_len:  # no divisor near
      return block_k
  return _limits.round_up(pl.cdiv(k_len, num_blocks), _limits.LANES)


def vmem_bytes(block_shape: tuple[int, int], block_k: int, dtypes: tuple[Any, Any, Any]) -> int:
  """VMEM of a kernel that multiplies x [bm, block_k] by y [block_k, bn] under a mask tile, in bytes.

  Args:
    block_shape: (bm, bn), of the output and the mask.
    block_k: The inner size.
    dtypes: Of x, y and the output.

  Returns:
    Double-buffered blocks, the accumulator and as much again for what is spilled, and the parts of
    a float32 product.
  """
  bm, bn = block_shape
  x_size, y_size, o_size = (jnp.dtype(dtype).itemsize for dtype in dtypes)
  blocks = 2 * (x_size * bm * block_k + y_size * block_k * bn + (o_size + 1) * bm * bn)
  # A float32 product takes three bfloat16 parts of each operand.
  parts = 6 * block_k * (bm + bn) if max(x_size, y_size) == 4 else 0
  return blocks + parts + 8 * bm * bn


def product(x: jax.Array, y: jax.Array, left: Any, transpose_y: bool = False) -> jax.Array:
  """X @ y in float32; float32 operands in full precision.

  Args:
    x: [bm, bk].
    y: [bk, bn], or [bn, bk] with `transpose_y`.
    left: How much of bk lies inside the arrays, or None where all of it does. The rest is garbage
      that may be NaN.
    transpose_y: Whether y is transposed.

  Returns:
    [bm, bn] float32.
  """
  y_axis = 1 if transpose_y else 0
  if left is not None:
    x = _cut(x, 1, left)
    y = _cut(y, y_axis, left)
  dtype = jnp.promote_types(x.dtype, y.dtype)
  # Given in any case, as bfloat16 under jax_default_matmul_precision="highest" does not compile.
  precision = lax.Precision.HIGHEST if dtype == jnp.float32 else lax.Precision.DEFAULT
  return lax.dot_general(
    x.astype(dtype),
    y.astype(dtype),
    (((1,), (y_axis,)), ((), ())),
    precision=precision,
    preferred_element_type=jnp.float32,
  )


def accumulate(acc: jax.Array, product: jax.Array, is_first: Any) -> jax.Array:
  """Adds `product` to `acc`; in the first step, where `acc` holds anything, it is the product alone.

  The selection is free beside the matrix unit; a pass that sets the accumulator to zero is not, and a
  second body for the first step doubles the time to compile.
  """
  return jnp.where(is_first, 0.0, acc) + product


def _cut(block: jax.Array, axis: int, left: Any) -> jax.Array:
  inside = lax.broadcasted_iota(jnp.int32, block.shape, axis) < left
  return jnp.where(inside, block, jnp.zeros_like(block))
