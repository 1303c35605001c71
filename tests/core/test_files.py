"""Files: hashes of files and folders."""

from __future__ import annotations

from pathlib import Path

from headcount.core.files import hash_file_or_folder


def write_folder(folder: Path, contents: dict[str, str]) -> Path:
    folder.mkdir()
    for name, text in contents.items():
        (folder / name).write_text(text)
    return folder


def test_folders_of_other_names_and_contents_have_other_hashes(tmp_path: Path) -> None:
    folders = [{"a": "bc"}, {"ab": "c"}, {"a": "b", "c": ""}, {".b": "c"}]
    hashes = [hash_file_or_folder(write_folder(tmp_path / str(number), contents)) for number, contents in enumerate(folders)]
    (tmp_path / "file").write_text("bc")
    assert len({*hashes, hash_file_or_folder(tmp_path / "file")}) == 5
    assert hash_file_or_folder(write_folder(tmp_path / "same", {"a": "bc"})) == hashes[0], "the path of the folder itself does not count"
