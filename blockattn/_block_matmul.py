"""Matrix products with a block-sparse operand, result or mask."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from blockattn._batching import vmap_leading
from blockattn._compat import resolve_interpret
from blockattn._kernels import _limits, _matmul, dsd, sdd
from blockattn._kernels import masked_matmul as _masked
from blockattn._mask_argument import resolve_block_mask
from blockattn.block_coo import BlockCOO
from masks import BlockMask, Mask


def dsd_matmul(
  a: BlockCOO,
  b: jax.Array,
  *,
  block_n: int | None = None,
  preferred_element_type: Any = None,
) -> jax.Array:
  """Multiplies a block-sparse matrix by a dense one: dense = sparse @ dense.

  Works on the live blocks only, also when their number is traced: the grid has a step for each live
  block, and one for each row of blocks without any, which writes zeros. Accumulates in float32, and
  multiplies float32 operands in full precision.

  Under `jax.vmap`, matrices with layouts of their own run one after the other.

  Args:
    a: BlockCOO of shape (M, K), float32 or bfloat16; leading dimensions of its blocks broadcast
      against those of `b`.
    b: [..., K, N], float32 or bfloat16.
    block_n: Columns of `b` per step, a multiple of 128, or N. None is as many as VMEM holds: every
      block of `a` is read once per block of columns, so wide ones save bandwidth.
    preferred_element_type: dtype of the result; None is the promoted dtype of `a` and `b`.

  Returns:
    [..., M, N].

  Raises:
    TypeError: `a` is not a BlockCOO, or a dtype is neither float32 nor bfloat16.
    ValueError: K differs, or a block size is illegal on TPU.

  Examples:
    >>> a = BlockCOO.from_dense(jnp.eye(16).at[:8, :8].set(0), (8, 8))
    >>> a.num_blocks, dsd_matmul(a, jnp.ones((16, 2))).sum(axis=1).astype(int).tolist()
    (Array(1, dtype=int32), [0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2])
  """
  _check_sparse(a)
  out_dtype = _out_dtype(a=a, b=b, preferred_element_type=preferred_element_type)
  _check_inner("a", a.shape, "b", b)
  n_len = b.shape[-1]
  if block_n is None:
    dtypes = (a.dtype, b.dtype, out_dtype)
    block_n = dsd.choose_block_n(a.block_shape, a.shape[1], n_len, dtypes)
  _limits.check_multiple("block_n", block_n, _limits.LANES, n_len)
  if a.capacity == 0:
    lead = np.broadcast_shapes(a.blocks.shape[:-3], b.shape[:-2])
    return jnp.zeros((*lead, a.shape[0], n_len), out_dtype)
  schedule, num_steps = dsd.make_schedule(a)
  launch = functools.partial(
    dsd.dsd,
    schedule=schedule,
    num_steps=num_steps,
    m_len=a.shape[0],
    block_n=block_n,
    out_dtype=out_dtype,
    interpret=resolve_interpret(),
  )
  return vmap_leading(launch, a.blocks, 3, b, 2)


def sdd_matmul(
  x: jax.Array,
  y: jax.Array,
  mask: Mask | BlockMask,
  *,
  block_shape: tuple[int, int] | None = None,
  preferred_element_type: Any = None,
) -> BlockCOO:
  """Computes the active tiles of a product: sparse = (dense @ dense) where the mask allows it.

  Accumulates in float32, and multiplies float32 operands in full precision.

  Args:
    x: [..., M, K], float32 or bfloat16.
    y: [..., K, N], float32 or bfloat16; leading dimensions broadcast.
    mask: Which elements of the product to keep. Its tiles are the blocks of the result.
    block_shape: Tile size for a Mask, multiples of (8, 128) or all of (M, N); None is (512, 512),
      less for small products.
    preferred_element_type: dtype of the result; None is the promoted dtype of `x` and `y`.

  Returns:
    BlockCOO of shape (M, N) with blocks [..., n, bm, bn], one for each active tile; zeros where the
    mask is False.

  Raises:
    TypeError: `mask` is no mask, or a dtype is neither float32 nor bfloat16.
    ValueError: K differs; the mask has another shape or differs between heads; a block size is
      illegal on TPU.

  Examples:
    >>> import masks
    >>> x = jnp.ones((256, 8))
    >>> sdd_matmul(x, x.T, masks.causal(), block_shape=(128, 128))
    BlockCOO(shape=(256, 256), block_shape=(128, 128), dtype=float32, capacity=3, num_blocks=3)
  """
  out_dtype = _out_dtype(x=x, y=y, preferred_element_type=preferred_element_type)
  _check_inner("x", x.shape, "y", y)
  shape = (x.shape[-2], y.shape[-1])
  block_mask = resolve_block_mask(mask, shape, block_shape, default=(512, 512))
  return masked_blocks(x, y, block_mask, out_dtype=out_dtype)


def masked_matmul(
  x: jax.Array,
  y: jax.Array,
  mask: Mask | BlockMask,
  *,
  block_shape: tuple[int, int] | None = None,
  preferred_element_type: Any = None,
) -> jax.Array:
  """Computes a dense product under a mask: dense = (dense @ dense) where the mask allows it, else zero.

  Empty tiles are neither computed nor fetched for; they are only written. The mask's prefetch maps
  let them ask for what the next active tile needs. Accumulates in float32, and multiplies float32
  operands in full precision.

  Args:
    x: [..., M, K], float32 or bfloat16.
    y: [..., K, N], float32 or bfloat16; leading dimensions broadcast.
    mask: Which elements of the product to keep.
    block_shape: Tile size for a Mask, multiples of (8, 128) or all of (M, N); None is (512, 1024),
      less for small products. Large tiles read `x` and `y` less often.
    preferred_element_type: dtype of the result; None is the promoted dtype of `x` and `y`.

  Returns:
    [..., M, N].

  Raises:
    TypeError: `mask` is no mask, or a dtype is neither float32 nor bfloat16.
    ValueError: K differs; the mask has another shape or differs between heads; a block size is
      illegal on TPU.

  Examples:
    >>> import masks
    >>> x = jnp.ones((3, 2))
    >>> masked_matmul(x, x.T, masks.causal())
    Array([[2., 0., 0.],
           [2., 2., 0.],
           [2., 2., 2.]], dtype=float32)
  """
  out_dtype = _out_dtype(x=x, y=y, preferred_element_type=preferred_element_type)
  _check_inner("x", x.shape, "y", y)
  shape = (x.shape[-2], y.shape[-1])
  block_mask = resolve_block_mask(mask, shape, block_shape, default=(512, 1024))
  tiles = (block_mask.block_q, block_mask.block_kv)
  _limits.check_smem(f"{block_mask.kinds.size} tiles", 2 * block_mask.kinds.size, "Use larger tiles.")
  launch = functools.partial(
    _masked.masked_matmul,
    schedule=_masked.make_schedule(block_mask),
    tiles=block_mask.partial_tiles.astype(np.int8),
    block_shape=tiles,
    block_k=_block_k(tiles, x, y, out_dtype),
    out_dtype=out_dtype,
    interpret=resolve_interpret(),
  )
  return vmap_leading(launch, x, 2, y, 2)


def masked_blocks(
  x: jax.Array,
  y: jax.Array,
  block_mask: BlockMask,
  *,
  out_dtype: Any,
  scale: float = 1.0,
  fill: float = 0.0,
  transpose_y: bool = False,
) -> BlockCOO:
  """`sdd_matmul` of checked arguments.

  Args:
    x: [..., M, K].
    y: [..., K, N], or [..., N, K] with `transpose_y`.
    block_mask: Two-dimensional, for (M, N).
    out_dtype: Of the result.
    scale: What the product is multiplied by.
    fill: What stands where the mask is False.
    transpose_y: Whether y is transposed.

  Returns:
    BlockCOO of shape (M, N).
  """
  rows, cols = (index.astype(np.int32) for index in np.nonzero(block_mask.kinds))
  tiles = (block_mask.block_q, block_mask.block_kv)
  shape = (block_mask.q_len, block_mask.kv_len)
  _limits.check_smem(f"{rows.size} active tiles", 2 * rows.size, "Use larger tiles.")
  if rows.size == 0:
    lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return BlockCOO(jnp.zeros((*lead, 0, *tiles), out_dtype), rows, cols, shape)
  launch = functools.partial(
    sdd.sdd,
    schedule=sdd.make_schedule(rows, cols, block_mask.partial_ids[rows, cols]),
    tiles=block_mask.partial_tiles.astype(np.int8),
    block_shape=tiles,
    block_k=_block_k(tiles, x, y, out_dtype),
    out_dtype=out_dtype,
    scale=scale,
    fill=fill,
    transpose_y=transpose_y,
    interpret=resolve_interpret(),
  )
  return BlockCOO(vmap_leading(launch, x, 2, y, 2), rows, cols, shape)


def _block_k(tiles: tuple[int, int], x: jax.Array, y: jax.Array, out_dtype: Any) -> int:
  dtypes = (x.dtype, y.dtype, out_dtype)
  k_len = x.shape[-1]
  return _matmul.choose_block_k(k_len, lambda k: _matmul.vmem_bytes(tiles, k, k_len, dtypes))


def _out_dtype(preferred_element_type: Any, **operands: Any) -> np.dtype:
  """Checks the dtypes of the operands and of the result; returns that of the result."""
  for name, operand in operands.items():
    _limits.check_float(f"{name}.dtype", operand.dtype)
  if preferred_element_type is None:
    return jnp.promote_types(*(operand.dtype for operand in operands.values()))
  _limits.check_float("preferred_element_type", preferred_element_type)
  return np.dtype(preferred_element_type)


def _check_sparse(a: Any) -> None:
  """Checks what a BlockCOO must be for the kernel."""
  if not isinstance(a, BlockCOO):
    raise TypeError(
      f"`a` must be a BlockCOO, got {type(a).__name__}. Use BlockCOO.from_dense(a, block_shape)."
    )
  _limits.check_multiple("rows of a block", a.block_shape[0], _limits.SUBLANES, a.shape[0])
  _limits.check_multiple("columns of a block", a.block_shape[1], _limits.SUBLANES, a.shape[1])
  if max(a.grid_shape) > 2**16:
    raise ValueError(
      f"`a` must have at most {2**16} rows and columns of blocks, got {a.grid_shape}. Use larger blocks."
    )
  _limits.check_smem(f"{a.capacity} blocks", 1 + a.capacity + a.grid_shape[0], "Use larger blocks.")


def _check_inner(x_name: str, x_shape: tuple[int, ...], y_name: str, y: jax.Array) -> None:
  """Checks that x [..., M, K] and y [..., K, N] can be multiplied."""
  if len(x_shape) < 2 or y.ndim < 2 or 0 in x_shape + y.shape:
    raise ValueError(
      f"`{x_name}` and `{y_name}` must be matrices of at least one element, got shapes {x_shape} "
      f"and {y.shape}. Add dimensions of size 1."
    )
  if x_shape[-1] != y.shape[-2]:
    raise ValueError(
      f"`{y_name}` must have as many rows as `{x_name}` has columns, got {y.shape[-2]} rows and "
      f"{x_shape[-1]} columns. Transpose or pad one of them."
    )
