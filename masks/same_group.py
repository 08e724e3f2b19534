"""Groups: queries see the keys of their own group, wherever these stand."""

import numpy as np

from masks import _checks
from masks._mask import Mask
from masks.document import document


def same_group(ids, kv_ids=None) -> Mask:
  """Query i may use key j if ids[i] == kv_ids[j], whatever the ids.

  For buckets and clusters, whose tokens are scattered: hash buckets, routed clusters, views of a scene.
  Unlike in `document`, negative ids are groups like any other: there is no padding.

  Args:
    ids: int [tokens] or [batch, tokens], the group of each query, and of each key if kv_ids is None.
    kv_ids: The same for the keys, where they differ from the queries.

  Returns:
    The mask: `document` of the same ids, numbered from 0 where some are negative. It fits only these
    lengths.

  Raises:
    TypeError: The ids are traced or not integer.
    ValueError: The ids have another rank, or different batch sizes.

  References:
    Kitaev et al., Reformer, arXiv:2001.04451, section 2 (buckets of a hash); Roy et al., Routing
    transformer, arXiv:2003.05997, section 4 (clusters).

  >>> same_group([-1, 5, -1]).to_dense(3, 3).astype(int)
  array([[1, 0, 1],
         [0, 1, 0],
         [1, 0, 1]])
  """
  named = (("ids", ids), ("kv_ids", kv_ids))
  given = [
    _checks.concrete_ids(name, x, (1, 2), "[tokens] or [batch, tokens]") for name, x in named if x is not None
  ]
  if min(int(x.min(initial=0)) for x in given) < 0:
    _, numbers = np.unique(np.concatenate([x.ravel() for x in given]), return_inverse=True)
    parts = np.split(numbers, [given[0].size])
    given = [part.reshape(x.shape) for part, x in zip(parts, given, strict=False)]
  return document(*given)
