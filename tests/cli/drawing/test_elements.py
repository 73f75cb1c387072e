"""Elements as text: the same bytes on every machine, whatever names are."""

from tessera.cli.drawing.elements import element, number, text, title


def test_coordinates_have_two_decimals_at_most() -> None:
    assert [number(value) for value in (-0.001, 1.5, 10.0, 1 / 3)] == ["0", "1.5", "10", "0.33"]


def test_names_are_no_elements_and_no_attributes() -> None:
    assert text("<b>&", 1, 2, 3) == '<text x="1" y="2" font-size="3">&lt;b&gt;&amp;</text>'
    assert element("g", class_='a"b', font_size=1.0) == '<g class="a&quot;b" font-size="1"/>'
    assert title("a\nb<\x00") == "<title>a\nb&lt;\ufffd</title>"
    assert text("", 1, 2, 3) == ""
