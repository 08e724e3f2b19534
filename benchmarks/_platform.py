"""Keeps libtpu quiet on machines without a TPU. Imports no jax: it has to run before that."""

import os
import pathlib
from collections.abc import MutableMapping

_GOOGLE_PCI_VENDOR = "0x1ae0"
# What Google's virtual machines have besides TPUs: NVMe and gVNIC. TPUs are not listed by their own
# ids, so that a generation newer than this file counts as one.
_GOOGLE_NOT_TPU = frozenset({"0x001f", "0x0042"})

# libtpu asks for these when jax looks for a TPU, and complains on stderr where nothing answers.
# With them it finds no chip and says nothing; jax goes on to choose among the GPUs and the CPU by
# itself, which JAX_PLATFORMS would decide for it. They also serve ahead-of-time compilation for
# abstract topologies.
_QUIET = {
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_ACCELERATOR_TYPE": "v5litepod-4",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_MIN_LOG_LEVEL": "3",  # below that it leaves log files in the temporary directory
}


def has_tpu(root: pathlib.Path = pathlib.Path("/")) -> bool:
  """Whether the machine may have a TPU; in doubt, True.

  Args:
    root: Where `dev` and `sys` are mounted.

  Returns:
    True if there is a TPU device node, a vfio group, or a PCI device of Google's that is neither a
    disk nor a network card.
  """
  if any(root.glob("dev/accel[0-9]*")) or any(root.glob("dev/vfio/[0-9]*")):
    return True
  for vendor in root.glob("sys/bus/pci/devices/*/vendor"):
    device = vendor.with_name("device")
    if _read(vendor) == _GOOGLE_PCI_VENDOR and _read(device) not in _GOOGLE_NOT_TPU:
      return True
  return False


def quiet_libtpu(environ: MutableMapping[str, str] | None = None) -> None:
  """Keeps libtpu from warning on stderr where there is no TPU; call it before importing jax.

  A real TPU is never hidden: nothing is set where there may be one, where JAX_FORCE_TPU_INIT is
  set, or over a variable that is set already. JAX_PLATFORMS is left alone, so GPUs stay usable.

  Args:
    environ: The environment to change, `os.environ` by default.
  """
  environ = os.environ if environ is None else environ
  if "JAX_FORCE_TPU_INIT" in environ or has_tpu():
    return
  for name, value in _QUIET.items():
    environ.setdefault(name, value)


def _read(path: pathlib.Path) -> str:
  try:
    return path.read_text().strip()
  except OSError:  # a device that was unplugged, or one that a sandbox hides
    return ""
