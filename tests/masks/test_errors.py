"""Every rejection of the builders and of Mask: the rule and the value received."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import masks


def _case(error, message, call):
  return pytest.param(error, message, call, id=message[:40])


_IDS = "[tokens] or [batch, tokens]"

BUILDERS = [
  _case(TypeError, "`offset` must be an int, got 2.0 (float).", lambda: masks.causal(2.0)),
  _case(TypeError, "`offset` must be an int, got True.", lambda: masks.causal(True)),
  _case(TypeError, "`offset` must be an int, got array([3, 4])", lambda: masks.causal(np.array([3, 4]))),
  _case(TypeError, "`window` must be an int, got None (NoneType).", lambda: masks.sliding_window(None)),
  _case(
    ValueError,
    "`window` must be at least 1 (it counts the token itself), got window=0. For no limit leave",
    lambda: masks.sliding_window(0),
  ),
  _case(TypeError, "`left` must be an int, got 1.5 (float).", lambda: masks.local(1.5, 0)),
  _case(
    ValueError,
    "`left` must be at least 0, got left=-1. Use None for no limit on that side.",
    lambda: masks.local(-1, None),
  ),
  _case(
    ValueError,
    "`right` must be at least 0, got right=-2. Use None for no limit on that side.",
    lambda: masks.local(None, -2),
  ),
  _case(TypeError, "`ids` must have an integer dtype, got float64.", lambda: masks.document([0.0, 1])),
  _case(TypeError, "`ids` must have an integer dtype, got bool.", lambda: masks.document([True])),
  _case(TypeError, "`kv_ids` must have an integer dtype, got", lambda: masks.document([0], [0.5])),
  _case(ValueError, f"`ids` must have shape {_IDS}, got shape ().", lambda: masks.document(3)),
  _case(
    ValueError,
    f"`kv_ids` must have shape {_IDS}, got shape (1, 1, 2).",
    lambda: masks.document([0], np.zeros((1, 1, 2), int)),
  ),
  _case(
    ValueError,
    "`ids` must fit int32, got values from 0 to 2147483648. Renumber them from 0.",
    lambda: masks.document([0, 2**31]),
  ),
  _case(
    ValueError,
    "`ids` and `kv_ids` must have the same batch size or 1, got 2 and 3.",
    lambda: masks.document(np.zeros((2, 4), int), np.zeros((3, 4), int)),
  ),
  _case(TypeError, "`lengths` must have an integer dtype, got", lambda: masks.document_from_lengths([1.5])),
  _case(
    ValueError,
    "`lengths` must have shape [documents], got shape (1, 2).",
    lambda: masks.document_from_lengths([[3, 4]]),
  ),
  _case(
    ValueError,
    "`lengths` must be at least 0, got -1.",
    lambda: masks.document_from_lengths([3, -1]),
  ),
  _case(
    ValueError,
    "`lengths` must sum to at most total=5, got 7. Cut the last document or raise total.",
    lambda: masks.document_from_lengths([3, 4], total=5),
  ),
  _case(TypeError, "`total` must be an int, got 9.5", lambda: masks.document_from_lengths([3], total=9.5)),
  _case(
    TypeError,
    "`lengths` must be concrete, got a traced array of shape (2,). Build the mask outside of jit.",
    lambda: jax.jit(lambda x: masks.document_from_lengths(x).to_dense(4, 4))(jnp.array([2, 2])),
  ),
  _case(TypeError, "`n` must have an integer dtype, got float64.", lambda: masks.prefix(1.5)),
  _case(ValueError, "`n` must be at least 0, got -1.", lambda: masks.prefix([3, -1])),
  _case(ValueError, "`n` must have shape [] or [batch], got shape (1, 1).", lambda: masks.prefix([[1]])),
  _case(ValueError, "`n` must hold at least one number, got an empty", lambda: masks.prefix([])),
  _case(ValueError, "`kv_lengths` must be at least 0, got -4.", lambda: masks.padding(-4)),
  _case(
    TypeError, "`kv_lengths` must have an integer dtype, got float32.", lambda: masks.padding(jnp.ones(2))
  ),
  _case(
    TypeError,
    "`fn` must be a function of (q_idx, kv_idx), got ndarray. For an array use from_array.",
    lambda: masks.from_function(np.ones((2, 2), bool)),
  ),
  _case(
    TypeError,
    "`array` must be bool or 0/1 integers, got float32. For an additive mask pass array == 0.",
    lambda: masks.from_array(np.zeros((2, 2), np.float32)),
  ),
  _case(
    TypeError,
    "`array` must be bool or 0/1 integers, got bfloat16.",
    lambda: masks.from_array(jnp.zeros((2, 2), jnp.bfloat16)),
  ),
  _case(
    ValueError,
    "`array` must be [q_len, kv_len] or [batch, heads, q_len, kv_len], got shape (1, 2, 2).",
    lambda: masks.from_array(np.ones((1, 2, 2), bool)),
  ),
  _case(
    ValueError,
    "`array` of integers must hold 0 and 1, got -1 to 2.",
    lambda: masks.from_array(np.array([[-1, 2]])),
  ),
  _case(
    TypeError,
    "`array` must be concrete, got a traced one of shape (2, 2). Build the mask outside of jit.",
    lambda: jax.jit(lambda x: masks.from_array(x).to_dense(2, 2))(jnp.ones((2, 2), bool)),
  ),
]

MASKS = [
  _case(TypeError, "`q_len` must be an int, got 2.0.", lambda: masks.causal().to_dense(2.0, 3)),
  _case(TypeError, "`kv_len` must be an int, got True.", lambda: masks.causal().to_dense(2, True)),
  _case(ValueError, "`q_len` must be in [0, 2**31), got -1.", lambda: masks.causal().to_dense(-1, 3)),
  _case(
    ValueError,
    "`kv_len` must be in [0, 2**31), got 2147483648.",
    lambda: masks.causal().block_mask(3, 2**31, 1, 1),
  ),
  _case(
    ValueError,
    "`block_q` must be at least 1, got block_q=0.",
    lambda: masks.causal().block_mask(3, 3, 0, 1),
  ),
  _case(
    ValueError,
    "`block_kv` must be at least 1, got block_kv=-8.",
    lambda: masks.causal().block_mask(3, 3, 1, -8),
  ),
  _case(TypeError, "`block_kv` must be an int, got 1.5", lambda: masks.causal().block_mask(3, 3, 1, 1.5)),
  _case(
    ValueError,
    "`capacity` is for masks with traced arrays, got capacity=3 for causal(). Leave it None.",
    lambda: masks.causal().block_mask(3, 3, 1, 1, capacity=3),
  ),
  _case(
    ValueError,
    "Document ids fit only their own lengths (queries, keys) = (2, 2), got (2, 3). Give one id per",
    lambda: masks.document([0, 1]).to_dense(2, 3),
  ),
  _case(
    ValueError,
    "(queries, keys) = (2, 1), got (2, 2). Give one id per token",
    lambda: (masks.causal() & ~masks.document([0, 1], [0])).block_mask(2, 2, 1, 1),
  ),
  _case(
    ValueError,
    "An array mask fits only its own lengths (queries, keys) = (2, 2), got (2, 3). Build it for",
    lambda: (masks.from_array(np.eye(2, dtype=bool)) | masks.causal()).to_dense(2, 3),
  ),
  _case(
    ValueError,
    "`kv_lengths` must be at most the number of keys, 8, got 9. Give the lengths of the keys",
    lambda: masks.padding([3, 9]).to_dense(2, 8),
  ),
  _case(
    TypeError,
    "The function of from_function must return booleans, got dtype int32. Compare or convert",
    lambda: masks.from_function(lambda i, j: i - j).block_mask(3, 3, 1, 1),
  ),
  _case(
    ValueError,
    "Masks must agree in (batch, heads) or have 1 there, got (2, 1) and (3, 1).",
    lambda: masks.padding([3, 9]) & masks.padding([1, 2, 3]),
  ),
  _case(
    TypeError,
    "A mask has no truth value, got it in a boolean context. Combine masks with &, | and ~",
    lambda: masks.causal() and masks.full(),
  ),
  _case(TypeError, "A mask has no truth value", lambda: not masks.causal()),
  _case(
    AttributeError,
    "A mask is immutable, got an assignment to `operands`. Build a new mask.",
    lambda: setattr(masks.causal() & masks.prefix(1), "operands", ()),
  ),
  _case(NotImplementedError, "Mask does not define allows()", lambda: masks.Mask().to_dense(1, 1)),
]

SPARSIFY = [
  _case(
    ValueError,
    "`mask` must be [M, N], got shape (1, 2, 2).",
    lambda: masks.sparsify_mask(np.ones((1, 2, 2)), (1, 1)),
  ),
  _case(
    ValueError,
    "`block_shape` must be two positive numbers, got (1,).",
    lambda: masks.sparsify_mask(np.ones((2, 2)), (1,)),
  ),
  _case(
    ValueError,
    "`block_shape` must be two positive numbers, got (1, 0).",
    lambda: masks.sparsify_mask(np.ones((2, 2)), (1, 0)),
  ),
]


@pytest.mark.parametrize(("error", "message", "call"), BUILDERS + MASKS + SPARSIFY)
def test_rejection_says_the_rule_and_the_value(error, message, call):
  with pytest.raises(error, match=re.escape(message)):
    call()


@pytest.mark.parametrize("other", [np.ones((2, 2), bool), True, None, 3, "causal()"], ids=type)
def test_masks_combine_with_masks_only(other):
  for combine in (lambda: masks.causal() & other, lambda: masks.causal() | other):
    with pytest.raises(TypeError, match=r"Masks combine with masks, got \w+ under .\. For an array use"):
      combine()
  with pytest.raises(TypeError, match="unsupported operand"):
    other & masks.causal()


def test_masks_with_traced_arrays_refuse_tiles_that_have_to_be_stored():
  stored = masks.from_array(np.eye(4, dtype=bool))

  def combined(ids):
    return (masks.document(ids) & stored).block_mask(4, 4, 2, 2).kinds

  with pytest.raises(
    NotImplementedError, match="A mask with traced arrays cannot be combined with one whose tiles"
  ):
    jax.jit(combined)(jnp.arange(4))


@pytest.mark.parametrize("name", ["partial_tiles", "partial_ids", "prefetch_mask"])
def test_block_masks_with_traced_arrays_store_no_tiles(name):
  def stored(ids):
    return getattr(masks.document(ids).block_mask(4, 4, 2, 2), name)

  with pytest.raises(NotImplementedError, match=f"`{name}` needs a mask without traced arrays"):
    jax.jit(stored)(jnp.arange(4))


def test_block_masks_with_traced_arrays_have_no_statistics_within_jit():
  def stats(ids):
    return masks.document(ids).block_mask(4, 4, 2, 2).stats().num_tiles

  with pytest.raises(TypeError, match="need concrete arrays, got traced ones"):
    jax.jit(stats)(jnp.arange(4))


@pytest.mark.parametrize("capacity", [0, -3])
def test_capacity_is_positive(capacity):
  def kinds(ids):
    return masks.document(ids).block_mask(4, 4, 2, 2, capacity=capacity).kinds

  with pytest.raises(ValueError, match=f"`capacity` must be at least 1, got capacity={capacity}"):
    jax.jit(kinds)(jnp.arange(4))


def test_block_mask_beyond_its_capacity_raises_when_checked():
  block_mask = jax.jit(lambda ids: masks.document(ids).block_mask(4, 4, 1, 1, capacity=5))(
    jnp.zeros(4, jnp.int32)
  )
  with pytest.raises(ValueError, match="A traced mask must fit its capacity of 5 steps: raise it"):
    block_mask.check()
