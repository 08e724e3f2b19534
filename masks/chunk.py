"""Chunks: queries see their own chunk of consecutive keys, or every chunk up to it."""

import dataclasses

import numpy as np

from masks import _checks, _spans
from masks._mask import Mask
from masks._positional import Positional


@dataclasses.dataclass(frozen=True, repr=False)
class Chunk(Positional):
  """See `chunk`."""

  size: int

  period = property(lambda self: self.size)

  def allows(self, q_idx, kv_idx):
    return (q_idx + self.q_start) // self.size == (kv_idx + self.kv_start) // self.size

  def spans(self, q_len, kv_len):
    start, lo = _chunks(self, q_len)
    return _spans.from_bounds(start, lo, lo + self.size, q_len, kv_len)

  def builder(self):
    return f"chunk({self.size})"


@dataclasses.dataclass(frozen=True, repr=False)
class BlockCausal(Positional):
  """See `block_causal`."""

  size: int

  period = property(lambda self: self.size)

  def allows(self, q_idx, kv_idx):
    return (kv_idx + self.kv_start) // self.size <= (q_idx + self.q_start) // self.size

  def spans(self, q_len, kv_len):
    start, first_key = _chunks(self, q_len)
    return _spans.from_bounds(start, 0, first_key + self.size, q_len, kv_len)

  def builder(self):
    return f"block_causal({self.size})"


def _chunks(mask: Chunk | BlockCausal, q_len: int) -> tuple[np.ndarray, np.ndarray]:
  """First query of each chunk, and the first key index of its chunk, int64."""
  start, number = _spans.block_starts(q_len, mask.q_start, mask.size)
  return start, number * mask.size - mask.kv_start


def chunk(size: int) -> Mask:
  """Query i may use key j if i // size == j // size.

  Cuts the sequence into chunks that do not see each other. Decoders add `& causal()`.

  Args:
    size: Tokens of a chunk, at least 1; the last chunk may be shorter.

  Returns:
    The mask.

  Raises:
    ValueError: size is not positive.
    TypeError: size is not an int.

  References:
    Meta AI, The Llama 4 herd, 2025 (chunked attention in three of four layers, chunks of 8192);
    Beltagy et al., Longformer, arXiv:2004.05150, section 2 (chunking as the baseline).

  >>> from masks import causal
  >>> (causal() & chunk(2)).to_dense(4, 4).astype(int)
  array([[1, 0, 0, 0],
         [1, 1, 0, 0],
         [0, 0, 1, 0],
         [0, 0, 1, 1]])
  """
  return Chunk(_size(size))


def block_causal(size: int) -> Mask:
  """Query i may use key j if j // size <= i // size: causal from chunk to chunk, full within one.

  For sequences whose steps are blocks of tokens: the frames of a video, blocks that are denoised
  together.

  Args:
    size: Tokens of a block, at least 1.

  Returns:
    The mask; `block_causal(1)` allows what `causal()` does.

  Raises:
    ValueError: size is not positive.
    TypeError: size is not an int.

  References:
    Arriola et al., Block diffusion, arXiv:2503.09573, section 3.

  >>> block_causal(2).to_dense(4, 4).astype(int)
  array([[1, 1, 0, 0],
         [1, 1, 0, 0],
         [1, 1, 1, 1],
         [1, 1, 1, 1]])
  """
  return BlockCausal(_size(size))


def _size(size) -> int:
  if _checks.integer("size", size) < 1:
    raise ValueError(f"`size` must be at least 1, got size={size}. Give the tokens of a chunk.")
  return _checks.position("size", size)
