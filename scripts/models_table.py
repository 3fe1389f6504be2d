"""Write the tables of docs/models.md: the families, and what the bundled configs keep.

    python scripts/models_table.py          # rewrite the tables in place
    python scripts/models_table.py --check  # exit 1 if they are not up to date

A test runs the check, so that the page cannot drift from the code.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from tandemkv import GeometryError, Layer, ModelGeometry
from tandemkv.geometry import Role, supported_families
from tandemkv.geometry.families import WRAPPERS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "models.md"
CONFIGS = ROOT / "tests" / "data" / "configs"


def family_table() -> Iterator[str]:
    """Yield a row per family: what it is called, its types, and what its adapter says."""
    yield "| family | `model_type` | MTP module | what is read |"
    yield "|---|---|---|---|"
    for family in sorted(supported_families(), key=lambda family: family.name.lower()):
        types = ", ".join(f"`{name}`" for name in family.model_types)
        summary = (family.layers.__doc__ or "").partition("\n")[0].removeprefix("Read ")
        module = "yes" if family.mtp_layers is not None else ""
        yield f"| {family.name} | {types} | {module} | {summary[:1].upper()}{summary[1:]} |"


def wrapper_table() -> Iterator[str]:
    """Yield a row per place where a language model sits inside another."""
    yield "| the language model is in | `model_type` |"
    yield "|---|---|"
    for path in sorted(set(WRAPPERS.values())):
        types = ", ".join(f"`{name}`" for name in sorted(WRAPPERS) if WRAPPERS[name] == path)
        yield f"| `{'.'.join(path)}` | {types} |"


def config_table() -> Iterator[str]:
    """Yield a row per bundled config: its layers by kind, and bytes on one rank."""
    yield "| config | family | layers | bytes per token | state bytes per sequence |"
    yield "|---|---|---|---:|---:|"
    names = {name: family.name for family in supported_families() for name in family.model_types}
    for path in sorted(CONFIGS.glob("*.json"), key=lambda path: path.name.lower()):
        if path.name == "MANIFEST.json":
            continue
        try:
            geometry, note = _read(path)
        except GeometryError as error:
            problem = str(error).removeprefix(f"{path}: ").partition(";")[0].partition(",")[0]
            yield f"| {path.stem} | - | refused: {problem} | - | - |"
            continue
        kinds = ", ".join(_kinds(geometry))
        yield (
            f"| {path.stem} | {names[geometry.model_type]} | {kinds}{note} | "
            f"{geometry.bytes_per_token():,} | {geometry.state_bytes():,} |"
        )


def _read(path: Path) -> tuple[ModelGeometry, str]:
    role: Role = "draft" if path.name.startswith("DRAFT__") else "target"
    try:
        return ModelGeometry.from_hf(path, role=role), ""
    except GeometryError as error:
        if error.field != "torch_dtype":
            raise
        return ModelGeometry.from_hf(path, role=role, kv_dtype="bf16"), " (no dtype: as bf16)"


def _kinds(geometry: ModelGeometry) -> Iterator[str]:
    """Yield `count of what`, in order of first appearance."""
    counts: dict[str, int] = {}
    for layer in geometry.layers:
        what = " + ".join(_describe(part) for part in layer.parts)
        counts[what] = counts.get(what, 0) + 1
    for what, count in counts.items():
        yield f"{count} of {what}"


def _describe(layer: Layer) -> str:
    if layer.kind == "state":
        return "state"
    if layer.kind == "none":
        return "nothing" if layer.reads_layer is None else "nothing (reads another layer)"
    shape = f"{layer.num_kv_heads} x {layer.head_dim}"
    if layer.kind == "mla":
        shape = f"latent {layer.kv_lora_rank} + {layer.qk_rope_head_dim}"
        shape += "".join(f" + {one.name}" for one in layer.side_buffers)
    elif layer.v_head_dim is not None:
        shape += f"/{layer.v_head_dim}"
    if layer.kind == "cross_attention":
        shape += " cross"
    if layer.window is not None:
        shape += f" window {layer.window:,}"
    if layer.chunk is not None:
        shape += f" chunk {layer.chunk:,}"
    return f"{shape} {layer.kv_dtype}"


def updated(page: str) -> str:
    """Return the page with each table between its two markers replaced."""
    for name, rows in (
        ("families", family_table()),
        ("wrappers", wrapper_table()),
        ("configs", config_table()),
    ):
        start, end = f"<!-- {name}: generated -->\n", f"<!-- {name}: end -->"
        before, found, rest = page.partition(start)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise SystemExit(f"{PAGE}: the markers of table {name!r} are missing")
        page = before + start + "\n".join(rows) + "\n" + end + after
    return page


def main() -> int:
    """Rewrite the page, or compare it with --check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    page = PAGE.read_text(encoding="utf-8")
    new = updated(page)
    if parser.parse_args().check:
        if new != page:
            print(f"{PAGE}: run `python scripts/models_table.py`", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
