"""What holds of all that was said about a setting, and which layer it comes from."""

from __future__ import annotations

from itertools import combinations

import pytest

from exlchat.config.layers import PLACES, Layer, Place, resolve, typed


@pytest.mark.parametrize(("above", "below"), combinations(PLACES[:-1], 2))
def test_of_two_layers_the_first_place_wins_in_whatever_order_they_are_given(above: Place, below: Place) -> None:
    first, second = Layer(above, {"top_k": 1, "template": None}), Layer(below, {"top_k": 2, "template": "plain"})
    for held in (resolve(first, second), resolve(second, first)):
        assert (held.value("top_k"), held.source("top_k")) == (1, above)
        # That there is none is said as well.
        assert (held.value("template"), held.source("template")) == (None, above)
        assert held.beaten("top_k") == (None if above == "file" else first)
        assert (held.value("top_p"), held.source("top_p"), held.beaten("top_p")) == (1.0, "default", None)


def test_a_layer_takes_the_place_of_the_one_that_was_there() -> None:
    held = resolve(typed(top_k=1), Layer("file", {"top_k": 3}))
    assert held.replace(Layer("typed", {"top_k": 2})).value("top_k") == 2
    assert held.replace(Layer("typed")).source("top_k") == "file"
    assert held.replace(Layer("preset", {"top_k": 2}, "preset x")) == resolve(
        *held.layers[:-1], Layer("preset", {"top_k": 2}, "preset x")
    )


def test_a_size_of_the_cache_stands_over_either_of_them() -> None:
    held = resolve(typed(cache_gb=2.0), Layer("file", {"cache_tokens": 4096}))
    assert (held.value("cache_gb"), held.value("cache_tokens")) == (2.0, None)
    assert (held.source("cache_tokens"), held.beaten("cache_tokens")) == ("default", typed(cache_gb=2.0))


def test_a_table_of_controls_replaces_one_below_and_a_start_changes_single_rows() -> None:
    file = Layer("file", {"sampling": (("skew", 0.1), ("top_a", 0.0))})
    environment = Layer("environment", {"sampling": (("top_a", 0.2),)})
    assert resolve(file).value("sampling") == (("skew", 0.1), ("top_a", 0.0))
    held = resolve(file, environment)
    assert (held.value("sampling"), held.source("sampling")) == ((("top_a", 0.2),), "environment")
    assert (held.value("skew"), held.source("skew"), held.source("top_a")) == (0.0, "default", "environment")
    held = resolve(file, typed(xtc_probability=0.5))
    assert held.value("sampling") == (("skew", 0.1), ("xtc_probability", 0.5))
    assert (held.source("skew"), held.source("xtc_probability"), held.source("sampling")) == ("file", "typed", "typed")
