"""CSV files read strictly: every error names file, line and column."""

from pathlib import Path

import pytest

from tessera.errors import InvalidInput
from tessera.sim.workloads.table import Bounds, rows

GPUS = Bounds(0, 64, "GPUs")


def read(tmp_path: Path, content: str | bytes) -> list[tuple[int, str, int, str]]:
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = rows(path, ("name", "gpus"), ("model",))
    return [(row.line, row.text("name", "a name"), row.number("gpus", GPUS), row.values["model"]) for row in found]


def test_values_are_stripped_empty_lines_skipped_and_absent_columns_empty(tmp_path: Path) -> None:
    got = read(tmp_path, "\ufeffgpus, name ,other\n\n 8 , a ,x\n+0,b,\n")
    assert got == [(3, "a", 8, ""), (4, "b", 0, "")]
    assert read(tmp_path, 'name,gpus,model\n"two\nlines",1,T4\n') == [(2, "two\nlines", 1, "T4")]


WRONG: dict[str, tuple[str | bytes, str]] = {
    "a column that is missing": ("name,model\na,b\n", "t.csv, line 1: no column gpus (columns: name, model)"),
    "a column twice": ("name,gpus,gpus\n", "t.csv, line 1: column gpus is there twice: name each column once"),
    "a field too many": ("name,gpus\na,1,2\n", "t.csv, line 2: it has 3 fields, not 2 fields as in the header"),
    "an empty name": ("name,gpus\n,1\n", "t.csv, line 2, column name: it is empty: write a name"),
    "a number that is none": (
        "name,gpus\na,1e3\n",
        't.csv, line 2, column gpus: "1e3" is not a whole number, 0 to 64 GPUs',
    ),
    "a number out of bounds": ("name,gpus\na,65\n", '"65" is not a whole number, 0 to 64 GPUs'),
    "a number of another script": ("name,gpus\na,٣\n", "is not a whole number"),
    "no record": ("name,gpus\n", "t.csv: it has no records: write a header with name, gpus"),
    "an open quote": ('name,gpus\n"a,1\n', "write a CSV record"),
    "no text": (b"name,gpus\n\xff\xfe,1\n", "is not UTF-8: name a CSV file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_names_its_place(case: str, tmp_path: Path) -> None:
    content, want = WRONG[case]
    with pytest.raises(InvalidInput) as refused:
        read(tmp_path, content)
    assert want in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none\.csv: No such file or directory: name a CSV file"):
        list(rows(tmp_path / "none.csv", ("name",)))
