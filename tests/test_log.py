"""Lines of the log, as programs and people read them."""

import io
import json

from tessera.log import configure, logger


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
