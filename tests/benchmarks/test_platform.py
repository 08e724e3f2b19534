import os
import subprocess
import sys

import pytest

from benchmarks import _platform

DEVICES = {"tpu": "0x0063", "newer_tpu": "0x00ff", "gvnic": "0x0042", "nvme": "0x001f"}


def add(root, path, content=""):
  file = root / path
  file.parent.mkdir(parents=True, exist_ok=True)
  file.write_text(content + "\n")


def add_pci(root, vendor, device):
  folder = f"sys/bus/pci/devices/0000:00:{len(list(root.rglob('vendor'))):02}.0"
  add(root, f"{folder}/vendor", vendor)
  add(root, f"{folder}/device", device)


def test_machine_without_devices_has_no_tpu(tmp_path):
  assert not _platform.has_tpu(tmp_path)


@pytest.mark.parametrize("path", ["dev/accel0", "dev/accel12", "dev/vfio/0"])
def test_device_node_is_taken_for_a_tpu(tmp_path, path):
  add(tmp_path, path)
  assert _platform.has_tpu(tmp_path)


@pytest.mark.parametrize("path", ["dev/accel/accel0", "dev/vfio/vfio", "dev/nvidia0"])
def test_device_node_of_others_is_no_tpu(tmp_path, path):
  add(tmp_path, path)
  assert not _platform.has_tpu(tmp_path)


@pytest.mark.parametrize(
  ("name", "expected"), [("tpu", True), ("newer_tpu", True), ("gvnic", False), ("nvme", False)]
)
def test_pci_device_of_google_is_a_tpu_unless_known_to_be_something_else(tmp_path, name, expected):
  add_pci(tmp_path, "0x8086", "0x0063")
  add_pci(tmp_path, "0x1ae0", DEVICES[name])
  assert _platform.has_tpu(tmp_path) is expected


def test_quiet_sets_nothing_where_there_is_a_tpu(monkeypatch):
  monkeypatch.setattr(_platform, "has_tpu", lambda: True)
  environ = {}
  _platform.quiet_libtpu(environ)
  assert environ == {}


def test_quiet_keeps_what_the_user_set_and_leaves_platforms_alone(monkeypatch):
  monkeypatch.setattr(_platform, "has_tpu", lambda: False)
  environ = {"TPU_ACCELERATOR_TYPE": "v6e-8"}
  _platform.quiet_libtpu(environ)
  assert environ["TPU_ACCELERATOR_TYPE"] == "v6e-8"
  assert environ["TPU_SKIP_MDS_QUERY"] == "1"
  assert "JAX_PLATFORMS" not in environ
  forced = {"JAX_FORCE_TPU_INIT": "1"}
  _platform.quiet_libtpu(forced)
  assert forced == {"JAX_FORCE_TPU_INIT": "1"}


def test_jax_starts_silently_after_importing_benchmarks():
  # Without what conftest.py set for this process, so that jax looks for a TPU.
  environ = {k: v for k, v in os.environ.items() if not k.startswith(("TPU_", "JAX_", "TF_"))}
  code = "import benchmarks, jax; jax.devices()"
  done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
  assert done.stdout + done.stderr == ""
