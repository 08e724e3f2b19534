"""Block-COO: a sparse matrix as a list of its nonzero blocks, in row-major order."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from blockattn import _coo_slots
from blockattn._coo_checks import check_capacity, check_layout, check_parts, is_concrete

Array: TypeAlias = "jax.Array | np.ndarray"


@dataclasses.dataclass(frozen=True, eq=False)
class BlockCOO:
  """A matrix of which only some blocks are stored; the rest of it is zero.

  n = capacity, the slots that there are; the first `num_blocks` of them are live, the others are
  dead and may hold anything, NaN too. A live slot s holds the block at rows[s] * bm, cols[s] * bn.
  Where bm or bn does not divide `shape`, the blocks of the last row or column hang over the edge,
  and what hangs over must be zero.

  The constructor checks shapes and dtypes, and, where the indices are concrete, that they are
  row-major, in range and distinct. Traced indices cannot be checked and must be so:
  `from_parts(..., sort=True)` sorts them. A BlockCOO is a pytree: `blocks`, `rows`, `cols` and
  `num_blocks` are its leaves, `shape` is static. Leading dimensions of `blocks` share one layout
  (the heads of `attention_weights`). Matrices with layouts of their own are stacked leaf by leaf
  and go through `jax.vmap`.

  Attributes:
    blocks: [..., n, bm, bn], numbers of any dtype.
    rows: [n] int32, the block row of each slot. Other integers are converted.
    cols: [n] int32, the block column of each slot.
    shape: The (rows, columns) of the matrix, in elements.
    num_blocks: How many slots are live, int or int32 scalar, concrete or traced; None is all of
      them.

  Raises:
    TypeError: An index or the live count is not an integer, or the blocks are bool.
    ValueError: A wrong rank or length, or concrete indices that are unsorted, duplicate or out of
      range.

  Examples:
    >>> a = BlockCOO.from_dense(jnp.diag(jnp.arange(1., 5.)), (2, 2))
    >>> a
    BlockCOO(shape=(4, 4), block_shape=(2, 2), dtype=float32, capacity=2, num_blocks=2)
    >>> a.rows.tolist(), a.cols.tolist()
    ([0, 1], [0, 1])
  """

  blocks: Array
  rows: Array
  cols: Array
  shape: tuple[int, int]
  num_blocks: Any = None

  def __post_init__(self):
    check_parts(self.blocks, self.rows, self.cols, self.shape, self.num_blocks)
    live = self.capacity if self.num_blocks is None else self.num_blocks
    set_field = object.__setattr__
    set_field(self, "shape", (int(self.shape[0]), int(self.shape[1])))
    set_field(self, "num_blocks", live)
    check_layout(self.rows, self.cols, live, self.grid_shape)
    set_field(self, "rows", self.rows.astype(np.int32))
    set_field(self, "cols", self.cols.astype(np.int32))

  def __repr__(self) -> str:
    live = int(self.num_blocks) if is_concrete(self.num_blocks) else "traced"
    lead = f", batch={self.blocks.shape[:-3]}" if self.blocks.ndim > 3 else ""
    return (
      f"BlockCOO(shape={self.shape}, block_shape={self.block_shape}, dtype={self.dtype}, "
      f"capacity={self.capacity}, num_blocks={live}{lead})"
    )

  @property
  def dtype(self) -> np.dtype:
    """The dtype of the blocks."""
    return np.dtype(self.blocks.dtype)

  @property
  def capacity(self) -> int:
    """The slots that there are, live or dead."""
    return self.blocks.shape[-3]

  @property
  def block_shape(self) -> tuple[int, int]:
    """The (rows, columns) of a block."""
    return self.blocks.shape[-2], self.blocks.shape[-1]

  @property
  def grid_shape(self) -> tuple[int, int]:
    """The (rows, columns) of the matrix, in blocks."""
    bm, bn = self.block_shape
    return -(-self.shape[0] // bm), -(-self.shape[1] // bn)

  @classmethod
  def from_parts(
    cls,
    blocks: Array,
    rows: Array,
    cols: Array,
    shape: tuple[int, int],
    *,
    num_blocks: int | Array | None = None,
    sort: bool = False,
    sum_duplicates: bool = False,
  ) -> BlockCOO:
    """Builds a BlockCOO from blocks in any order.

    Args:
      blocks: [..., n, bm, bn], numbers of any dtype.
      rows: [n], integers.
      cols: [n], integers.
      shape: The (rows, columns) of the matrix, in elements.
      num_blocks: How many slots are live; None is all of them.
      sort: Bring the slots into row-major order. Works on traced indices too.
      sum_duplicates: Add up the blocks that share a place, also when traced; implies `sort`.

    Returns:
      A BlockCOO of the same capacity. With `sum_duplicates`, `num_blocks` is smaller by the
      duplicates.

    Raises:
      TypeError: An index or the live count is not an integer.
      ValueError: As the constructor, after the sorting and summing asked for.

    Examples:
      >>> blocks = jnp.ones((3, 2, 2)) * jnp.arange(1., 4.)[:, None, None]
      >>> a = BlockCOO.from_parts(blocks, np.array([1, 0, 1]), np.array([0, 1, 0]), (4, 4),
      ...                         sum_duplicates=True)
      >>> int(a.num_blocks), a.to_dense()[:, ::2].tolist()
      (2, [[0.0, 2.0], [0.0, 2.0], [4.0, 0.0], [4.0, 0.0]])
    """
    check_parts(blocks, rows, cols, shape, num_blocks)
    live = blocks.shape[-3] if num_blocks is None else num_blocks
    if sort or sum_duplicates:
      blocks, rows, cols = _coo_slots.sort(blocks, rows, cols, live)
    if sum_duplicates:
      blocks, rows, cols, live = _coo_slots.merge(blocks, rows, cols, live)
    return cls(blocks, rows, cols, shape, live)

  @classmethod
  def from_dense(cls, dense: Array, block_shape: tuple[int, int], capacity: int | None = None) -> BlockCOO:
    """Stores the blocks of `dense` that hold anything but zeros.

    Args:
      dense: [M, N], numbers of any dtype. NaN counts as something.
      block_shape: The (rows, columns) of a block; need not divide M and N.
      capacity: Slots to make; None is as many as there are live blocks. Must be given for a traced
        `dense`; when that then holds more than `capacity` blocks, the stored blocks are NaN (the
        lowest value for integers), since a traced program cannot raise.

    Returns:
      BlockCOO of shape (M, N).

    Raises:
      ValueError: `dense` is not 2-D, `capacity` is missing or too small, or a size of `block_shape`
        is below 1.
    """
    if dense.ndim != 2 or len(block_shape) != 2 or min(block_shape) < 1:
      raise ValueError(
        "`dense` must be [M, N] and `block_shape` two sizes of at least 1, got "
        f"dense.shape={dense.shape} and block_shape={block_shape}. Use jax.vmap for batches."
      )
    blocked, nonzero = _coo_slots.cut(jnp.asarray(dense), tuple(block_shape))
    capacity = check_capacity(nonzero, capacity)
    parts = _coo_slots.pick(blocked, nonzero, capacity)
    return cls(*parts[:3], (dense.shape[0], dense.shape[1]), parts[3])

  @classmethod
  def random(
    cls,
    key: jax.Array,
    shape: tuple[int, int],
    block_shape: tuple[int, int],
    density: float,
    dtype: Any = jnp.float32,
    *,
    capacity: int | None = None,
  ) -> BlockCOO:
    """Samples a matrix: each block is live with probability `density`, its values uniform in [0, 1).

    Args:
      key: A `jax.random.key`.
      shape: The (rows, columns) of the matrix, in elements.
      block_shape: The (rows, columns) of a block; need not divide `shape`.
      density: Probability of a block, in [0, 1].
      dtype: A floating dtype.
      capacity: Slots to make; None is as many as there are live blocks. Must be given when `key` is
        traced.

    Returns:
      BlockCOO of the given shape.

    Raises:
      ValueError: `density` is not in [0, 1], or `capacity` is missing or too small.
    """
    if not 0 <= density <= 1:
      raise ValueError(f"`density` must lie in [0, 1], got density={density}. Use 1.0 for every block.")
    layout_key, values_key = jax.random.split(key)
    grid = [math.ceil(size / block) for size, block in zip(shape, block_shape, strict=True)]
    nonzero = jax.random.bernoulli(layout_key, float(density), grid)
    capacity = check_capacity(nonzero, capacity)
    parts = _coo_slots.sample(
      values_key, nonzero, capacity, tuple(shape), tuple(block_shape), np.dtype(dtype)
    )
    return cls(*parts[:3], shape, parts[3])

  def to_dense(self) -> jax.Array:
    """The whole matrix.

    Returns:
      [..., M, N] in the dtype of the blocks; dead slots do not show.
    """
    return _coo_slots.assemble(self.blocks, self.rows, self.cols, self.num_blocks, self.shape)

  def transpose(self) -> BlockCOO:
    """The transposed matrix, again in row-major order; works on traced indices and live counts.

    Returns:
      BlockCOO of shape (N, M) and blocks [..., n, bn, bm].
    """
    blocks, rows, cols = _coo_slots.sort(self.blocks, self.cols, self.rows, self.num_blocks)
    return BlockCOO(blocks.swapaxes(-1, -2), rows, cols, (self.shape[1], self.shape[0]), self.num_blocks)


def _flatten_with_keys(a: BlockCOO):
  names = ("blocks", "rows", "cols", "num_blocks")
  leaves = tuple((jax.tree_util.GetAttrKey(name), getattr(a, name)) for name in names)
  return leaves, a.shape


def _unflatten(shape: tuple[int, int], leaves) -> BlockCOO:
  # Not through the constructor: jax unflattens with placeholders and with vmap axes as leaves, and
  # checking concrete indices would wait for the device each time that a jitted function returns a
  # BlockCOO.
  a = object.__new__(BlockCOO)
  for name, leaf in zip(("blocks", "rows", "cols", "num_blocks"), leaves, strict=True):
    object.__setattr__(a, name, leaf)
  object.__setattr__(a, "shape", shape)
  return a


jax.tree_util.register_pytree_with_keys(BlockCOO, _flatten_with_keys, _unflatten)
