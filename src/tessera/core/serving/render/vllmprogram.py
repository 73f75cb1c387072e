"""The text of the program that starts vLLM. It is part of the pods' template: another text restarts all of them.

So it has what runs alone, without docstrings, comments and annotations.
"""

import ast
import inspect
from types import ModuleType
from typing import Final

from tessera.core.serving import modelmemory
from tessera.core.serving.render import connections, vllmstart

__all__ = ["START", "START_SIZED"]


class _Running(ast.NodeTransformer):
    """Removes what changes nothing where the program runs."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if (node.module or "").startswith("tessera.") else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        return None if ast.unparse(node.targets[0]) == "__all__" else node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Keep the fields of a tuple, which are annotations alone."""
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


_PROGRAM: Final = f"{_text(modelmemory, vllmstart)}\nmiddleware = {_text(connections)!r}\n"
START: Final = f"{_PROGRAM}start(sys.argv[1:], middleware)\n"
"""Its arguments: the sequences and tokens of the largest batch, the model's folder, and options of `vllm serve`."""
START_SIZED: Final = f"{_PROGRAM}serve(sys.argv[1:], middleware)\n"
"""The same where an option says the memory already. Its arguments: the model's folder, and options of `vllm serve`."""
