"""Reports of several agents, some of which do not answer."""

import pytest

from tessera.clients.nodeusage import NodeReports
from tessera.errors import Unavailable


def test_no_report_at_all_is_an_error_only_where_somebody_was_asked() -> None:
    assert NodeReports().some() == ()
    with pytest.raises(Unavailable, match="agent b: no answer"):
        NodeReports(silent=(Unavailable("agent b", found="no answer", hint="try again"),)).some()
