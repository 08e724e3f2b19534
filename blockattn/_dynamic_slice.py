"""block_dynamic_slice: a dynamic slice by scalar prefetch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from blockattn._compat import resolve_interpret
from blockattn._coo_checks import is_concrete
from blockattn._kernels import _limits, dynamic_slice, vector_slice

_DTYPES = (jnp.float32, jnp.bfloat16, jnp.int32, jnp.int8)


def block_dynamic_slice(
  x: jax.Array,
  starts: Sequence[Any] | jax.Array,
  sizes: Sequence[int],
  *,
  block_shape: Sequence[int] | None = None,
  checks: bool = False,
) -> jax.Array:
  """Cuts a slice of fixed size out of `x`, starting anywhere: x[starts[0] : starts[0] + sizes[0], ...].

  The starts are prefetched scalars, from which the kernel computes which blocks to fetch; neither
  they nor the sizes need be multiples of the block.

  Args:
    x: An array of one or more dimensions; float32, bfloat16, int32 or int8.
    starts: One integer per dimension, concrete or traced, as a sequence or an array [x.ndim].
    sizes: The shape of the slice, at least 1 and at most that of `x`.
    block_shape: What one step of the kernel moves, in the last two dimensions (the only one of a
      vector): multiples of (8, 128), or all of `x`. None is chosen.
    checks: Whether traced starts that are out of range are an error, of
      `jax.experimental.checkify`, which the caller has to functionalize. Else they are as in
      `jax.lax.dynamic_slice`: negative ones count from the end, and then each is clamped so that
      the slice lies inside of `x`.

  Returns:
    An array of shape `sizes` and x.dtype.

  Raises:
    TypeError: The dtype is another, or a start is not an integer.
    ValueError: Concrete starts for which the slice is not inside of `x`; a wrong number of starts
      or sizes; sizes that are larger than `x`; a block size that is illegal on TPU.

  Examples:
    >>> x = jnp.arange(1000 * 300).reshape(1000, 300)
    >>> block_dynamic_slice(x, (123, 45), (2, 3))
    Array([[36945, 36946, 36947],
           [37245, 37246, 37247]], dtype=int32)
  """
  sizes = tuple(int(size) for size in sizes)
  _check_operands(x, sizes)
  starts = _resolve_starts(starts, x.shape, sizes, checks)
  if x.ndim == 1:
    block = _resolve_vector_block(x.shape[0], sizes[0], block_shape)
    return vector_slice.vector_slice(x, starts, size=sizes[0], block=block, interpret=resolve_interpret())
  return dynamic_slice.dynamic_slice(
    x,
    starts,
    sizes=sizes,
    block_shape=_resolve_block(x.shape[-2:], sizes[-2:], block_shape),
    interpret=resolve_interpret(),
  )


def _check_operands(x: jax.Array, sizes: tuple[int, ...]) -> None:
  if x.dtype not in _DTYPES:
    names = ", ".join(np.dtype(dtype).name for dtype in _DTYPES)
    raise TypeError(f"`x` must be one of {names}, got {x.dtype}. Convert it with astype.")
  if x.ndim < 1 or len(sizes) != x.ndim:
    raise ValueError(
      f"`sizes` must have one entry for each dimension of `x`, got {len(sizes)} sizes and "
      f"x.shape={x.shape}. Use the whole length where nothing is cut."
    )
  if any(not 1 <= size <= length for size, length in zip(sizes, x.shape, strict=True)):
    raise ValueError(
      f"`sizes` must be at least 1 and at most the shape of `x`, got sizes={sizes} and "
      f"x.shape={x.shape}. Cut fewer elements."
    )


def _resolve_starts(starts: Any, shape: tuple[int, ...], sizes: tuple[int, ...], checks: bool) -> jax.Array:
  """The starts as int32 [ndim], with which the slice lies inside."""
  parts = list(starts)
  if len(parts) != len(shape) or any(np.ndim(part) for part in parts):
    raise ValueError(
      f"`starts` must have one integer for each dimension of `x`, got {len(parts)} starts and "
      f"x.shape={shape}. Use 0 where nothing is cut."
    )
  dtypes = [getattr(part, "dtype", np.dtype(type(part))) for part in parts]
  if not all(jnp.issubdtype(dtype, jnp.integer) for dtype in dtypes):
    raise TypeError(f"`starts` must be integers, got {[str(d) for d in dtypes]}. Use int32.")
  last = np.subtract(shape, sizes)
  if all(map(is_concrete, parts)):
    values = np.array([int(part) for part in parts])
    if ((values < 0) | (values > last)).any():
      raise ValueError(
        f"`starts` must lie between 0 and {tuple(last.tolist())} for sizes={sizes} of "
        f"x.shape={shape}, got starts={tuple(values.tolist())}. Move or shorten the slice."
      )
    return jnp.asarray(values, jnp.int32)
  return _resolve_traced([jnp.asarray(part) for part in parts], shape, last.tolist(), checks)


def _resolve_traced(
  parts: list[jax.Array], shape: tuple[int, ...], last: list[int], checks: bool
) -> jax.Array:
  """The traced starts clamped as in `lax.dynamic_slice`, each to between 0 and its entry of `last`."""
  starts = []
  for axis, (start, length, most) in enumerate(zip(parts, shape, last, strict=True)):
    # At least 32 bits, so that adding a length does not overflow.
    start = start.astype(jnp.promote_types(start.dtype, jnp.int32))
    if checks:
      checkify.check(
        (start >= 0) & (start <= most),
        f"`starts[{axis}]` must lie between 0 and {most}, got {{start}}. Move or shorten the slice.",
        start=start,
      )
    start = jnp.where(start < 0, start + length, start)
    starts.append(jnp.clip(start, 0, most).astype(jnp.int32))
  return jnp.stack(starts)


def _resolve_vector_block(length: int, size: int, block_shape: Sequence[int] | None) -> int:
  """The kernel block for a vector; checks the one asked for."""
  multiple = vector_slice.BLOCK_MULTIPLE
  if block_shape is None:
    return min(2**15, _limits.round_up(size, multiple))
  _check_rank(block_shape, 1)
  _limits.check_multiple("block_shape[0]", block_shape[0], multiple, length)
  return _limits.round_up(block_shape[0], multiple)


def _resolve_block(
  shape: tuple[int, ...], sizes: tuple[int, ...], block_shape: Sequence[int] | None
) -> tuple[int, int]:
  """The kernel block for the last two dimensions; checks the one asked for."""
  if block_shape is None:
    # Half a megabyte of float32: enough to keep the memory busy, and small in VMEM.
    rows = min(256, _limits.round_up(sizes[0], 32))
    cols = min(512, _limits.round_up(sizes[1], _limits.LANES))
    return min(rows, shape[0]), min(cols, shape[1])
  _check_rank(block_shape, 2)
  rows, cols = block_shape
  _limits.check_multiple("block_shape[0]", rows, _limits.SUBLANES, shape[0])
  _limits.check_multiple("block_shape[1]", cols, _limits.LANES, shape[1])
  return min(rows, shape[0]), min(cols, shape[1])


def _check_rank(block_shape: Sequence[int], rank: int) -> None:
  if len(block_shape) != rank:
    raise ValueError(
      f"`block_shape` must have {rank} sizes, those of the last dimensions of `x`, "
      f"got block_shape={tuple(block_shape)}. Leave it None."
    )
