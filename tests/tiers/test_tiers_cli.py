"""`tandemkv cache`: exit status, the one line of an error, the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from store_setup import CLASSES, FINGERPRINT, found, key_of, open_store, write

from tandemkv.cli import main


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two pages of the first class, three of the second, of which one is stored again later."""
    with open_store(tmp_path) as store:
        for class_index, page, seed in ((0, 0, 1), (0, 3, 2), (1, 1, 1), (1, 2, 2), (1, 4, 1)):
            write(store, class_index, page, key_of(seed))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    status = main([str(item) for item in ("cache", *arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def flip(path: Path, class_index: int, page: int, offset: int) -> None:
    """Change a bit of a page on disk."""
    place = page * CLASSES[class_index].slot_bytes + offset
    with (path / f"class-{class_index}.pages").open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 4]))


EXPECTED = [
    {
        "page_bytes": 12288,
        "slot_bytes": 16384,
        "pages": 4,
        "entries": 2,
        "older": 0,
        "damaged": 0,
        "empty": 2,
    },
    {
        "page_bytes": 131,
        "slot_bytes": 4096,
        "pages": 5,
        "entries": 2,
        "older": 1,
        "damaged": 0,
        "empty": 2,
    },
]


@pytest.mark.parametrize("verb", ["inspect", "verify"])
def test_a_whole_store_is_reported(
    store: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, verb, store, "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == {
        "path": str(store),
        "fingerprint": FINGERPRINT.hex(),
        "file_bytes": 4 * 16384 + 5 * 4096,
        "classes": EXPECTED,
        "damaged": [],
    }
    status, out, _ = run(capsys, verb, store)
    lines = out.splitlines()
    assert status == 0
    assert lines[0] == f"{store}: 84.00 KiB"
    assert lines[1] == f"fingerprint {FINGERPRINT.hex()}"
    assert [line.split() for line in lines[2:]] == [
        ["class", "page", "pages", "entries", "older", "empty", "damaged"],
        ["0", "12.00", "KiB", "4", "2", "0", "2", "0"],
        ["1", "131", "B", "5", "2", "1", "2", "0"],
    ]


def test_damaged_contents_are_found_by_reading_them(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(store, 0, 3, 100)  # a byte of the page
    flip(store, 1, 2, 4096 - 50)  # one of its trailer
    before = [item.read_bytes() for item in sorted(store.glob("*.pages"))]
    status, out, _ = run(capsys, "inspect", store, "--json")
    assert status == 0
    assert json.loads(out)["damaged"] == [
        {"class": 1, "page": 2, "problem": "the page was not written whole"}
    ]
    status, out, _ = run(capsys, "verify", store, "--json")
    assert status == 1
    report = json.loads(out)
    assert [(item["class"], item["page"]) for item in report["damaged"]] == [(0, 3), (1, 2)]
    assert [item["entries"] for item in report["classes"]] == [1, 1]
    assert [item["damaged"] for item in report["classes"]] == [1, 1]
    status, out, _ = run(capsys, "verify", store)
    assert status == 1
    assert out.splitlines()[-2:] == [
        "class 0, page 3: the page's checksum is not that of its bytes",
        "class 1, page 2: the page was not written whole",
    ]
    assert [item.read_bytes() for item in sorted(store.glob("*.pages"))] == before


def test_clear_removes_the_pages(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = sum(item.stat().st_size for item in store.iterdir())
    assert run(capsys, "clear", store, "--json") == (
        0,
        json.dumps({"path": str(store), "removed_bytes": size}, indent=2) + "\n",
        "",
    )
    assert [item.name for item in store.iterdir()] == ["lock"]
    status, out, err = run(capsys, "clear", store)
    assert (status, out) == (2, "")
    assert err == f"error: {store} holds no pages\n"
    with open_store(store) as again:
        assert found(again) == {}
    status, out, _ = run(capsys, "clear", store)
    assert (status, out) == (0, f"{store}: 84.23 KiB removed\n")


@pytest.mark.parametrize("verb", ["inspect", "verify", "clear"])
def test_bad_input_is_one_line_that_names_it(
    store: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(path: Path, message: str) -> None:
        status, out, err = run(capsys, verb, path)
        assert (status, out) == (2, "")
        assert err.startswith("error: ")
        assert str(path) in err
        assert message in err
        assert err.count("\n") == 1

    refused(store / "nothing", "holds no pages")
    assert not (store / "nothing").exists()
    with open_store(store):
        refused(store, "is in use by another store")
    refused(store / "store.json", "is a file")
    header: Any = store / "store.json"
    text = header.read_bytes()
    header.write_bytes(text[:-5])
    if verb != "clear":
        refused(store, "is damaged")
        header.write_bytes(text)
    assert run(capsys, verb, store)[0] == 0


def test_help_names_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys)
    assert status == 0
    for verb in ("inspect", "verify", "clear"):
        assert verb in out
    assert main(["cache", "inspect"]) == 2
    assert "PATH" in capsys.readouterr().err


def test_the_folder_of_all_ranks_is_told_from_that_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (1, 0):
        (tmp_path / f"rank{rank}").mkdir()
    for verb in ("inspect", "verify", "clear"):
        assert main(["cache", verb, str(tmp_path)]) == 2
        assert "name one of them, rank0, rank1" in capsys.readouterr().err
