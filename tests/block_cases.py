"""Block-sparse matrices built by NumPy alone, which costs no compilation."""

import jax.numpy as jnp
import numpy as np

from blockattn import BlockCOO


def random_coo(seed, shape, block_shape, density=0.5, *, dtype="float32", capacity=None):
  """A BlockCOO and its dense matrix in float64.

  Slots beyond the live ones hold NaN, and places that are out of range, where `capacity` makes room for them.
  """
  rng = np.random.default_rng(seed)
  (m, n), (bm, bn) = shape, block_shape
  grid = -(-m // bm), -(-n // bn)
  rows, cols = np.nonzero(rng.random(grid) < density)
  dense = np.zeros((grid[0] * bm, grid[1] * bn))
  blocks = rng.standard_normal((rows.size, bm, bn))
  for block, row, col in zip(blocks, rows, cols, strict=True):
    block[max(m - row * bm, 0) :], block[:, max(n - col * bn, 0) :] = 0, 0
    dense[row * bm :, col * bn :][:bm, :bn] = block = np.asarray(block.astype(dtype), np.float64)
  spare = 0 if capacity is None else capacity - rows.size
  blocks = np.concatenate([blocks, np.full((spare, bm, bn), np.nan)]).astype(jnp.dtype(dtype))
  rows, cols = (np.concatenate([x, np.full(spare, 999)]) for x in (rows, cols))
  num_blocks = rows.size - spare
  return BlockCOO(jnp.asarray(blocks), rows, cols, shape, num_blocks), dense[:m, :n]
