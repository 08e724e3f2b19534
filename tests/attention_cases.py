"""The cases that every implementation of attention is held to: inputs, mask, and the mask written out.

Cases named by a letter and a number are those of CASES.md.
"""

import dataclasses
import functools
import typing

import jax.numpy as jnp
import numpy as np

import masks
from tests.support import BlockSizes, draw, grid_of


@dataclasses.dataclass
class Case:
  """A call and the mask that it means, as a dense array.

  Attributes:
    inputs: q, k and v.
    mask: What is passed.
    dense: bool, broadcasts to [B, N, T, S]; written out without the package.
    options: scale, logits_soft_cap and sinks of the call.
    block_sizes: Tiles.
    amplitude: Of q and k, which decides the tolerance.
  """

  inputs: tuple
  mask: masks.Mask
  dense: np.ndarray
  options: dict = dataclasses.field(default_factory=dict)
  block_sizes: BlockSizes | None = dataclasses.field(default_factory=lambda: BlockSizes(128, 128))
  amplitude: int = 1


CASES: dict[str, typing.Callable[[], Case]] = {}

# Those whose point is how a kernel is tiled and launched.
KERNEL_ONLY: set[str] = set()

# Those in which the interpreter that emulates TPU memory can find what the plain one cannot: revisited
# output blocks, indices out of range, memory that was never written.
EMULATED: set[str] = set()


def _case(name, *, emulated=False, kernel_only=False):
  def register(build):
    CASES[name] = build
    if emulated:
      EMULATED.add(name)
    if kernel_only:
      KERNEL_ONLY.add(name)
    return build

  return register


def _causal(q_len, kv_len, offset=0):
  i, j = grid_of(q_len, kv_len)
  return j <= i + offset


def _same(q_ids, kv_ids=None):
  q_ids, kv_ids = np.asarray(q_ids), np.asarray(q_ids if kv_ids is None else kv_ids)
  return (q_ids[..., :, None] == kv_ids[..., None, :]) & (q_ids[..., :, None] >= 0)


@_case("E01 rows without key in an array mask", emulated=True)
def _():
  dense = _causal(256, 256)
  dense[[5, 200]] = False
  return Case(draw(1, 256), masks.from_array(dense), dense)


@_case("E03 bottom-right causal with rows without key", emulated=True)
def _():
  q, k, v = draw(24, 192, 128)
  return Case((q, k, v + 3), masks.causal(-64), _causal(192, 128, -64))


def _unequal_lengths(q_len, kv_len, mask, dense):
  return Case(draw(31, q_len, kv_len), mask, dense)


for _q_len, _kv_len in ((128, 384), (384, 128)):
  for _mask, _dense in (
    (masks.full(), np.ones((_q_len, _kv_len), bool)),
    (masks.causal(), _causal(_q_len, _kv_len)),
    (masks.causal(_kv_len - _q_len), _causal(_q_len, _kv_len, _kv_len - _q_len)),
  ):
    _case(f"A01 {_mask} with {_q_len} queries and {_kv_len} keys")(
      functools.partial(_unequal_lengths, _q_len, _kv_len, _mask, _dense)
    )


@_case("A05 right window beyond the keys")
def _():
  return Case(draw(35, 256, 128), masks.local(None, 10**9 - 128), np.ones((256, 128), bool))


def _window(seed, length, left, right, num_heads=1):
  i, j = grid_of(length, length)
  dense = (i - left <= j) & (j <= i + right)
  return Case(draw(seed, length, num_heads=num_heads), masks.local(left, right), dense)


for _size in (1, 16, 128):
  _case(f"W01 window of {_size} tokens")(functools.partial(_window, 7, 512, _size - 1, 0))
for _left, _right in ((31, 0), (0, 31)):
  _case(f"W04 window ({_left}, {_right}) alone")(functools.partial(_window, 43, 256, _left, _right))
_case("W08 rows that begin at a later tile", emulated=True)(
  functools.partial(_window, 45, 1024, 100, 0, num_heads=3)
)


def _capped_1025(dtype):
  inputs = draw(51, 1025, dtype=dtype)
  return Case(inputs, masks.causal(), _causal(1025, 1025), {"logits_soft_cap": 20})


for _dtype in ("bfloat16", "float32"):
  _case(f"T01 1025 tokens with soft cap, {_dtype}")(functools.partial(_capped_1025, _dtype))


@_case("T03 192 tokens, head_dim 16, bfloat16")
def _():
  inputs = draw(53, 192, num_heads=8, head_dim=16, dtype="bfloat16")
  return Case(inputs, masks.full(), np.ones((192, 192), bool))


@_case("T03 block_q 64", kernel_only=True)
def _():
  inputs = draw(53, 192, num_heads=8, head_dim=16, dtype="bfloat16")
  dense = np.ones((192, 192), bool)
  return Case(inputs, masks.full(), dense, block_sizes=BlockSizes(64, 128))


def _padded_tail(length, head_dim):
  inputs = draw(55, length, head_dim=head_dim)
  return Case(inputs, masks.causal(), _causal(length, length))


_case("T05 130 tokens, head_dim 64", emulated=True)(functools.partial(_padded_tail, 130, 64))
_case("T05 130 tokens, head_dim 80", kernel_only=True)(functools.partial(_padded_tail, 130, 80))
_case("T05 257 tokens, head_dim 64", kernel_only=True)(functools.partial(_padded_tail, 257, 64))
_case("T05 257 tokens, head_dim 80")(functools.partial(_padded_tail, 257, 80))


def _many_keys(block_sizes):
  dense = _causal(256, 4992, 4992 - 256)
  return Case(draw(56, 256, 4992), masks.causal(4992 - 256), dense, block_sizes=block_sizes)


_case("T06 4992 keys, block_kv 512", kernel_only=True)(functools.partial(_many_keys, BlockSizes(128, 512)))
_case("T06 4992 keys, default blocks")(functools.partial(_many_keys, None))


@_case("K03 partial tiles that print alike", emulated=True)
def _():
  dense = np.ones((256, 128), bool)
  dense[[0, 128], 0] = False
  dense[192, 64] = False
  return Case(draw(2, 256, 128), masks.from_array(dense), dense)


def _few_queries(offset, block_kv):
  dense, sizes = _causal(32, 65536, offset), BlockSizes(32, block_kv)
  return Case(draw(93, 32, 65536), masks.causal(offset), dense, block_sizes=sizes)


_case("I03 32 queries and 65536 keys, offset 0")(functools.partial(_few_queries, 0, 128))
_case("I03 32 queries and 65536 keys, bottom right")(functools.partial(_few_queries, 65504, 512))


def _heads_and_dims(head_dim, value_dim):
  inputs = draw(113, 192, num_heads=6, num_kv_heads=2, head_dim=head_dim, value_dim=value_dim)
  return Case(inputs, masks.causal(), _causal(192, 192))


_case("G03 grouped heads, D 64 and Dv 128", emulated=True)(functools.partial(_heads_and_dims, 64, 128))
_case("G03 grouped heads, D 128 and Dv 64")(functools.partial(_heads_and_dims, 128, 64))


def _head_dim(head_dim):
  return Case(draw(116, 128, head_dim=head_dim), masks.causal(), _causal(128, 128))


for _size in (8, 16, 72, 80, 96, 128, 192, 256, 320):
  _case(f"G06 head_dim {_size}", kernel_only=True)(functools.partial(_head_dim, _size))


@_case("N03 soft cap, amplitude 5")
def _():
  q, k, v = draw(8, 128, 217, head_dim=128)
  return Case((q * 5, k, v), masks.causal(89), _causal(128, 217, 89), {"logits_soft_cap": 15}, amplitude=5)


@_case("N05 logits of -8e30")
def _():
  q, k = jnp.full((1, 256, 1, 64), 1e15), jnp.full((1, 256, 1, 64), -1e15)
  v = draw(6, 256)[0]  # the first draw of G(6)
  return Case((q, k, v), masks.causal(), _causal(256, 256))


@_case("N07 float16")
def _():
  ids = [0] * 100 + [1] * 156
  dense = _causal(256, 256) & _same(ids)
  return Case(draw(127, 256, dtype="float16"), masks.causal() & masks.document(ids), dense)


def _rounded(seed, amplitude):
  inputs = draw(seed, 1024, dtype="bfloat16", amplitude=amplitude)
  return Case(inputs, masks.causal(), _causal(1024, 1024), amplitude=amplitude)


for _seed, _amplitude in ((0, 1), (2, 1), (0, 5), (2, 5)):
  _case(f"N08 bfloat16, amplitude {_amplitude}, G({_seed})")(functools.partial(_rounded, _seed, _amplitude))


@_case("N08 float32, amplitude 5")
def _():
  return Case(draw(0, 512, amplitude=5), masks.causal(), _causal(512, 512), amplitude=5)


def _one_query(q_len, kv_len):
  inputs = draw(94, q_len, kv_len, num_heads=3, num_kv_heads=1)
  return Case(inputs, masks.causal(kv_len - q_len), _causal(q_len, kv_len, kv_len - q_len))


_case("Z01 one query and five keys", emulated=True)(functools.partial(_one_query, 1, 5))
_case("Z01 one query and one key")(functools.partial(_one_query, 1, 1))


@_case("packed documents per example, grouped heads", emulated=True)
def _():
  ids = np.stack([np.repeat([0, 1, 2], [100, 90, 66]), np.repeat([4, 5, -1], [30, 200, 26])])
  inputs = draw(130, 256, batch=2, num_heads=4, num_kv_heads=2)
  mask = masks.causal() & masks.document(ids)
  return Case(inputs, mask, (_same(ids) & _causal(256, 256))[:, None])


@_case("documents in any order, computed from the ids")
def _():
  ids = np.random.default_rng(131).integers(-1, 20, 300)
  return Case(draw(131, 300, num_heads=2), masks.document(ids), _same(ids))


@_case("D08 an id that reappears")
def _():
  ids = np.repeat([0, 1, 0, 2], [70, 130, 30, 90])
  dense = _same(ids) & _causal(320, 320)
  return Case(draw(68, 320), masks.causal() & masks.document(ids), dense)


@_case("array mask per head", emulated=True)
def _():
  dense = np.random.default_rng(132).random((1, 4, 200, 150)) < 0.3
  dense[:, 1, :, :128] = False
  dense[:, 2] = False
  inputs = draw(132, 200, 150, batch=2, num_heads=4, num_kv_heads=2)
  return Case(inputs, masks.from_array(dense), dense)


@_case("array mask per example and head, sinks")
def _():
  dense = np.random.default_rng(133).random((2, 2, 130, 140)) < 0.5
  dense[1, 0, 7] = False
  inputs = draw(133, 130, 140, batch=2, num_heads=2)
  return Case(inputs, masks.from_array(dense), dense, {"sinks": jnp.array([0.5, -2.0])})


@_case("function, padding and one key/value head")
def _():
  i, j = grid_of(192, 160)
  dense = ((i // 3 + j) % 2 == 0) & (j < np.array([160, 70])[:, None, None, None])
  mask = masks.from_function(lambda q, kv: (q // 3 + kv) % 2 == 0) & masks.padding([160, 70])
  inputs = draw(134, 192, 160, batch=2, num_heads=3, num_kv_heads=1)
  return Case(inputs, mask, dense, {"scale": -0.2})


@_case("complement of a window, prefix and a sink", emulated=True)
def _():
  i, j = grid_of(192, 192)
  dense = ~((i - 40 <= j) & (j <= i + 40)) & (j < 150)
  dense[:, :] &= i != 191
  mask = ~masks.local(40, 40) & masks.prefix(150) & masks.from_function(lambda q, kv: q != 191)
  return Case(draw(135, 192), mask, dense, {"sinks": jnp.array([1.5])})


@_case("sinks, soft cap and scale, bfloat16")
def _():
  inputs = draw(136, 300, num_heads=4, num_kv_heads=2, dtype="bfloat16")
  options = {
    "sinks": jnp.array([0.0, 3.0, -1.0, 0.25], jnp.bfloat16),
    "logits_soft_cap": 5.0,
    "scale": 0.3,
  }
  return Case(inputs, masks.causal(), _causal(300, 300), options)


def _length(length):
  return Case(draw(95, length), masks.causal(), _causal(length, length))


for _size in (256, 640, 384, 512):
  _case(f"L01 {_size} tokens", kernel_only=True)(functools.partial(_length, _size))


def _scaled_with_sink(scale):
  options = {"scale": scale, "sinks": jnp.array([1.0])}
  return Case(draw(140, 130), masks.causal(), _causal(130, 130), options)


for _scale in (0, -0.3, 1e-4):
  _case(f"scale {_scale} and a sink", kernel_only=True)(functools.partial(_scaled_with_sink, _scale))


@_case("without batch")
def _():
  q, k, v = (x[0] for x in draw(137, 150, 200, num_heads=2, num_kv_heads=1))
  return Case((q, k, v), masks.causal(50), _causal(150, 200, 50))


@_case("no key for any query")
def _():
  return Case(draw(138, 200, 130), ~masks.full(), np.zeros((200, 130), bool))


@_case("sub-tiles within a tile", kernel_only=True)
def _():
  sizes = BlockSizes(256, 512, sub_q=64, sub_kv=256)
  ids = np.repeat([0, 1, 2], [300, 500, 200])
  dense = _same(ids) & _causal(1000, 1000)
  return Case(draw(139, 1000), masks.causal() & masks.document(ids), dense, block_sizes=sizes)
