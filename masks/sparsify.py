"""The tutorial's `sparsify_mask`: a dense mask as nonzero blocks and next-nonzero prefetch maps."""

import typing

import numpy as np


class SparseMask(typing.NamedTuple):
  """What `sparsify_mask` returns, in its order."""

  block_mask: np.ndarray
  prefetch_mask: np.ndarray
  prefetch_i: np.ndarray
  prefetch_j: np.ndarray
  mask_data: np.ndarray


def sparsify_mask(mask, block_shape: tuple[int, int]) -> SparseMask:
  """Splits a dense mask into blocks, keeps the distinct nonzero ones and maps each block to the next.

  "Next" is the first nonzero block in row order at or after a block, wrapping to the first of all; a mask
  without nonzero block has maps of zeros. A kernel that walks the blocks in row order fetches by these
  maps, so that no fetch is spent on a block it skips. Blocks are told apart by content.

  Args:
    mask: [M, N], bool or a number; nonzero means kept.
    block_shape: (rows, columns) of a block. M and N need not be multiples: the rest is filled with zeros.

  Returns:
    block_mask: [row blocks, column blocks] in the dtype of mask, 1 where a block has a nonzero element.
    prefetch_mask: The same shape, int32: index into mask_data of the next nonzero block.
    prefetch_i: int32, row of the next nonzero block.
    prefetch_j: int32, column of the next nonzero block.
    mask_data: [n, *block_shape] in the dtype of mask, the distinct nonzero blocks, numbered from the end
      of the mask as in the tutorial; a single block of zeros if there is none.

  Raises:
    ValueError: mask is not 2-D, or block_shape does not hold two positive numbers.

  References:
    JAX documentation, "Scalar prefetch and block-sparse computation" (Pallas TPU).

  >>> sparse = sparsify_mask(np.eye(4, dtype=np.int32)[::-1], (2, 2))
  >>> sparse.block_mask
  array([[0, 1],
         [1, 0]], dtype=int32)
  >>> sparse.prefetch_i, sparse.prefetch_j
  (array([[0, 0],
         [1, 0]], dtype=int32), array([[1, 1],
         [0, 1]], dtype=int32))
  """
  mask = np.asarray(mask)
  if mask.ndim != 2:
    raise ValueError(f"`mask` must be [M, N], got shape {mask.shape}.")
  if len(block_shape) != 2 or min(block_shape) < 1:
    raise ValueError(f"`block_shape` must be two positive numbers, got {block_shape}.")
  (rows, row_pad), (cols, col_pad) = (
    (-(-n // b), -n % b) for n, b in zip(mask.shape, block_shape, strict=True)
  )
  padded = np.pad(mask, ((0, row_pad), (0, col_pad)))
  blocks = padded.reshape(rows, block_shape[0], cols, block_shape[1]).swapaxes(1, 2)
  nonzero = blocks.any(axis=(2, 3))
  i, j = np.nonzero(nonzero)
  if not i.size:
    none = np.zeros((rows, cols), np.int32)
    return SparseMask(nonzero.astype(mask.dtype), none, none, none, np.zeros((1, *block_shape), mask.dtype))
  known: dict[bytes, int] = {}
  ids = [known.setdefault(blocks[at].tobytes(), len(known)) for at in zip(i[::-1], j[::-1], strict=True)]
  data = np.stack([np.frombuffer(b, mask.dtype).reshape(block_shape) for b in known])
  following = np.searchsorted(i * cols + j, np.arange(rows * cols)).reshape(rows, cols) % i.size
  maps = (x[following].astype(np.int32) for x in (np.array(ids[::-1]), i, j))
  return SparseMask(nonzero.astype(mask.dtype), *maps, data)
