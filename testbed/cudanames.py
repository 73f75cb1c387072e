"""Libraries of CUDA by name alone: `python cudanames.py FOLDER` puts beside PyTorch's libraries those that they name.

PyPI's PyTorch does not load without CUDA's libraries, 2.7 GB, of which a machine without a GPU calls nothing. The ones
made here have the names and versions of their functions, and each says that there is no device.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

__all__ = ["make_libraries"]

_CUDA = re.compile(r"lib(cu|nv|nccl)")
_FUNCTION = re.compile(r"(__cuda|__nv|cu|nv|nccl)")
_SYMBOL = re.compile(r" *\d+: \S+ +\d+ \w+ +\w+ +\w+ +(?P<section>\w+) (?P<name>[^@ ]+)@*(?P<version>\S*)")
"""A line of `readelf --dyn-syms`."""
_NO_DEVICE = 100
"""Source: CUDA, cudaErrorNoDevice. Functions that start with `__` register code of kernels as a library is loaded."""


def make_libraries(folder: Path) -> None:
    """Make the libraries of CUDA that the libraries in a folder name and that are not in it."""
    libraries = sorted(folder.glob("*.so*"))
    named, undefined, defined = set[str](), dict[str, tuple[str, str]](), set[str]()
    for each in libraries:
        named |= {name for name in re.findall(r"NEEDED.*\[(.*)\]", _readelf("-d", each)) if _CUDA.match(name)}
        origin = _origins(_readelf("-V", each))
        for line in _readelf("--dyn-syms", each).splitlines():
            symbol = _SYMBOL.match(line)
            if symbol is None:
                continue
            name, version = symbol["name"], symbol["version"]
            if symbol["section"] != "UND":
                defined.add(name)
            elif _FUNCTION.match(name):
                undefined[name] = (origin.get(version, ""), version)
    absent = sorted(named - {each.name for each in libraries})
    for library in absent:
        # A function without a version may be any library's: the first has them all.
        mine = {
            name: version
            for name, (place, version) in undefined.items()
            if name not in defined and (place == library or (not place and library == absent[0]))
        }
        _compile(folder / library, mine)


def _readelf(*arguments: str | Path) -> str:
    return subprocess.run(["readelf", "-W", *arguments], capture_output=True, text=True, check=True).stdout


def _origins(text: str) -> dict[str, str]:
    """Return which library each version of functions is of, by what `readelf -V` says."""
    found, library = dict[str, str](), ""
    for line in text.splitlines():
        if place := re.search(r"Version: \d+ +File: (\S+)", line):
            library = place[1]
        elif name := re.search(r"Name: (\S+) .*Version: \d+", line):
            found[name[1]] = library
    return found


def _compile(path: Path, versions: dict[str, str]) -> None:
    """Write a library of functions, each with its version, which may be empty."""
    code = "".join(
        f"int {name}(void) {{ return {0 if name.startswith('__') else _NO_DEVICE}; }}\n" for name in sorted(versions)
    )
    groups = defaultdict[str, list[str]](list)
    for name, version in sorted(versions.items()):
        groups[version].append(f"{name};")
    script = path.with_name("versions.map")
    script.write_text("".join(f"{each} {{ {' '.join(names)} }};\n" for each, names in groups.items() if each))
    flags = ["-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{path.name}"]
    if script.stat().st_size:
        flags.append(f"-Wl,--version-script,{script}")
    subprocess.run(["gcc", *flags, "-x", "c", "-", "-o", path], input=code, text=True, check=True)
    script.unlink()


if __name__ == "__main__":
    make_libraries(Path(sys.argv[1]))
