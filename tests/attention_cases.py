"""The reports of CASES.md on forward attention, by case id: inputs, mask, and the mask written out."""

import functools

import jax.numpy as jnp
import numpy as np

import masks
from tests.attention_case import Case, causal, register, same_id
from tests.support import BlockSizes, draw, grid_of


@register("E01 rows without key in an array mask", emulated=True)
def _():
  dense = causal(256, 256)
  dense[[5, 200]] = False
  return Case(draw(1, 256), masks.from_array(dense), dense)


@register("E03 bottom-right causal with rows without key", emulated=True)
def _():
  q, k, v = draw(24, 192, 128)
  return Case((q, k, v + 3), masks.causal(-64), causal(192, 128, -64))


def _unequal_lengths(q_len, kv_len, mask, dense):
  return Case(draw(31, q_len, kv_len), mask, dense)


for _q_len, _kv_len in ((128, 384), (384, 128)):
  for _mask, _dense in (
    (masks.full(), np.ones((_q_len, _kv_len), bool)),
    (masks.causal(), causal(_q_len, _kv_len)),
    (masks.causal(_kv_len - _q_len), causal(_q_len, _kv_len, _kv_len - _q_len)),
  ):
    register(f"A01 {_mask} with {_q_len} queries and {_kv_len} keys")(
      functools.partial(_unequal_lengths, _q_len, _kv_len, _mask, _dense)
    )


@register("A05 right window beyond the keys")
def _():
  return Case(draw(35, 256, 128), masks.local(None, 10**9 - 128), np.ones((256, 128), bool))


def _window(seed, length, left, right, num_heads=1):
  i, j = grid_of(length, length)
  dense = (i - left <= j) & (j <= i + right)
  return Case(draw(seed, length, num_heads=num_heads), masks.local(left, right), dense)


for _size in (1, 16, 128):
  register(f"W01 window of {_size} tokens", kernel_only=_size == 1)(
    functools.partial(_window, 7, 512, _size - 1, 0)
  )
for _left, _right in ((31, 0), (0, 31)):
  register(f"W04 window ({_left}, {_right}) alone")(functools.partial(_window, 43, 256, _left, _right))
register("W08 rows that begin at a later tile", emulated=True)(
  functools.partial(_window, 45, 1024, 100, 0, num_heads=3)
)


def _capped_1025(dtype):
  inputs = draw(51, 1025, dtype=dtype)
  return Case(inputs, masks.causal(), causal(1025, 1025), {"logits_soft_cap": 20})


for _dtype in ("bfloat16", "float32"):
  register(f"T01 1025 tokens with soft cap, {_dtype}")(functools.partial(_capped_1025, _dtype))


@register("T03 192 tokens, head_dim 16, bfloat16")
def _():
  inputs = draw(53, 192, num_heads=8, head_dim=16, dtype="bfloat16")
  return Case(inputs, masks.full(), np.ones((192, 192), bool))


@register("T03 block_q 64", kernel_only=True)
def _():
  inputs = draw(53, 192, num_heads=8, head_dim=16, dtype="bfloat16")
  dense = np.ones((192, 192), bool)
  return Case(inputs, masks.full(), dense, block_sizes=BlockSizes(64, 128))


def _padded_tail(length, head_dim):
  inputs = draw(55, length, head_dim=head_dim)
  return Case(inputs, masks.causal(), causal(length, length))


register("T05 130 tokens, head_dim 64", emulated=True)(functools.partial(_padded_tail, 130, 64))
register("T05 130 tokens, head_dim 80", kernel_only=True)(functools.partial(_padded_tail, 130, 80))
register("T05 257 tokens, head_dim 64", kernel_only=True)(functools.partial(_padded_tail, 257, 64))
register("T05 257 tokens, head_dim 80", kernel_only=True)(functools.partial(_padded_tail, 257, 80))


def _many_keys(block_sizes):
  dense = causal(256, 4992, 4992 - 256)
  return Case(draw(56, 256, 4992), masks.causal(4992 - 256), dense, block_sizes=block_sizes)


register("T06 4992 keys, block_kv 512", kernel_only=True)(functools.partial(_many_keys, BlockSizes(128, 512)))
register("T06 4992 keys, default blocks")(functools.partial(_many_keys, None))


@register("K03 partial tiles that print alike", emulated=True)
def _():
  dense = np.ones((256, 128), bool)
  dense[[0, 128], 0] = False
  dense[192, 64] = False
  return Case(draw(2, 256, 128), masks.from_array(dense), dense)


def _few_queries(offset, block_kv):
  dense, sizes = causal(32, 65536, offset), BlockSizes(32, block_kv)
  return Case(draw(93, 32, 65536), masks.causal(offset), dense, block_sizes=sizes)


register("I03 32 queries and 65536 keys, offset 0")(functools.partial(_few_queries, 0, 128))
register("I03 32 queries and 65536 keys, bottom right", kernel_only=True)(
  functools.partial(_few_queries, 65504, 512)
)


def _heads_and_dims(head_dim, value_dim):
  inputs = draw(113, 192, num_heads=6, num_kv_heads=2, head_dim=head_dim, value_dim=value_dim)
  return Case(inputs, masks.causal(), causal(192, 192))


register("G03 grouped heads, D 64 and Dv 128", emulated=True)(functools.partial(_heads_and_dims, 64, 128))
register("G03 grouped heads, D 128 and Dv 64")(functools.partial(_heads_and_dims, 128, 64))


def _head_dim(head_dim):
  return Case(draw(116, 128, head_dim=head_dim), masks.causal(), causal(128, 128))


for _size in (8, 16, 72, 80, 96, 128, 192, 256, 320):
  register(f"G06 head_dim {_size}", kernel_only=True)(functools.partial(_head_dim, _size))


@register("N03 soft cap, amplitude 5")
def _():
  q, k, v = draw(8, 128, 217, head_dim=128)
  return Case((q * 5, k, v), masks.causal(89), causal(128, 217, 89), {"logits_soft_cap": 15}, amplitude=5)


@register("N05 logits of -8e30")
def _():
  q, k = jnp.full((1, 256, 1, 64), 1e15), jnp.full((1, 256, 1, 64), -1e15)
  v = draw(6, 256)[0]  # the first draw of G(6)
  return Case((q, k, v), masks.causal(), causal(256, 256))


@register("N07 float16")
def _():
  ids = [0] * 100 + [1] * 156
  dense = causal(256, 256) & same_id(ids)
  return Case(draw(127, 256, dtype="float16"), masks.causal() & masks.document(ids), dense)


def _rounded(seed, amplitude):
  inputs = draw(seed, 1024, dtype="bfloat16", amplitude=amplitude)
  return Case(inputs, masks.causal(), causal(1024, 1024), amplitude=amplitude)


for _seed, _amplitude in ((0, 1), (2, 1), (0, 5), (2, 5)):
  register(f"N08 bfloat16, amplitude {_amplitude}, G({_seed})")(
    functools.partial(_rounded, _seed, _amplitude)
  )


@register("N08 float32, amplitude 5")
def _():
  return Case(draw(0, 512, amplitude=5), masks.causal(), causal(512, 512), amplitude=5)


def _one_query(q_len, kv_len):
  inputs = draw(94, q_len, kv_len, num_heads=3, num_kv_heads=1)
  return Case(inputs, masks.causal(kv_len - q_len), causal(q_len, kv_len, kv_len - q_len))


register("Z01 one query and five keys", emulated=True)(functools.partial(_one_query, 1, 5))
register("Z01 one query and one key")(functools.partial(_one_query, 1, 1))


@register("D08 an id that reappears")
def _():
  ids = np.repeat([0, 1, 0, 2], [70, 130, 30, 90])
  dense = same_id(ids) & causal(320, 320)
  return Case(draw(68, 320), masks.causal() & masks.document(ids), dense)


def _length(length):
  return Case(draw(95, length), masks.causal(), causal(length, length))


for _size in (256, 640, 384, 512):
  register(f"L01 {_size} tokens", kernel_only=True)(functools.partial(_length, _size))
