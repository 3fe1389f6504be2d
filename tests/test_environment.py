"""`tandemkv env` and the warning about debug builds."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import tandemkv
from tandemkv import environment
from tandemkv.cli.env import env, report_rows

# A CUDA driver with two devices, one of which fails when asked for its name.
FAKE_DRIVER = r"""
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return flags; }
int cuDriverGetVersion(int *v) { *v = 12080; return 0; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *handle, int index) { *handle = index + 40; return 0; }
int cuDeviceGetName(char *name, int size, int handle) {
    if (handle != 40) return 999;
    strncpy(name, "Imaginary GPU", size);
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int handle) { *bytes = 85899345920ul; return handle != 40; }
int cuDeviceGetAttribute(int *v, int attribute, int handle) {
    *v = attribute == 75 ? 9 : attribute == 76 ? 0 : -1;
    return handle != 40;
}
"""


@pytest.fixture
def fake_driver(tmp_path: Path) -> str:
    compiler = shutil.which("cc")
    assert compiler, "a C compiler is needed, as it is for linking the extension"
    source, library = tmp_path / "driver.c", tmp_path / "libdriver.so"
    source.write_text(FAKE_DRIVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


def test_report_names_what_is_installed():
    report = environment.collect_environment()
    assert report["tandemkv"]["version"] == importlib.metadata.version("tandemkv")
    assert report["python"]["version"] == sys.version.split()[0]
    numpy = report["packages"]["numpy"]
    assert numpy == {
        "version": importlib.metadata.version("numpy"),
        "distribution": "numpy",
        "error": None,
    }
    json.dumps(report)


def test_devices_come_from_the_driver_and_one_failing_device_hides_no_other(fake_driver: str):
    cuda = environment.collect_environment(driver_library=fake_driver)["cuda"]
    assert cuda["driver_version"] == "12.8"
    assert cuda["error"] is None
    first, second = cuda["devices"]
    assert first == {
        "index": 0,
        "name": "Imaginary GPU",
        "compute_capability": "9.0",
        "memory_bytes": 80 * 2**30,
    }
    assert second == {"error": "RuntimeError: cuDeviceGetName returned 999"}


def test_no_driver_is_an_answer():
    cuda = environment.collect_environment(driver_library="libnone.so")["cuda"]
    assert (cuda["driver_version"], cuda["devices"]) == (None, [])
    assert "libnone.so" in cuda["error"]


def test_a_package_that_does_not_import_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "brokenpkg.py").write_text("raise RuntimeError('no such\\n  symbol')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(environment.PACKAGES, "brokenpkg", ("numpy",))
    monkeypatch.setitem(environment.PACKAGES, "absentpkg", ("tandemkv-absent",))
    report = environment.collect_environment()
    rows = dict(report_rows(report))
    assert rows["brokenpkg"].endswith("does not import: RuntimeError: no such symbol")
    assert rows["absentpkg"] == "not installed"


def test_every_failing_probe_is_an_answer(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise OSError("lost")

    for probe in ("_tandemkv", "_python", "_platform", "_package", "_cuda"):
        monkeypatch.setattr(environment, probe, fail)
    report = environment.collect_environment()
    assert report["tandemkv"] == report["cuda"] == {"error": "OSError: lost"}
    assert ("CUDA driver", "none (OSError: lost)") in report_rows(report)
    result = CliRunner().invoke(env, [])
    assert (result.exit_code, result.exception) == (0, None)


def test_env_prints_rows_and_json():
    text = CliRunner().invoke(env, [])
    assert text.exit_code == 0
    assert f"tandemkv               {tandemkv.__version__}" in text.output
    as_json = CliRunner().invoke(env, ["--json"])
    assert json.loads(as_json.output)["tandemkv"]["version"] == tandemkv.__version__


# Loads the extension, says whether it is a debug build, then imports the package.
IMPORT_WITH_BUILD_KIND = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("tandemkv._core", sys.argv[1])
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)
core.DEBUG_BUILD = sys.argv[2] == "debug"
sys.modules["tandemkv._core"] = core
import tandemkv, tandemkv.errors
import tandemkv
"""


@pytest.mark.parametrize(("kind", "warnings"), [("debug", 1), ("release", 0)])
def test_import_warns_once_about_a_debug_build(kind: str, warnings: int):
    extension = environment.collect_environment()["tandemkv"]["extension"]
    run = subprocess.run(
        [sys.executable, "-W", "always", "-c", IMPORT_WITH_BUILD_KIND, extension, kind],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stderr.count("RuntimeWarning: tandemkv._core is a debug build") == warnings
