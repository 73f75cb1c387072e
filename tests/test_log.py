"""Lines of the log, as programs and people read them."""

import io
import json

from tessera.errors import Unavailable
from tessera.log import RepeatedError, RepeatedErrors, configure, logger


def test_an_event_is_one_line_of_json() -> None:
    out = io.StringIO()
    configure(stream=out)
    logger(node="n1").info("layout_applied", gpu=0, reason="two\nlines")
    line = json.loads(out.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {"event": "layout_applied", "gpu": 0, "level": "info", "node": "n1", "reason": "two\nlines"}
    assert out.getvalue().count("\n") == 1


def test_text_is_for_people() -> None:
    out = io.StringIO()
    configure(form="text", stream=out)
    logger(node="n1").warning("layout_blocked", gpu=3)
    assert "layout_blocked" in out.getvalue()
    assert "gpu=3" in out.getvalue()


def test_what_is_below_the_level_is_not_written() -> None:
    out = io.StringIO()
    configure(level="warning", stream=out)
    logger().info("nothing_of_note")
    assert out.getvalue() == ""


def test_a_loop_complains_of_the_same_once_and_again_after_it_was_well() -> None:
    out = io.StringIO()
    configure(stream=out)
    complain = RepeatedError(logger(), "disks_not_kept", node="n1")
    refused = Unavailable("the API server", found="no answer", expected="one")
    for error in (refused, refused, ValueError(), refused):
        complain(error)
    assert complain.reason == str(refused)
    complain.clear()
    assert not complain.reason
    complain(refused)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["reason"] for line in lines] == [str(refused), "ValueError", str(refused), str(refused)]
    assert {(line["event"], line["node"]) for line in lines} == {("disks_not_kept", "n1")}
    assert ["ValueError" in line.get("exception", "") for line in lines] == [False, True, False, False]


def test_what_comes_in_every_pass_is_logged_once_and_a_defect_each_time() -> None:
    out = io.StringIO()
    configure(stream=out)
    complain = RepeatedErrors(logger(), "device_handover_impaired")
    one, other = (Unavailable(what, found="no answer", expected="one") for what in ("CDI", "kubelet"))
    for error in (one, other, one, ValueError(), ValueError(), TimeoutError(), TimeoutError()):
        complain(error)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["level"], line["reason"]) for line in lines] == [
        ("warning", str(one)),
        ("warning", str(other)),
        ("error", "ValueError"),
        ("error", "ValueError"),
        ("warning", "TimeoutError"),
    ]
    assert {line["event"] for line in lines} == {"device_handover_impaired"}
