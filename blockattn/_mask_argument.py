"""The `mask` argument of the building blocks: a Mask or a BlockMask, as tiles of a matrix."""

from __future__ import annotations

from typing import Any

from blockattn._kernels import _limits
from masks import BlockMask, Mask


def resolve_block_mask(
  mask: Any, shape: tuple[int, int], block_shape: tuple[int, int] | None, default: tuple[int, int]
) -> BlockMask:
  """The tiles of `mask` for a matrix of `shape`.

  Args:
    mask: A `masks.Mask` or `masks.BlockMask`, the same for all batches and heads.
    shape: (rows, columns) of the matrix.
    block_shape: Tile size, or None: that of a BlockMask, or `default` for a Mask.
    default: Tile size for a Mask; less on a smaller matrix.

  Returns:
    A two-dimensional BlockMask.

  Raises:
    TypeError: `mask` is neither.
    NotImplementedError: A mask with traced arrays.
    ValueError: A BlockMask of another shape or tile size, a mask that differs between batches or
      heads, or tiles that are illegal on TPU.
  """
  if isinstance(mask, Mask):
    block_q, block_kv = block_shape or map(_default_block, shape, default)
    _check_tiles(block_q, block_kv, shape)
    _check_concrete(mask)
    mask = mask.block_mask(*shape, block_q, block_kv)
  elif not isinstance(mask, BlockMask):
    raise TypeError(
      f"`mask` must be a masks.Mask or masks.BlockMask, got {type(mask).__name__}. "
      "Wrap an array in masks.from_array(...)."
    )
  _check_concrete(mask)
  if (mask.q_len, mask.kv_len) != tuple(shape):
    raise ValueError(
      f"`mask` must have the shape of the product, got a BlockMask for {(mask.q_len, mask.kv_len)} "
      f"and a product of shape {tuple(shape)}. Build it with mask.block_mask{tuple(shape)}."
    )
  tiles = (mask.block_q, mask.block_kv)
  if block_shape is not None and tuple(block_shape) != tiles:
    raise ValueError(
      f"`block_shape` must be the tile size of the BlockMask, got block_shape={tuple(block_shape)} "
      f"and tiles of {tiles}. Leave it None."
    )
  _check_tiles(*tiles, shape)
  if mask.lead != (1, 1):
    raise ValueError(
      "`mask` must be the same for all batches and heads here, got a mask that distinguishes "
      f"(batch, heads) = {mask.lead}. Use mask.select(batch, head) for each."
    )
  return mask


def _check_concrete(mask: Mask | BlockMask) -> None:
  rule = mask.mask if isinstance(mask, BlockMask) else mask
  if rule.is_traced:
    raise NotImplementedError(
      f"The tiles of `mask` must be known when the program is built, got {rule!r} with traced arrays. "
      "Use concrete arrays, or block_sparse_attention, which takes traced ones."
    )


def _default_block(size: int, default: int) -> int:
  return min(default, _limits.round_up(size, _limits.LANES))


def _check_tiles(block_q: int, block_kv: int, shape: tuple[int, int]) -> None:
  _limits.check_multiple("block_q", block_q, _limits.SUBLANES, shape[0])
  _limits.check_multiple("block_kv", block_kv, _limits.LANES, shape[1])
  rows, cols = -(-shape[0] // block_q), -(-shape[1] // block_kv)
  if max(rows, cols) > 2**16:
    raise ValueError(
      f"Tiles must number at most {2**16} in each direction, got {(rows, cols)} of "
      f"{(block_q, block_kv)}. Use larger tiles."
    )
