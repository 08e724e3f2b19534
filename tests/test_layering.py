"""Which module may import which, read from the sources."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = ("masks", "blockattn", "benchmarks")
IMPLEMENTATIONS = ("_xla", "_reference", "_pallas_tpu")


def _name(path):
  parts = path.relative_to(ROOT).with_suffix("").parts
  return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {_name(path): path for package in PACKAGES for path in (ROOT / package).rglob("*.py")}


def _imports(module, top_level_only=False):
  """The modules that a module imports, anywhere in it or only when it is loaded."""
  tree = ast.parse(FILES[module].read_text())
  nodes = tree.body if top_level_only else ast.walk(tree)
  found = set()
  for node in nodes:
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f"{module} has a relative import"
      # `from package import module` imports the module, `from module import name` the module alone.
      names = {f"{node.module}.{alias.name}" for alias in node.names}
      found |= {name if name in FILES else node.module for name in names}
  return found


def _of(package, *roots):
  """Those of `roots` that lie in a package."""
  return sorted(root for root in roots if f"{root}.".startswith(f"{package}."))


def test_masks_import_nothing_of_blockattn():
  for module in _of("masks", *FILES):
    assert not _of("blockattn", *_imports(module)), module


@pytest.mark.parametrize("package", ["masks", "blockattn"])
def test_packages_import_neither_benchmarks_nor_tests(package):
  for module in _of(package, *FILES):
    assert not _of("benchmarks", *_imports(module)), module
    assert not _of("tests", *_imports(module)), module


def test_masks_alone_load_no_pallas():
  code = "import sys, masks; print([m for m in sys.modules if 'pallas' in m or m == 'blockattn'])"
  loaded = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120, cwd=ROOT
  )
  assert loaded.stdout.strip() == "[]"


@pytest.mark.parametrize("module", IMPLEMENTATIONS)
def test_implementations_import_no_other_implementation_and_no_api(module):
  forbidden = {f"blockattn.{name}" for name in (*IMPLEMENTATIONS, "_api", "_vjp", "_validate", "_explain")}
  assert not _imports(f"blockattn.{module}") & (forbidden - {f"blockattn.{module}"})


def test_only_the_package_and_explain_import_the_api():
  users = {m for m in _of("blockattn", *FILES) if "blockattn._api" in _imports(m)}
  assert users == {"blockattn", "blockattn._explain"}


def test_kernels_import_no_api_and_no_implementation():
  shared = {f"blockattn.{name}" for name in ("_compat", "_options", "_block_sizes", "block_coo")}
  for module in _of("blockattn._kernels", *FILES):
    imported = _of("blockattn", *_imports(module))
    assert {m for m in imported if not _of("blockattn._kernels", m)} <= shared, module


def test_modules_never_import_the_package_they_are_in():
  """A name taken from the package itself would need the package to be loaded first."""
  for package in ("masks", "blockattn"):
    for module in _of(package, *FILES):
      assert package not in _imports(module) or module == package, module


def test_imports_have_no_cycle():
  loaded = {m: {n for n in _imports(m, top_level_only=True) if n in FILES} for m in FILES}
  while ready := [m for m, needs in loaded.items() if not needs & loaded.keys() - {m}]:
    for module in ready:
      del loaded[module]
  assert not loaded


def test_kernels_do_not_write_to_prefetched_scalars_l04():
  """The interpreter goes wrong on it, and SMEM is shared by all steps."""
  prefetched = {"prefetched", "schedule", "work"}  # what all kernels call them
  used = set()
  for module in _of("blockattn._kernels", *FILES):
    for node in ast.walk(ast.parse(FILES[module].read_text())):
      if isinstance(node, ast.Subscript):
        base = node.value
        while isinstance(base, ast.Subscript | ast.Attribute):
          base = base.value
        if isinstance(base, ast.Name) and base.id in prefetched:
          used.add(module.rpartition(".")[2])
          assert isinstance(node.ctx, ast.Load), module
  assert used >= {"attention_forward", "attention_backward", "dsd", "sdd", "masked_matmul"}
