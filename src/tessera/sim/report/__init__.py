"""Reports of runs: a table for people, JSON and log lines for programs, figures."""

from tessera.sim.report.lines import log_lines
from tessera.sim.report.table import table

__all__ = ["log_lines", "table"]
