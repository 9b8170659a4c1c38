"""The journal's files: what goes wrong with a disk costs entries, and old files do not pile up."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from mainspring.core.messages import Cancel
from mainspring.plugins import journal
from mainspring.plugins.journal import Journal, read_story


def file_of(folder: Path) -> Path:
    return folder / f"journal-{os.getpid()}.jsonl"


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_a_journal_that_records_nothing_leaves_no_file(tmp_path: Path) -> None:
    made = Journal(8, tmp_path)
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_goes_away_costs_entries_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    with capture_logs() as lines:
        made = Journal(8, folder, max_bytes=1)  # a new file for every entry
        made.record(Cancel("before"), 1.0)
        wait_until((folder / f"journal-{os.getpid()}.old.jsonl").exists)
        shutil.rmtree(folder)
        for _ in range(5):
            made.record(Cancel("lost"), 2.0)
        wait_until(lambda: made.num_lost == 5)
        folder.mkdir()
        made.record(Cancel("after"), 3.0)
        made.close()
    assert made._thread is not None and not made._thread.is_alive()
    assert made.num_lost == 5
    assert [line["event"] for line in lines] == ["journal_entry_lost"]
    assert [entry["rid"] for entry in read_story(folder, "after")] == ["after"]


def test_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    made = Journal(8, tmp_path)
    made.record(Cancel("a"), 1.0)
    made.close()
    with file_of(tmp_path).open("ab") as file:
        file.write(b'\xff\xfe\n3\n[]\n"x"\nnull\n{"rid": "a", "t": 2, "type": "Cancel"}\n{"rid": "a", "t"')
    assert [entry["t"] for entry in read_story(tmp_path, "a")] == [1.0, 2]


def test_files_of_ended_processes_are_kept_up_to_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "KEPT_FILES", 3)
    nobody = 4_000_000_000  # more than any system gives to a process
    for age in range(6):
        file = tmp_path / f"journal-{nobody + age}.jsonl"
        file.write_text("{}\n")
        os.utime(file, (1000 - age, 1000 - age))
    for name in ("journal-1.jsonl", "journal-of-mine.jsonl", "notes.txt"):  # a process that lives, and other people's
        (tmp_path / name).write_text("{}\n")
        os.utime(tmp_path / name, (1, 1))
    made = Journal(8, tmp_path)
    made.record(Cancel("a"), 1.0)
    made.close()
    kept = {f"journal-{nobody + age}.jsonl" for age in range(3)}
    own = {file_of(tmp_path).name, "journal-1.jsonl", "journal-of-mine.jsonl", "notes.txt"}
    assert {file.name for file in tmp_path.iterdir()} == kept | own
