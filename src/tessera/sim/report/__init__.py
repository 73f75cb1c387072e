"""Reports of runs: a table for people, JSON and log lines for programs, figures."""

from tessera.sim.report.figures import figures
from tessera.sim.report.lines import log_lines
from tessera.sim.report.style import check_figures
from tessera.sim.report.table import table_lines, title

__all__ = ["check_figures", "figures", "log_lines", "table_lines", "title"]
