"""Linear and integer programs, solved by HiGHS: the one module that imports highspy, and only when a program is solved.

Values come back as floats; of integer variables they are whole up to HiGHS' tolerance (1e-6), so round them.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import highspy

__all__ = ["LinearProgram", "Solution", "TimeBudget"]

_INTEGER = 1
"""HighsVarType.kInteger."""
_FEASIBLE = 2
"""HighsSolution's kSolutionStatusFeasible."""


class Solution(NamedTuple):
    """A solved program: the best point found and the proven bound."""

    values: tuple[float, ...]
    """One per variable, in order of creation; empty when no feasible point was found."""
    objective: float
    bound: float
    """No feasible point has a better objective than this; infinite where nothing was proved."""
    optimal: bool
    feasible: bool
    """Whether a feasible point was found."""
    duals: tuple[float, ...]
    """One per row, for programs without integer variables; zeros otherwise."""
    took_s: float
    """The solver's time, by its own clock."""


class TimeBudget:
    """A time limit for several programs together.

    Args:
        limit_s: the limit.
        whole: the budget that this one is a part of; time spent here is spent there too.

    """

    def __init__(self, limit_s: float = math.inf, whole: "TimeBudget | None" = None) -> None:
        self.left_s = limit_s
        self._whole = whole

    def part(self, limit_s: float) -> "TimeBudget":
        """Return a budget of this many of the remaining seconds."""
        return TimeBudget(min(limit_s, self.left_s), self)

    def spend(self, took_s: float) -> None:
        """Count the solver's time."""
        self.left_s -= took_s
        if self._whole is not None:
            self._whole.spend(took_s)


class LinearProgram:
    """A program under construction: add variables, add rows over them, then maximize or minimize."""

    def __init__(self) -> None:
        self._bounds: list[tuple[float, float, bool]] = []
        self._rows: list[tuple[float, float, dict[int, float]]] = []

    def variable(self, low: float = 0.0, high: float = float("inf"), *, integer: bool = False) -> int:
        """Add a variable and return its index."""
        self._bounds.append((low, high, integer))
        return len(self._bounds) - 1

    def row(self, terms: dict[int, float], *, low: float = float("-inf"), high: float = float("inf")) -> int:
        """Require `low <= sum of factor x variable <= high` and return the row's index."""
        self._rows.append((low, high, dict(terms)))
        return len(self._rows) - 1

    def maximize(
        self, objective: dict[int, float], *, limit_s: float = float("inf"), start: Sequence[float] = ()
    ) -> Solution:
        """Return the point with the largest objective, or the best found within `limit_s` seconds.

        `start` is a feasible point to begin with, one value per variable; an infeasible one is ignored.
        """
        return self._solve(objective, limit_s, start, maximize=True)

    def minimize(
        self, objective: dict[int, float], *, limit_s: float = float("inf"), start: Sequence[float] = ()
    ) -> Solution:
        """Return the point with the smallest objective, or the best found within `limit_s` seconds, from `start`."""
        return self._solve(objective, limit_s, start, maximize=False)

    def _solve(
        self, objective: dict[int, float], limit_s: float, start: Sequence[float], *, maximize: bool
    ) -> Solution:
        import highspy  # noqa: PLC0415 - lazily: a shared library that most commands never need

        solver = highspy.Highs()  # type: ignore[no-untyped-call]  # its stub leaves __init__ open
        for option, value in (("output_flag", False), ("threads", 1), ("random_seed", 0), ("mip_rel_gap", 0.0)):
            solver.setOptionValue(option, value)
        if math.isfinite(limit_s):
            solver.setOptionValue("time_limit", float(limit_s))
        if not self._bounds:  # HiGHS calls an empty model neither optimal nor infeasible
            met = all(low <= 0 <= high for low, high, _ in self._rows)
            return Solution((), 0.0, 0.0, optimal=met, feasible=met, duals=(0.0,) * len(self._rows), took_s=0.0)
        self._load(solver, objective)
        solver.changeObjectiveSense(highspy.ObjSense.kMaximize if maximize else highspy.ObjSense.kMinimize)
        if start:
            solver.setSolution(len(start), np.arange(len(start), dtype=np.int32), np.array(start, np.float64))
        solver.run()
        found = self._read(solver, optimal=solver.getModelStatus() == highspy.HighsModelStatus.kOptimal)
        if found.feasible:
            return found
        # Where no point was found, HiGHS may report a bound of a program that it never solved.
        return found._replace(bound=math.inf if maximize else -math.inf)

    def _load(self, solver: "highspy.Highs", objective: dict[int, float]) -> None:
        none, empty = np.array([], np.int32), np.array([], np.float64)
        for index, (low, high, _) in enumerate(self._bounds):
            solver.addCol(objective.get(index, 0.0), low, high, 0, none, empty)
        whole = np.array(self._whole, np.int32)
        solver.changeColsIntegrality(whole.size, whole, np.full(whole.size, _INTEGER, np.uint8))
        for low, high, terms in self._rows:
            indices = np.fromiter(terms.keys(), np.int32, len(terms))
            solver.addRow(low, high, len(terms), indices, np.fromiter(terms.values(), np.float64, len(terms)))

    def _read(self, solver: "highspy.Highs", *, optimal: bool) -> Solution:
        info, found = solver.getInfo(), solver.getSolution()
        feasible = info.primal_solution_status == _FEASIBLE
        values = tuple(found.col_value) if feasible else ()
        bound = info.mip_dual_bound if self._whole else info.objective_function_value
        duals = tuple(found.row_dual) if found.dual_valid and not self._whole else (0.0,) * len(self._rows)
        return Solution(values, info.objective_function_value, bound, optimal, feasible, duals, solver.getRunTime())

    @property
    def lows(self) -> tuple[float, ...]:
        """The lower bound of each variable, in order of creation."""
        return tuple(low for low, _, _ in self._bounds)

    @property
    def _whole(self) -> list[int]:
        return [index for index, (_, _, integer) in enumerate(self._bounds) if integer]
