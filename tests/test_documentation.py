"""Documentation stays true: links and named files exist, and the commands that pages show run."""

import ast
import hashlib
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from tessera.cli import COMMANDS, main
from tessera.cli.explain.pod import pod
from tessera.core.gpu.gpumodels import CATALOG

ROOT = Path(__file__).parents[1]
PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")))
CURRENT = [page for page in PAGES if page.parent.name != "decisions" and page.name != "CHANGELOG.md"]
"""Pages about the program as it is; decisions and the changelog are history."""
LINK = re.compile(r"\[[^]]*\]\(([^)#]*)(?:#([^)]*))?\)")
HTML_LINK = re.compile(r'(?:src|href)="([^"]+)"')
BLOCK = re.compile(r"^```(?:sh|console)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(
    r"^[ #$]*(?:[^|#\n]* \| )?(?:\.venv/bin/|kubectl )?tessera (?!COMMAND| )(.*?)(?: +#.*| &.*| \| .*)?$"
)
INLINE = re.compile(r"`([^`\n]+)`")
NAMED = re.compile(
    r"(?<![\w./{-])(?:docs|deploy|examples|scripts|tests|bench|native|testbed|generate|src)/[\w./-]*\w|\b[A-Z]+\.md\b"
)

VALUES = yaml.safe_load((ROOT / "deploy/chart/values.yaml").read_text())
"""Of the chart: `agent.args` is one of them, not a module."""
RUN = re.compile(r"examples/|^simulate synthetic|^profiles\b")
"""What is run needs no cluster, no GPU and no root; of other commands only the options are checked."""


def shown() -> Iterator[tuple[str, str]]:
    """Yield the pages and help texts, each with the `tessera` commands that it shows."""
    texts = [(str(page.relative_to(ROOT)), "\n".join(BLOCK.findall(page.read_text()))) for page in CURRENT]
    comments = list(ROOT.glob("examples/**/*.yaml"))
    texts += [(str(path.relative_to(ROOT)), path.read_text()) for path in comments]
    symptoms = "docs/troubleshoot.md"
    texts += [(symptoms, "\n".join(INLINE.findall((ROOT / symptoms).read_text())))]
    texts += [(f"tessera {name} --help", command.epilog or "") for name, command in commands()]
    for source, text in texts:
        for line in re.sub(r"\\\n *", "", text).splitlines():
            if found := COMMAND.match(line):
                yield source, found[1]


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {each}", below) for each, below in command.commands.items())


SHOWN = sorted(set(shown()))


def anchors(page: Path) -> set[str]:
    """Return the names under which a page's headings can be reached."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: str) -> None:
    broken = []
    text = (ROOT / page).read_text()
    for target, anchor in [*LINK.findall(text), *((each, "") for each in HTML_LINK.findall(text))]:
        if "://" in target:
            continue
        path = (ROOT / page).parent / target if target else ROOT / page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(f"{target}#{anchor}" if anchor else target)
    assert broken == []


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in CURRENT])
def test_files_that_a_page_names_exist(page: str) -> None:
    named = NAMED.findall((ROOT / page).read_text())
    assert [name for name in named if not list(ROOT.glob(name)) and not list((ROOT / "docs").glob(name))] == []


def test_every_claim_of_the_threat_model_names_tests_that_exist() -> None:
    text = (ROOT / "docs/security.md").read_text().partition("## Threat model")[2].partition("\n### ")[0]
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    ids = [re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row) for row in rows]
    assert len(rows) > 15
    assert [row for row, found in zip(rows, ids, strict=True) if not found] == []
    named = {each for found in ids for each in found}
    wanted = {(file, f"def {test}(" if test else "def test_") for file, test in named}
    assert sorted((file, text) for file, text in wanted if text not in (ROOT / file).read_text()) == []


def test_tests_that_pages_name_exist() -> None:
    """And every row of the table of deaths names one, or says that there is none."""
    named = {each for page in CURRENT for each in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text())}
    assert sorted((file, test) for file, test in named if f"def {test}(" not in (ROOT / file).read_text()) == []
    deaths = (
        (ROOT / "docs/operations.md")
        .read_text()
        .partition("## What fails when a process dies")[2]
        .partition("\n## ")[0]
    )
    rows = [line for line in deaths.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 8
    assert [row for row in rows if "`tests/" not in row and "not tested" not in row] == []


def test_pages_that_the_source_names_are_there() -> None:
    sources = [
        *ROOT.glob("src/**/*.py"),
        *ROOT.glob("bench/*.py"),
        *(path for path in ROOT.glob("scripts/*") if path.is_file()),
        ROOT / "pyproject.toml",
    ]
    named = {
        page
        for path in sources
        for page in re.findall(r"(?<![\w/])docs/(?:decisions/)?[a-z0-9-]+\.md", path.read_text())
    }
    assert sorted(page for page in named if not (ROOT / page).exists()) == []


def exists(dotted: str) -> bool:
    """Return whether a dotted name below the program's folder is a module, or a name that one has."""
    place, *rest = dotted.split(".")
    path = ROOT / "src/tessera" / place
    while rest and (path / rest[0]).is_dir():
        path /= rest.pop(0)
    if not path.is_dir():
        return False
    if rest and path.joinpath(f"{rest[0]}.py").exists():
        path = path / f"{rest.pop(0)}.py"
    source = path if path.is_file() else path / "__init__.py"
    return not rest or re.search(rf"\b{rest[0]}\b", source.read_text()) is not None


def test_modules_that_docstrings_and_comments_name_exist() -> None:
    parts = "core|api|cli|agent|server|controller|clients|sim"
    name = re.compile(rf"`(?:tessera[./])?((?:{parts})(?:\.[a-zA-Z_]\w*|(?:/\w+)+)+)`")
    keys = {f"agent.{key}" for key in VALUES["agent"]} | {f"server.{key}" for key in VALUES["server"]}
    named = {
        (str(path.relative_to(ROOT)), dotted)
        for path in (ROOT / "src").rglob("*.py")
        for dotted in name.findall(path.read_text())
        if dotted not in keys and not dotted.endswith((".yaml", ".go")) and not re.search(r"/v\d", dotted)
    }
    assert len(named) > 30
    assert sorted((path, dotted) for path, dotted in named if not exists(dotted.replace("/", "."))) == []


def test_paths_in_the_tables_of_the_architecture_page_exist() -> None:
    """A name in code there is a module or package of the program, or a folder beside it."""
    rows = [line for line in (ROOT / "docs/architecture.md").read_text().splitlines() if line.startswith("|")]
    named = {name for row in rows for name in re.findall(r"`((?:[a-z]\w*/)*[a-z]\w*(?:\.py)?)`", row)}
    tops = (ROOT / "src/tessera", ROOT)
    found = {name for name in named for top in tops if (top / name).exists() or (top / f"{name}.py").exists()}
    assert len(named) > 40
    assert sorted(named - found) == []


def test_the_layers_of_the_architecture_page_are_all_that_there_is() -> None:
    layers = (ROOT / "docs/architecture.md").read_text().partition("## Layers")[2].partition("`api` is divided")[0]
    top = ROOT / "src/tessera"
    parts = [path for path in (*top.iterdir(), *(top / "clients").iterdir()) if path.is_dir() or path.suffix == ".py"]
    names = {path.relative_to(top).with_suffix("").as_posix() for path in parts if not path.name.startswith("__")}
    assert sorted(name for name in names - {"clients/connections"} if f"`{name}`" not in layers) == []


def test_the_architecture_page_answers_questions_about_every_part() -> None:
    """Up to forty; each part of the core decides something that somebody looks for."""
    text = (ROOT / "docs/architecture.md").read_text().partition("## Where is it decided?")[2]
    rows = re.findall(r"^\| .*\? \| (.*) \|$", text, re.MULTILINE)
    assert 20 <= len(rows) <= 40
    parts = {path.name for path in (ROOT / "src/tessera/core").iterdir() if (path / "__init__.py").exists()}
    assert (
        sorted(part for part in parts if not any(f"`core/{part}/" in row or f"`core/{part}`" in row for row in rows))
        == []
    )


def test_the_records_that_the_glossary_names_are_classes_of_the_core() -> None:
    text = (ROOT / "docs/glossary.md").read_text()
    named = {name for name in re.findall(r"\*\* \(`(\w+)`\)|\*\*`(\w+)`\*\*", text) for name in name if name}
    classes = {
        name
        for path in (ROOT / "src/tessera/core").rglob("*.py")
        for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)
    }
    assert {"DeviceRequest", "Need", "Share"} < named
    assert sorted(named - classes) == []


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    records = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [name for name in records if f"]({name})" not in index] == []
    # A number may be missing while the change that took it has not landed yet.
    assert len({name[:4] for name in records}) == len(records), "each number once"


def test_the_readme_has_every_command_and_every_page() -> None:
    text = (ROOT / "README.md").read_text()
    assert [name for name in COMMANDS if not re.search(rf"^\| [^|]*`tessera {name}\b", text, re.MULTILINE)] == []
    pages = [str(page.relative_to(ROOT)) for page in CURRENT if page.name != "README.md"]
    assert [page for page in pages if f"({page})" not in text] == []


def test_commands_are_found() -> None:
    ran = {command for _, command in SHOWN if RUN.search(command)}
    assert len(ran) >= 15
    assert len(SHOWN) >= 80


@pytest.mark.parametrize("command", sorted({command for _, command in SHOWN if RUN.search(command)}))
def test_a_command_that_is_shown_works(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, shlex.split(command))
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(("source", "command"), [each for each in SHOWN if not RUN.search(each[1])])
def test_a_command_that_is_shown_has_the_options_it_is_shown_with(source: str, command: str) -> None:
    """Nothing is run: it may name clusters, files and GPUs that are not here."""
    name, *arguments = itertools.takewhile("--".__ne__, shlex.split(command))  # what follows is another program's
    context = click.Context(main, info_name="tessera", resilient_parsing=True)
    found = main.get_command(context, name)
    assert found is not None, source
    while isinstance(found, click.Group) and arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        found = found.commands[name]
    options = {option for each in found.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}
    if command.startswith("explain pod"):
        options |= {option for each in pod.params for option in each.opts} | {"-f"}
    given = [argument.partition("=")[0] for argument in arguments if re.match(r"--?[a-z]", argument)]
    assert [option for option in given if option not in options] == [], source


KUBERNETES = {
    *(
        "UnexpectedAdmissionError",
        "CreateContainerConfigError",
        "ContainerCreating",
        "ImagePullBackOff",
        "ErrImagePull",
    ),
    *("OOMKilled", "PodSecurity", "ValidatingAdmissionPolicy", "HorizontalPodAutoscaler"),
    *("schedulerName", "nodeStatusUpdateFrequency", "honor_labels", "hostPID"),
}
"""Words of the symptoms that are not ours: Kubernetes', and Prometheus'."""
FOREIGN = re.compile(
    r"Insufficient|untolerated taint|exceeded quota|violates PodSecurity|cannot create resource|secret .hub. not found"
    r"|ImagePullBackOff|ErrImagePull|OOMKilled|ContainerCreating|<unknown>"
    r"|CUDA out of memory|CUDA driver version|libcuda"
)
"""Symptoms in the words of others: Kubernetes, the kubelet, kubectl and CUDA."""
OPEN = re.compile(r'\.\.\.|\b[A-Z]{3,}\b|"[^"]*"|\b[0-9][0-9.]*(?: [GM]iB)?\b')
"""Parts of a quoted message that differ each time."""
RESOURCES = {"pod", "pods", "node", "nodes", "deployment", "quota", "apiservices", "hpa", "workloads"}


def test_symptoms_name_what_the_program_and_the_cluster_have() -> None:
    """Messages, reasons and metrics in the words of the source; what `kubectl` is asked for by kinds that there are."""
    said = INLINE.findall((ROOT / "docs/troubleshoot.md").read_text())
    source = "\n".join(
        path.read_text()
        for top in ("src", "deploy")
        for path in ROOT.glob(f"{top}/**/*.*")
        if path.suffix in {".py", ".yaml"}
    )
    words = {
        each for text in said for each in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b|\b[A-Za-z][a-z]+(?:[A-Z][a-z]+)+\b", text)
    }
    assert sorted(each for each in words - KUBERNETES if each not in source) == []
    kinds = RESOURCES | set(re.findall(r"^    plural: (\w+)$", source, re.MULTILINE))
    asked = [each for text in said for each in re.findall(r"kubectl (?:get|describe) (?!--)([\w,]+)", text)]
    assert sorted({each for kind in asked for each in kind.split(",")} - kinds) == []
    assert len(words) > 20


def printed() -> str:
    """Return all texts of the program and the chart, one a line; a value in a text is a zero byte."""
    found = []
    for path in ROOT.glob("src/**/*.py"):
        for each in ast.walk(ast.parse(path.read_text())):
            if isinstance(each, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in each.values)
                found.append("".join(map(str, parts)))
            elif isinstance(each, ast.Constant) and isinstance(each.value, str):
                found.append(each.value)
    lines = [" ".join(text.split()) for text in found]
    return "\n".join((*lines, *(path.read_text() for path in ROOT.glob("deploy/**/*.yaml"))))


def is_printed(piece: str, texts: str) -> bool:
    """Return whether a text has the words of a quoted message, in their order."""
    words = [re.escape(each.strip()) for each in OPEN.split(piece) if each.strip()]
    return re.search(r"[^\n]{0,60}".join(words), texts) is not None


def test_symptoms_are_messages_that_the_program_prints() -> None:
    """The quoted texts of the first column, but for commands, and messages of others."""
    symptoms = (ROOT / "docs/troubleshoot.md").read_text().partition("## What an alert means")[0]
    rows = [line for line in symptoms.splitlines() if line.startswith("| ")]
    quoted = [each for row in rows for each in INLINE.findall(row.split(" | ")[0])]
    pieces = [
        piece
        for each in quoted
        if not each.startswith(("kubectl ", "tessera "))
        for piece in re.split(": |, ", each)
        if not FOREIGN.search(piece)
    ]
    texts = printed()
    assert len(pieces) > 30
    assert [piece for piece in pieces if not is_printed(piece, texts)] == []
    assert not is_printed("where it would run is not known ... tessera-viewer", texts)


@pytest.mark.parametrize("page", ["docs/simulated-gpus.md", "docs/mig.md"])
def test_a_quick_start_on_simulated_gpus_runs(page: str, tmp_path: Path) -> None:
    """The block that creates GPUs runs in a shell as it is shown; of a transcript the lines after `$`."""
    block = next(each for each in BLOCK.findall((ROOT / page).read_text()) if "sim-gpus create" in each)
    typed = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ") or "$ " not in block]
    home = {"XDG_STATE_HOME": str(tmp_path), "TESSERA_MIG_STATE_DIR": str(tmp_path / "state")}
    environ = {**os.environ, **home, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environ.pop("TESSERA_NVMLSIM_STATE", None)
    subprocess.run(["bash", "-e", "-c", "\n".join(typed)], check=True, env=environ, cwd=tmp_path, timeout=60)


SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TYPED = re.compile(r"^(?:time |kubectl )?tessera [a-z]", re.MULTILINE)


def test_pages_that_use_the_command_line_link_to_its_installation() -> None:
    """And none installs a package that no index has."""
    pages = {page: page.read_text() for page in CURRENT if page.is_relative_to(ROOT / "docs")}
    using = {page for page, text in pages.items() if any(TYPED.search(block) for block in SHELL.findall(text))}
    linked = {page for page, text in pages.items() if "install.md#the-command-line)" in text}
    own = {ROOT / "docs/install.md", ROOT / "docs/package.md", ROOT / "docs/reference/cli.md"}
    assert sorted(str(page) for page in using - linked - own) == []
    assert len(using) > 15
    released = re.compile(r"install '?tessera-gpu")
    assert sorted(str(page) for page, text in pages.items() if released.search(text)) == []


def test_the_first_page_names_every_walk_through() -> None:
    text = (ROOT / "docs/index.md").read_text()
    walks = sorted(page.name for page in ROOT.glob("docs/walkthroughs/*.md"))
    assert [name for name in walks if f"(walkthroughs/{name})" not in text] == []
    assert len(walks) == 5


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/walkthroughs/*.md")), ids=lambda page: page.stem)
def test_a_walk_through_has_all_sections_and_says_what_its_reader_replaces(page: Path) -> None:
    text = page.read_text()
    sections = ["What you need", "Steps", "What it costs", "Undo", "On GKE", "On one Linux machine", "What was run"]
    found = re.findall("^## (.*)$", text, re.MULTILINE)
    assert [each for each in found if each in sections] == sections
    need = re.split("^## ", text, flags=re.MULTILINE)[1]
    typed = "\n".join(block for block in BLOCK.findall(text.split("## Steps")[1]))
    assert "save each YAML block under the name in its first line" in need
    assert "`registry.example/tessera`" in need
    for word in ("gpu-node-1", "KEY", "SECRET"):
        assert (re.search(rf"\b{word}\b", typed) is None) or f"`{word}" in need or f"{word}=" in need, word


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/walkthroughs/*.md")), ids=lambda page: page.stem)
def test_what_the_commands_of_a_walk_through_read_is_there_or_made_by_the_page(page: Path) -> None:
    """Files are blocks of the page, written by its commands, or in this repository; objects of buckets are uploaded."""
    text = page.read_text()
    typed = "".join(SHELL.findall(text))
    made = {*re.findall(r"^```yaml\n# (\S+)$", text, re.MULTILINE), *re.findall(r" > ([\w./-]+)", typed)}
    read = set(re.findall(r"(?<![\w./-])[\w./-]+\.(?:yaml|json|kubeconfig)\b", typed))
    assert len(read) > 2
    assert sorted(name for name in read - made if not (ROOT / name).exists()) == []
    for name in re.findall(r"^  source: s3://models/(\S+)$", text, re.MULTILINE):
        assert f"https://rgw.example.com/models/{name}/" in typed or f" find {name} -type f)" in typed, name


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/walkthroughs/*.md")), ids=lambda page: page.stem)
def test_a_walk_through_says_whether_it_was_run_as_it_is_now(page: Path) -> None:
    text = page.read_text()
    blocks = re.findall(r"^```(?:sh|yaml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    digest = hashlib.sha256("".join(blocks).encode()).hexdigest()[:8]
    (run,) = re.findall(r"^\| commands and YAML of the last run \| (.*) \|$", text, re.MULTILINE)
    assert run in {f"`{digest}`", "changed since the last run"}, (
        f"run it again and write `{digest}`, or that they changed"
    )


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/walkthroughs/*.md")), ids=lambda page: page.stem)
def test_undo_deletes_nothing_that_a_cluster_may_have_by_another_hand(page: Path) -> None:
    """Namespaces and what is in none have names of the walk-through, or its reader must not have them."""
    text = page.read_text()
    need, undo = text.partition("## Steps")[0], text.partition("\n## Undo")[2].partition("\n## ")[0]
    deleted = re.findall(r"^kubectl delete (namespace|clusterrole\S*|storageclass) (.+)$", undo, re.MULTILINE)
    names = {name for _, several in deleted for name in several.split()}
    for file in re.findall(r"^kubectl delete -f (\S+)", undo, re.MULTILINE):
        objects = yaml.safe_load_all((ROOT / file).read_text())
        names |= {each["metadata"].get("namespace", each["metadata"]["name"]) for each in objects}
    assert {name for name in names if not name.startswith("walkthrough-") and f"`{name}`" not in need} == set()
    assert re.search(r"Tessera (is not|nor Kueue .*is) installed", need)


def test_the_sizes_of_operations_are_those_of_the_pages_that_they_link() -> None:
    """Each figure of the column `measured` is in the linked page, in the same words or without what is only added."""
    table = (ROOT / "docs/operations.md").read_text().partition("## Size")[2].partition("\n## ")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 5
    for cell in rows:
        pages = "".join((ROOT / "docs" / name).read_text() for name, _ in LINK.findall(cell))
        figures = re.findall(r"\d[\d,.]*\d|\d", LINK.sub("", cell))
        assert figures, cell
        assert [figure for figure in figures if figure not in pages] == [], cell


def test_what_the_comparison_says_of_others_can_be_followed() -> None:
    """Issues are links, versions are commits, and files are linked at one of these commits."""
    text = (ROOT / "docs/comparison.md").read_text()
    assert re.findall(r"(?<!\[)\b[\w/-]+#\d+\b(?!\])", text) == []
    commits = set(re.findall(r"\[([0-9a-f]{8})\]\(https://github\.com/[\w.-]+/[\w.-]+/tree/\1\)", text))
    assert len(commits) > 10
    linked = re.findall(r"/(?:blob|tree)/(\w+)", text)
    assert [commit for commit in linked if commit not in commits] == []


def test_scripts_that_pages_show_exist_and_can_be_run() -> None:
    named = {name for page in CURRENT for name in re.findall(r"\bscripts/[a-z]+\b", page.read_text())}
    assert named >= {"scripts/demo", "scripts/test"}
    assert [name for name in sorted(named) if not os.access(ROOT / name, os.X_OK)] == []


def test_the_models_of_the_catalog_are_counted() -> None:
    (count,) = re.findall(r"the (\d+) models of `tessera profiles`", (ROOT / "docs/get-started.md").read_text())
    assert int(count) == len(CATALOG)
