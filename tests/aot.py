"""Compiles for real TPU generations on a machine without a TPU.

libtpu compiles ahead of time for an abstract topology, so a kernel that breaks a rule of the
hardware (tiling, VMEM, SMEM) fails here as it would on the chip. The environment that keeps libtpu
quiet and offline is set in `conftest.py`, since it must be there before libtpu loads.
"""

import functools

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from blockattn._compat import interpret_mode

TOPOLOGIES = {
  "v4": "v4:2x2x1",
  "v5e": "v5e:2x2",
  "v5p": "v5p:2x2x1",
  "v6e": "v6e:2x2",
  "v7x": "tpu7x:2x2x1",
}
CHIPS = tuple(TOPOLOGIES)


@functools.cache
def device(chip):
  """The first abstract device of `chip`, one of CHIPS."""
  return topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGIES[chip]).devices[0]


def mesh(chip):
  """A mesh that says which chip is meant: the lowering of some operations asks for it."""
  one = device(chip)
  kind = jax.sharding.AbstractDevice(
    device_kind=one.device_kind, num_cores=one.num_cores, platform=one.platform
  )
  return jax.sharding.AbstractMesh((), (), abstract_device=kind)


def compile_for(chip, fn, *args):
  """The compiled program of fn(*args) for one device of `chip`; raises what the TPU compiler raises.

  Args:
    chip: One of CHIPS.
    fn: A function of arrays, traced with kernels compiled and not interpreted.
    *args: Pytrees of arrays or `jax.ShapeDtypeStruct`; Python and NumPy scalars count as arrays.

  Returns:
    `jax.stages.Compiled`, with `as_text()` and `memory_analysis()`.
  """
  sharding = SingleDeviceSharding(device(chip))

  def shape(x):
    x = x if hasattr(x, "shape") else np.asarray(x, np.int32)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  with interpret_mode(False), jax.sharding.use_abstract_mesh(mesh(chip)):
    return jax.jit(fn).trace(*jax.tree.map(shape, args)).lower(lowering_platforms=("tpu",)).compile()
