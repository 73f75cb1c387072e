"""The text of the program that starts vLLM. It is part of the pods' template: another text restarts all of them.

So it has what runs alone, without docstrings, comments and annotations.
"""

import ast
import inspect
from types import ModuleType
from typing import Final

from tessera.core.serving import modelmemory
from tessera.core.serving.render import connections, vllmdevice, vllmstart

__all__ = ["START", "START_ALONE", "START_SIZED"]


class _Running(ast.NodeTransformer):
    """Removes what changes nothing where the program runs."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        module = node.module or ""
        if module == "typing":
            node.names = [each for each in node.names if each.name == "NamedTuple"]
        return None if module.startswith(("tessera.", "collections.abc")) or not node.names else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        return None if ast.unparse(node.targets[0]) == "__all__" else node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        """Keep the fields of a tuple, which are annotations alone."""
        if ast.unparse(node.annotation) == "TypeAlias":
            return None
        return node if node.value is None else ast.Assign([node.target], node.value, lineno=node.lineno)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._bare(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._bare(node)

    def _bare(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        for each in ast.walk(node.args):
            if isinstance(each, ast.arg):
                each.annotation = None
        return self.generic_visit(node)


def _text(*modules: ModuleType) -> str:
    return "\n".join(ast.unparse(_Running().visit(ast.parse(inspect.getsource(each)))) for each in modules)


# What no module here may do: read the device and the folder, write the middleware, and become vLLM.
_MEMORY: Final = """\
sequences, tokens, model, *options = sys.argv[1:]
files = {each.name: each for each in pathlib.Path(model).iterdir() if each.is_file()}
sizes = {name: each.stat().st_size for name, each in files.items()}
documents = {name: files[name].read_bytes() for name in (CONFIG, INDEX) if name in files}
batch = int(sequences), int(tokens)
options += memory_options(torch.cuda.mem_get_info(), os.environ, sizes, documents, batch)
"""
_UTILIZATION: Final = """\
model, *options = sys.argv[1:]
*_, utilization = usable_memory(torch.cuda.mem_get_info(), os.environ)
options.append(utilization)
"""
# vLLM closes a connection that is idle for 5 s and never one that is busy, so that its client stays with its replica.
# Source: vllm 0.33.0 `vllm/entrypoints/launchers/api_server/entry.py` (uvicorn's `timeout_keep_alive`) and
# `entrypoints/serve/middleware/register.py`.
_SERVE: Final = """\
folder = tempfile.mkdtemp()
pathlib.Path(folder, "renewed_connections.py").write_text(CONNECTIONS)
os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
options.append("--middleware=renewed_connections.RenewedByChance")
os.execvp("vllm", ["vllm", "serve", model, *options])
"""
_BY_CHANCE: Final = """
class RenewedByChance(RenewedConnections):

    def __init__(self, app):
        super().__init__(app, random.Random())
"""

_IMPORTS: Final = "import os, pathlib, sys, tempfile"
_CONNECTIONS: Final = f"CONNECTIONS = {_text(connections) + _BY_CHANCE!r}\n"
START: Final = f"{_IMPORTS}, torch\n{_text(modelmemory, vllmdevice, vllmstart)}\n{_CONNECTIONS}{_MEMORY}{_SERVE}"
"""Its arguments: the sequences and tokens of the largest batch, the model's folder, and options of `vllm serve`."""
START_ALONE: Final = f"{_IMPORTS}, torch\n{_text(vllmdevice)}\n{_CONNECTIONS}{_UTILIZATION}{_SERVE}"
"""The same for a device that no other pod uses. Its arguments: the model's folder, and options of `vllm serve`."""
START_SIZED: Final = f"{_IMPORTS}\n{_CONNECTIONS}model, *options = sys.argv[1:]\n{_SERVE}"
"""The same where an option says the memory already. Its arguments: the model's folder, and options of `vllm serve`."""
