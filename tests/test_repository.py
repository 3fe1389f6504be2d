"""What must stay true of the repository as a whole: layout, version, links, wheel contents."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import tandemkv

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MATURIN = shutil.which("maturin", path=Path(sys.executable).parent) or shutil.which("maturin")


def tracked_files() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listing.stdout.split("\0") if name]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", (ROOT / "Makefile").read_text(), re.M))


def test_cuda_folder_holds_sources_only():
    # NVIDIA ships a namespace package `cuda`: one Python file here breaks `import cupy` from the
    # repository's root.
    others = [p for p in (ROOT / "cuda").rglob("*") if p.suffix not in {".cu", ".cuh"}]
    assert others == []


def test_licence_is_present_and_named_everywhere():
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert importlib.metadata.metadata("tandemkv")["License-Expression"] == "Apache-2.0"
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
    assert workspace["license"] == "Apache-2.0"


def test_version_has_one_source():
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert tandemkv.__version__ == version == importlib.metadata.version("tandemkv")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"]
    for crate in ("rust/core", "rust/python"):
        package = tomllib.loads((ROOT / crate / "Cargo.toml").read_text())["package"]
        assert package["version"] == {"workspace": True}
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_no_file_names_a_path_of_somebodys_machine():
    # Absolute paths below folders whose contents differ from machine to machine.
    somebodys = re.compile(rb"(?<![\w.$}~*-])/(?:home|root|work|tmp|Users|opt)/[A-Za-z0-9_.]")
    found = {
        str(path.relative_to(ROOT)): match.group().decode()
        for path in tracked_files()
        if path.is_file() and (match := somebodys.search(path.read_bytes()))
    }
    assert found == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_make_targets_in_pages_exist(page: Path):
    text = page.read_text()
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    missing = [
        link
        for link in links
        if not link.startswith(("https://", "mailto:")) and not (page.parent / link).exists()
    ]
    assert missing == []
    named = set(re.findall(r"^\s*make ([a-z-]+)|`make ([a-z-]+)`", text, re.M))
    assert {first or second for first, second in named} <= make_targets()


def test_ci_runs_make_test():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert re.search(r"^make test\b", script.read_text(), re.M)
    assert "test" in make_targets()


def packaged_files() -> set[str]:
    """Files below python/ that belong to a user: sources, stubs, the marker and kernels."""
    return {
        str(path.relative_to(ROOT / "python"))
        for path in tracked_files()
        if path.is_relative_to(ROOT / "python" / "tandemkv")
    }


@pytest.mark.skipif(not (MATURIN and shutil.which("cargo")), reason="needs maturin and cargo")
@pytest.mark.timeout(900)  # it compiles the release build
def test_wheel_and_sdist_hold_every_package_file(tmp_path: Path):
    for command in (["build", "--release", "--locked"], ["sdist"]):
        run = subprocess.run(
            [str(MATURIN), *command, "--out", str(tmp_path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
    (wheel,) = tmp_path.glob("*.whl")
    (sdist,) = tmp_path.glob("*.tar.gz")
    assert re.fullmatch(r"tandemkv-.*-cp311-abi3-.*linux.*\.whl", wheel.name)

    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert packaged_files() | {"tandemkv/_core.abi3.so"} <= names
        # Nothing lands outside the package: `cuda` belongs to NVIDIA's namespace package.
        assert {name.split("/")[0].split("-")[0] for name in names} == {"tandemkv"}
        assert any(name.endswith("licenses/LICENSE") for name in names)
        for name in names & packaged_files():
            assert archive.read(name) == (ROOT / "python" / name).read_bytes(), name

    with tarfile.open(sdist) as archive:
        base = sdist.name.removesuffix(".tar.gz")
        for name in packaged_files():
            member = archive.getmember(f"{base}/python/{name}")
            stream = archive.extractfile(member)
            assert member.isfile()
            assert stream is not None
            assert stream.read() == (ROOT / "python" / name).read_bytes(), name


def test_every_kernel_is_linked_into_the_package():
    sources = {path.name for path in (ROOT / "cuda").glob("*.cu*")}
    links = {path.name: path for path in (ROOT / "python/tandemkv/device/cuda").glob("*.cu*")}
    assert set(links) == sources
    for name, link in links.items():
        # A link per file: maturin silently drops a linked folder.
        assert link.is_symlink()
        assert link.resolve() == ROOT / "cuda" / name
