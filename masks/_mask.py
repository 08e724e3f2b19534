"""Mask: the value type.

A mask says which keys each query may use, for any number of queries and keys. Masks are immutable,
hashable and equal by content, and closed under `&`, `|` and `~`. What a rule must define is `allows`;
what makes it fast is `spans` (masks/_spans.py) or its own `tile_bounds` and `tile_rule`.
"""

from __future__ import annotations

import dataclasses
import typing

import jax
import numpy as np

from masks import _device_bounds, _spans, _tile_rule
from masks._classify import TileBounds, TileGrid
from masks._device_bounds import DeviceBounds
from masks._frozen import TracedArray, hold

if typing.TYPE_CHECKING:
  from masks.block_mask import BlockMask


class Mask:
  """Which keys each query may use. Build one with `masks.causal()` and its siblings.

  >>> import masks
  >>> mask = masks.causal() & masks.sliding_window(2)
  >>> mask
  causal() & sliding_window(2)
  >>> mask.to_dense(3, 3).astype(int)
  array([[1, 0, 0],
         [1, 1, 0],
         [0, 1, 1]])
  >>> mask == masks.sliding_window(2) & masks.causal()
  True
  """

  __array_ufunc__ = None  # so that NumPy arrays leave `array & mask` to Python, which refuses it
  array_fields: typing.ClassVar[tuple[str, ...]] = ()
  """Attributes that hold arrays which may be traced: the leaves of the mask as a pytree."""

  def __init_subclass__(cls, **kwargs):
    super().__init_subclass__(**kwargs)
    jax.tree_util.register_pytree_node(cls, cls.tree_flatten, cls.tree_unflatten)

  def tree_flatten(self):
    """Arrays that may be traced, and the rest of the mask."""
    fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # pyright: ignore
    arrays = tuple(fields.pop(name).array for name in self.array_fields)
    return arrays, tuple(fields.items())

  @classmethod
  def tree_unflatten(cls, aux, children):
    """The opposite of `tree_flatten`."""
    mask = object.__new__(cls)
    vars(mask).update(aux)
    vars(mask).update(zip(cls.array_fields, map(hold, children), strict=True))
    return mask

  @property
  def is_traced(self) -> bool:
    """Whether the mask holds traced arrays."""
    return any(isinstance(getattr(self, name), TracedArray) for name in self.array_fields)

  @property
  def lead(self) -> tuple[int, int]:
    """(batch, heads) that the mask distinguishes; 1 where all examples or heads agree."""
    return (1, 1)

  @property
  def period(self) -> int | None:
    """A number of positions by which queries and keys may move on together without changing the mask.

    1 for a rule on the difference of the positions. None where there is no such number, or none is known.
    """
    return None

  def allows(self, q_idx, kv_idx):
    """Whether query `q_idx` may use key `kv_idx`; arrays that broadcast, for a mask of lead (1, 1)."""
    raise NotImplementedError(f"{type(self).__name__} does not define allows()")

  def check(self, q_len: int, kv_len: int) -> None:
    """Raises ValueError if the mask's own arrays do not fit these lengths."""

  def select(self, batch: int, head: int) -> Mask:
    """The mask of one example and head, of lead (1, 1)."""
    del batch, head
    return self

  def spans(self, q_len: int, kv_len: int) -> _spans.Spans | None:
    """The allowed keys as intervals per query, or None where the rule is not of that kind."""
    del q_len, kv_len
    return None

  def tile_bounds(self, grid: TileGrid) -> TileBounds:
    """What is known of every tile without evaluating the rule inside it."""
    spans = self.spans(grid.q_len, grid.kv_len)
    return TileBounds.unknown(grid) if spans is None else TileBounds.from_spans(spans, grid)

  def device_bounds(self, grid: TileGrid) -> DeviceBounds:
    """What is known of every tile on the device, for masks that hold traced arrays."""
    return _device_bounds.of_concrete(self, grid)

  def tile_rule(self, q_len: int, kv_len: int) -> _tile_rule.TileRule | None:
    """How a kernel computes the mask inside a tile, or None if its tiles have to be stored."""
    spans = self.spans(q_len, kv_len)
    return None if spans is None else _tile_rule.from_spans(spans)

  def box(self, q_start: int, q_stop: int, kv_start: int, kv_stop: int) -> np.ndarray:
    """Dense bool [q_stop - q_start, kv_stop - kv_start] of a mask of lead (1, 1)."""
    q_idx = np.arange(q_start, q_stop, dtype=np.int32)[:, None]
    kv_idx = np.arange(kv_start, kv_stop, dtype=np.int32)[None, :]
    shape = (q_idx.shape[0], kv_idx.shape[1])
    return np.broadcast_to(np.asarray(self.allows(q_idx, kv_idx)), shape).astype(bool)

  def to_dense(self, q_len: int, kv_len: int):
    """The mask as a bool array, True where the query may use the key.

    Args:
      q_len: Number of queries.
      kv_len: Number of keys.

    Returns:
      bool [q_len, kv_len]; in front, batch and heads where the mask distinguishes them. A NumPy array, or
      a JAX array if the mask holds traced arrays.

    Raises:
      ValueError: The mask holds arrays of other lengths.
    """
    check_lengths(self, q_len, kv_len)
    if self.is_traced:
      return squeeze_lead(_tile_rule.dense(require_tile_rule(self, q_len, kv_len), q_len, kv_len))
    batch, heads = self.lead
    dense = [[self.select(b, h).box(0, q_len, 0, kv_len) for h in range(heads)] for b in range(batch)]
    return squeeze_lead(np.array(dense, bool).reshape(batch, heads, q_len, kv_len))

  def block_mask(
    self, q_len: int, kv_len: int, block_q: int, block_kv: int, *, capacity: int | None = None
  ) -> BlockMask:
    """Classifies the tiles of the mask for given lengths; equal calls share one result.

    A mask that holds traced arrays is classified on the device, by conservative bounds: its EMPTY tiles
    are empty and its FULL ones full, and attention over it is exact. Such a block mask can be built once,
    outside a scan over layers, and passed in.

    Args:
      q_len: Number of queries.
      kv_len: Number of keys.
      block_q: Queries per tile.
      block_kv: Keys per tile.
      capacity: Only for traced masks: how many steps to make room for, over all examples; a step is an
        active tile, or a row of tiles without any. None makes room for every tile that the concrete parts
        of the mask leave possible. Where a mask needs more, attention returns NaN throughout, and
        `block_mask.check()` raises.

    Returns:
      The `BlockMask`. Lengths need not be multiples of the tile: the ragged tail is PARTIAL.

    Raises:
      ValueError: A length is negative, a tile size is not positive, or the mask holds arrays of
        other lengths.
    """
    from masks import _device_block_mask, _host_block_mask  # they import Mask

    check_lengths(self, q_len, kv_len)
    grid = TileGrid.of(q_len, kv_len, block_q, block_kv, self.lead)
    if self.is_traced:
      return _device_block_mask.build(self, grid, capacity)
    if capacity is not None:
      raise ValueError(
        f"`capacity` is for masks with traced arrays, got capacity={capacity} for {self!r}. Leave it None."
      )
    return _host_block_mask.build(self, grid)

  def shift(self, q: int = 0, kv: int = 0) -> Mask:
    """The mask of tokens further on: query i stands at position i + q and key j at position j + kv.

    For a part of the tokens, as in chunked prefill: `mask.shift(q=start)` for the queries from `start`
    on. A mask that fits its own lengths only, like `document`, then fits every part of them: q plus the
    number of queries, and kv plus the number of keys, must be at most its lengths. Rules on positions
    accept negative shifts too, which align the end of the queries with the end of fewer keys.

    Args:
      q: Position of the first query.
      kv: Position of the first key.

    Returns:
      The mask, classified and evaluated in kernels like this one.

    Raises:
      TypeError: q or kv is not an int. Leaving a mask's own lengths is an error when it is used.

    >>> import masks
    >>> masks.document([0, 0, 1, 1]).shift(q=1).to_dense(2, 4).astype(int)
    array([[1, 1, 0, 0],
           [0, 0, 1, 1]])
    """
    from masks.shift import shift

    return shift(self, q, kv)

  def __and__(self, other: Mask) -> Mask:
    """Keys that both masks allow."""
    from masks import _algebra  # it imports Mask

    return _algebra.combine(_algebra.And, self, other)

  def __or__(self, other: Mask) -> Mask:
    """Keys that either mask allows."""
    from masks import _algebra

    return _algebra.combine(_algebra.Or, self, other)

  def __invert__(self) -> Mask:
    """Keys that the mask does not allow."""
    from masks import _algebra

    return _algebra.Not(self)

  def __setattr__(self, name, value):
    raise AttributeError(f"A mask is immutable, got an assignment to `{name}`. Build a new mask.")

  def __bool__(self):
    raise TypeError(
      "A mask has no truth value, got it in a boolean context. Combine masks with &, | and ~, not "
      "with and, or and not."
    )


def check_lengths(mask: Mask, q_len: int, kv_len: int) -> None:
  """Raises ValueError if a length is negative or does not fit the mask's own arrays."""
  for name, value in (("q_len", q_len), ("kv_len", kv_len)):
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
      raise TypeError(f"`{name}` must be an int, got {value!r}.")
    if not 0 <= value < 2**31:
      raise ValueError(f"`{name}` must be in [0, 2**31), got {value}.")
  mask.check(q_len, kv_len)


def require_tile_rule(mask: Mask, q_len: int, kv_len: int) -> _tile_rule.TileRule:
  """The tile rule of a mask with traced arrays, whose tiles cannot be stored."""
  rule = mask.tile_rule(q_len, kv_len)
  if rule is None:
    raise NotImplementedError(
      f"A mask with traced arrays cannot be combined with one whose tiles have to be stored, got {mask!r}. "
      "Write that part as from_function of element-wise operations, or build the mask outside of jit."
    )
  return rule


def squeeze_lead(array):
  """Drops the batch and the heads axis, each where it is 1."""
  return array.reshape(*(n for n in array.shape[:2] if n != 1), *array.shape[2:])
