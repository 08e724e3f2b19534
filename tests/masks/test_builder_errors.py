"""Every rejection of the builders: the rule, the value received, the remedy."""

import re

import jax
import numpy as np
import pytest

import masks


def _case(error, message, call):
  return pytest.param(error, message, call, id=message[:50])


ERRORS = [
  _case(ValueError, "`size` must be at least 1, got size=0. Give the tokens", lambda: masks.chunk(0)),
  _case(TypeError, "`size` must be an int, got 1.0 (float).", lambda: masks.block_causal(1.0)),
  _case(ValueError, "`window` must be at least 1, got window=0. It counts", lambda: masks.dilated(0, 2)),
  _case(ValueError, "`dilation` must be at least 1, got dilation=-1.", lambda: masks.dilated(2, -1)),
  _case(
    ValueError,
    "`window` must be odd where is_causal is False, got window=4. Use 5:",
    lambda: masks.dilated(4, 2, is_causal=False),
  ),
  _case(ValueError, "`stride` must be at least 1, got stride=0.", lambda: masks.strided(0)),
  _case(
    TypeError,
    "`is_global` must be bool or 0/1 integers, got float64.",
    lambda: masks.global_tokens([0.5, 1.0]),
  ),
  _case(
    ValueError,
    "`is_global` of integers must hold 0 and 1, got 0 to 5. For token indices set flags[indices] = True.",
    lambda: masks.global_tokens([0, 5]),
  ),
  _case(
    ValueError,
    "`kv_is_global` must have shape [tokens] or [batch, tokens], got shape ().",
    lambda: masks.global_tokens([True], True),
  ),
  _case(
    ValueError,
    "`is_global` and `kv_is_global` must have the same batch size or 1, got 2 and 3.",
    lambda: masks.global_tokens(np.ones((2, 4), bool), np.ones((3, 4), bool)),
  ),
  _case(
    TypeError,
    "`is_global` must be a concrete array, got a traced one of shape (4,).",
    lambda: jax.eval_shape(masks.global_tokens, np.ones(4, bool)),
  ),
  _case(TypeError, "`ids` must have an integer dtype, got float64.", lambda: masks.same_group([0.5])),
  _case(ValueError, "`block_size` must be at least 1, got block_size=0.", lambda: masks.bigbird(0)),
  _case(
    ValueError,
    "`num_random_blocks` must be at least 0, got num_random_blocks=-1",
    lambda: masks.bigbird(4, -1),
  ),
  _case(
    ValueError, "`window_blocks` must be odd, got window_blocks=2. Use 3:", lambda: masks.bigbird(4, 1, 2)
  ),
  _case(TypeError, "`seed` must be an int, got None (NoneType).", lambda: masks.bigbird(4, seed=None)),
  _case(
    ValueError,
    "`kernel` must be one number or one per axis of `shape`, got kernel=(3,) for 2 axes.",
    lambda: masks.neighborhood((4, 4), (3,)),
  ),
  _case(
    ValueError,
    "`kernel` must be at least 1, got kernel=0 (axis 1).",
    lambda: masks.neighborhood((4, 4), (3, 0)),
  ),
  _case(
    ValueError,
    "`kernel` * `dilation` must be at most `shape`, got 3 * 2 > 4 (axis 0). Use a smaller",
    lambda: masks.neighborhood((4, 4), 3, 2),
  ),
  _case(
    ValueError,
    "`stride` must be at most `kernel`, got stride=4, kernel=3 (axis 0).",
    lambda: masks.neighborhood(9, 3, stride=4),
  ),
  _case(
    TypeError,
    "`is_causal` must be a bool, got 1 (axis 0).",
    lambda: masks.neighborhood(9, 3, is_causal=1),
  ),
  _case(ValueError, "got kernel=3 for 0 axes.", lambda: masks.neighborhood((), 3)),
  _case(
    ValueError,
    "`parents` must be -1 or an earlier node, got parents[1]=1. Order the nodes",
    lambda: masks.tree([-1, 1]),
  ),
  _case(ValueError, "`parents` must be -1 or an earlier node, got parents[0]=-2.", lambda: masks.tree([-2])),
  _case(ValueError, "`prefix` must be at least 0, got prefix=-1.", lambda: masks.tree([-1], -1)),
  _case(
    ValueError,
    "`map` must have shape [rows, cols] or [batch, heads, rows, cols], got shape (3,).",
    lambda: masks.from_blocks(np.ones(3, bool), (2, 2)),
  ),
  _case(
    TypeError,
    "`map` must be bool or 0/1 integers, got float64.",
    lambda: masks.from_blocks(np.ones((2, 2)), (2, 2)),
  ),
  _case(
    ValueError,
    "`block_shape` must be two numbers of at least 1, got (2, 0). Give (block_q, block_kv).",
    lambda: masks.from_blocks(np.ones((2, 2), bool), (2, 0)),
  ),
  _case(
    ValueError,
    "must be two numbers of at least 1, got 4.",
    lambda: masks.from_blocks(np.ones((2, 2), bool), 4),
  ),
  _case(ValueError, "`heads` must hold at least one mask, got none.", lambda: masks.per_head([])),
  _case(
    TypeError, "`heads` must be a sequence of masks, got Causal.", lambda: masks.per_head(masks.causal())
  ),
  _case(
    TypeError,
    "`heads` must hold masks, got heads[1] of type ndarray.",
    lambda: masks.per_head([masks.causal(), np.ones((2, 2))]),
  ),
  _case(
    ValueError,
    "`heads` must hold masks of one head each, got heads[0] with 2. Split it.",
    lambda: masks.per_head([masks.per_head([masks.causal()] * 2)]),
  ),
  _case(
    ValueError,
    "`heads` must agree in the batch size or have 1, got [2, 3].",
    lambda: masks.per_head([masks.prefix([1, 2]), masks.prefix([1, 2, 3])]),
  ),
]

LENGTHS = [
  _case(
    ValueError,
    "global_tokens(bool[1, 4]) fits only its own lengths (queries, keys) = (4, 4), got (4, 5).",
    lambda: masks.global_tokens([1, 0, 0, 0]).to_dense(4, 5),
  ),
  _case(
    ValueError,
    "tree(int32[1, 2], prefix=3) fits only its own lengths (queries, keys) = (2, 5), got (2, 2).",
    lambda: masks.tree([-1, 0], prefix=3).block_mask(2, 2, 2, 2),
  ),
  _case(
    ValueError,
    "neighborhood((3, 4), (3, 3)) fits 12 keys, got 13. Build it for the tokens of the call;",
    lambda: masks.neighborhood((3, 4), 3).to_dense(12, 13),
  ),
  _case(
    ValueError,
    "from_blocks(bool[1, 1, 2, 2], (4, 4)) fits 5 to 8 queries, got 4.",
    lambda: masks.from_blocks(np.eye(2, dtype=bool), (4, 4)).to_dense(4, 8),
  ),
  _case(
    ValueError,
    "document(int32[1, 4])",
    lambda: masks.per_head([masks.causal(), masks.document([0] * 4).shift()]).to_dense(5, 4),
  ),
]


@pytest.mark.parametrize(("error", "message", "call"), ERRORS + LENGTHS)
def test_rejections_say_rule_and_value(error, message, call):
  with pytest.raises(error, match=re.escape(message)):
    call()
