"""What the matmul kernels share: how K is cut, and the product of two blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from blockattn._kernels import _limits
from blockattn._kernels._limits import LANES


def choose_block_k(k_len: int, num_bytes: Callable[[int], int]) -> int:
  """The longest block along K that fits into VMEM; a somewhat shorter one where that divides K.

  Args:
    k_len: Length of K.
    num_bytes: VMEM that a kernel takes with a given block_k.

  Returns:
    `k_len`, or a multiple of 128; at least 128, also where that does not fit.
  """
  if k_len <= LANES or num_bytes(k_len) <= _limits.VMEM_BYTES:
    return k_len
  fitting = [k for k in range(LANES, k_len, LANES) if num_bytes(k) <= _limits.VMEM_BYTES]
  if not fitting:
    return LANES
  even = [k for k in fitting if k_len % k == 0 and 2 * k >= fitting[-1]]
  if even:
    return even[-1]
  return _limits.round_up(pl.cdiv(k_len, pl.cdiv(k_len, fitting[-1])), LANES)


def vmem_bytes(block_shape: tuple[int, int], block_k: int, k_len: int, dtypes: tuple[Any, Any, Any]) -> int:
  """VMEM of a kernel that multiplies x [bm, block_k] by y [block_k, bn] under a mask tile, in bytes.

  Args:
    block_shape: (bm, bn), of the output and the mask.
    block_k: The inner size of a step.
    k_len: The inner size of the arrays.
    dtypes: Of x, y and the output.

  Returns:
    Double-buffered blocks, the accumulator and as much again for what is spilled, the parts of a
    float32 product, and copies of the operands where they have to be cut.
  """
  bm, bn = block_shape
  x_size, y_size, o_size = (jnp.dtype(dtype).itemsize for dtype in dtypes)
  operands = block_k * (x_size * bm + y_size * bn)
  # A float32 product takes three bfloat16 parts of each operand.
  parts = 6 * block_k * (bm + bn) if max(x_size, y_size) == 4 else 0
  copies = operands if k_len % block_k else 0
  return 2 * operands + parts + copies + (2 * o_size + 2 + 8) * bm * bn


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
    x = cut(x, 1, left)
    y = cut(y, y_axis, left)
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


def cut(block: jax.Array, axis: int, left: Any) -> jax.Array:
  """`block` with zeros from index `left` on: beyond the end of an array there may be NaN."""
  inside = lax.broadcasted_iota(jnp.int32, block.shape, axis) < left
  return jnp.where(inside, block, jnp.zeros_like(block))
