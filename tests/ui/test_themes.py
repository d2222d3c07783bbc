"""Themes: legible, complete, and honest about a broken file."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from prompt_toolkit.styles import Attrs
from prompt_toolkit.styles import Style as PromptStyle
from pygments import highlight
from pygments.formatters import NullFormatter
from pygments.lexers import PythonLexer
from pygments.token import Token
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.strip import Strip

from exlchat.config.themes import ANSI_COLORS, DEFAULT_THEME, MOST_BYTES, USES, ThemeError, ThemeFile, load_themes
from exlchat.ui.render.markdown.highlight import highlight_line
from exlchat.ui.render.themes import prompt_toolkit_style, pygments_style, textual_theme
from exlchat.ui.tui.widgets.transcript_items import Role
from exlchat.ui.tui.widgets.transcript_paint import framed

SHIPPED = Path(__file__).parents[2] / "themes"


def luminance(color: str) -> float:
    """Relative luminance, WCAG 2.2."""
    channels = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


RGB = ("exlchat-dark", "exlchat-light", "candle", "contrast-dark", "contrast-light", "moss", "rime", "tide")
TERMINAL = ("ansi", "mono")
ROLES = ("user", "assistant", "system", "notice")


def shipped(name: str) -> ThemeFile:
    return load_themes(SHIPPED, Path("/nowhere"))[0][name]


@pytest.fixture(params=RGB)
def theme(request: pytest.FixtureRequest) -> ThemeFile:
    return shipped(request.param)


@pytest.fixture(params=TERMINAL)
def terminal_theme(request: pytest.FixtureRequest) -> ThemeFile:
    return shipped(request.param)


def test_these_come_along_and_the_default_is_first() -> None:
    themes, errors = load_themes(SHIPPED, Path("/nowhere"))
    assert errors == []
    assert set(themes) == {*RGB, *TERMINAL}
    assert next(iter(themes)) == DEFAULT_THEME
    assert all(theme.description for theme in themes.values())
    assert len({tuple(theme.colors.values()) for theme in themes.values()}) == len(themes)


def test_black_on_white_has_the_known_contrast() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


SURFACES = ("background", "surface", "panel", "selection")


def test_every_text_colour_is_legible_on_every_surface_it_is_used_on(theme: ThemeFile) -> None:
    least = 7.0 if theme.name.startswith("contrast-") else 4.5
    texts = {key: color for key, color in theme.colors.items() if key in ("foreground", "quiet") or "." in key}
    del texts["text.code-background"]
    weak = {
        f"{key} on {surface}": round(contrast(color, theme.colors[surface]), 2)
        for key, color in texts.items()
        for surface in (*SURFACES, "text.code-background")
        if contrast(color, theme.colors[surface]) < (7.0 if key == "foreground" else least)
    }
    assert weak == {}


def test_frames_are_seen(theme: ThemeFile) -> None:
    """Composer, tables, rules and scroll bars stand on the background; dialogs on the surface, in `focus`."""
    least = 7.0 if theme.name.startswith("contrast-") else 3.0
    variables = textual_theme(theme).variables
    assert contrast(theme.colors["line"], theme.colors["background"]) >= least
    for surface in ("background", "surface"):
        assert contrast(variables["focus"], theme.colors[surface]) >= least


def test_the_cursor_is_seen(theme: ThemeFile) -> None:
    variables = textual_theme(theme).variables
    assert contrast(variables["input-cursor-foreground"], variables["input-cursor-background"]) >= 4.5
    assert contrast(variables["input-cursor-background"], theme.colors["background"]) >= 3


def test_brightness_is_as_declared(theme: ThemeFile) -> None:
    assert (luminance(theme.colors["background"]) < 0.5) is theme.dark


def lab(color: str, seen_by: tuple[tuple[float, ...], ...] | None = None) -> tuple[float, float, float]:
    """CIE L*a*b* of D65, of what an eye sees that mixes linear red, green and blue by the matrix `seen_by`."""
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    if seen_by is not None:
        linear = [min(1.0, max(0.0, sum(f * c for f, c in zip(row, linear, strict=True)))) for row in seen_by]
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    x, y, z = (sum(f * c for f, c in zip(row, linear, strict=True)) / of for row, of in zip(to_xyz, white, strict=True))
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


# Machado, Oliveira and Fernandes 2009, severity 1.
DEUTERANOPIA = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
PROTANOPIA = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))


def test_the_measure_of_colours_knows_red_from_green_and_the_colour_blind_do_not() -> None:
    assert lab("#ff0000") == pytest.approx((53.2, 80.1, 67.2), abs=0.2)
    assert lab("#ffffff", DEUTERANOPIA) == pytest.approx((100, 0, 0), abs=0.2)
    red, green = "#b04030", "#507a20"
    assert math.dist(lab(red), lab(green)) > 3 * math.dist(lab(red, DEUTERANOPIA), lab(green, DEUTERANOPIA))


@pytest.mark.parametrize("eye", [None, DEUTERANOPIA, PROTANOPIA])
def test_the_person_and_the_model_differ_in_colour_also_for_the_colour_blind(
    theme: ThemeFile, eye: tuple[tuple[float, ...], ...] | None
) -> None:
    """ΔE of 1976; 2.3 is just to be noticed."""
    user, assistant = (lab(theme.colors[f"roles.{role}"], eye) for role in ("user", "assistant"))
    assert math.dist(user, assistant) >= 12


def test_every_role_has_a_mark_of_its_own_for_those_who_see_no_colour() -> None:
    plain = Style.null()
    marks = {role: framed(Strip([Segment("x")]), role, plain, plain, 0, width=4).text for role in get_args(Role)}
    assert len(set(marks.values())) == len(marks)
    assert set(ROLES) < set(marks)


def test_kinds_of_code_differ(theme: ThemeFile) -> None:
    """Those that stand side by side in most lines: by colour, or as comments do, by being slanted."""
    kinds = ("keyword", "type", "function", "name", "string", "number")
    for one, other in itertools.combinations(kinds, 2):
        distance = math.dist(lab(theme.colors[f"syntax.{one}"]), lab(theme.colors[f"syntax.{other}"]))
        assert distance >= 12, f"{one} and {other}"
    style = pygments_style(theme)
    assert style.style_for_token(Token.Comment)["italic"]


def test_what_the_terminal_decides_is_left_to_it(terminal_theme: ThemeFile) -> None:
    assert terminal_theme.ansi
    assert set(terminal_theme.colors.values()) <= set(ANSI_COLORS)
    for surface in (*SURFACES, "text.code-background", "foreground", "quiet"):
        assert terminal_theme.colors[surface] == "ansi_default", surface
    assert terminal_theme.styles["selection"] == "reverse"
    texts = {color for key, color in terminal_theme.colors.items() if "." in key and key != "interface.warning"}
    # Black and white vanish on one of the two, yellow and bright colours nearly do on white.
    assert texts <= {"ansi_default", *(f"ansi_{hue}" for hue in ("red", "green", "blue", "magenta", "cyan"))}


def test_mono_has_no_colour_anywhere() -> None:
    mono = shipped("mono")
    assert set(mono.colors.values()) == {"ansi_default"}
    style = pygments_style(mono)
    assert not any(style.style_for_token(kind)["color"] for kind in style.styles)
    colors = {attrs.color for attrs in map(attributes(mono), prompt_toolkit_style(mono))}
    assert colors <= {"", "default"}


def attributes(theme: ThemeFile) -> Callable[[str], Attrs]:
    style = PromptStyle.from_dict(prompt_toolkit_style(theme))
    return lambda name: style.get_attrs_for_style_str(f"class:{name}" if name else "")


def test_the_terminals_colours_reach_code_and_prompt_by_their_names() -> None:
    ansi = shipped("ansi")
    keyword = pygments_style(ansi).style_for_token(Token.Keyword)
    assert keyword["ansicolor"] == "ansimagenta"
    assert attributes(ansi)("assistant").color == "ansicyan"
    pieces = highlight_line("def f(): return 12", "python", pygments_style(ansi))
    shades = {text: style.color.name for text, style in pieces if style.color is not None}
    assert shades["def"] == "magenta"
    assert shades["12"] == "red"


def test_textual_theme_carries_our_own_variables(theme: ThemeFile) -> None:
    textual = textual_theme(theme)
    assert textual.name == theme.name
    assert textual.dark is theme.dark
    assert textual.background == theme.colors["background"]
    for section, keys in USES.items():
        if section != "interface":
            for key in keys:
                assert textual.variables[f"{section}-{key}"] == theme.colors[f"{section}.{key}"]
    for value in (textual.primary, textual.variables["roles-user"]):
        assert Color.parse(value)


def test_prompt_toolkit_accepts_the_style(theme: ThemeFile) -> None:
    style = PromptStyle.from_dict(prompt_toolkit_style(theme))
    attrs = style.get_attrs_for_style_str("class:prompt")
    assert attrs.color == theme.colors["roles.user"].removeprefix("#")
    assert attrs.bold
    assert attributes(theme)("thinking").italic


def test_pygments_uses_the_theme_for_code(theme: ThemeFile) -> None:
    style = pygments_style(theme)
    keyword, comment = (style.style_for_token(token) for token in (Token.Keyword, Token.Comment))
    assert keyword["color"] == theme.colors["syntax.keyword"].removeprefix("#")
    assert comment["italic"]
    assert highlight("x = 1\n", PythonLexer(), NullFormatter(style=style)) == "x = 1\n"


def test_a_user_theme_changes_one_palette_entry_and_inherits_the_rest(tmp_path: Path) -> None:
    (tmp_path / "dusk.toml").write_text('dark = true\n[colors]\namber = "#ffcc00"\n')
    themes, errors = load_themes(SHIPPED, tmp_path)
    assert errors == []
    assert themes["dusk"].colors["roles.user"] == "#ffcc00"
    assert themes["dusk"].colors["roles.assistant"] == themes[DEFAULT_THEME].colors["roles.assistant"]


def test_a_user_theme_may_replace_a_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('name = "exlchat-dark"\n[colors]\nbackground = "#000000"\n')
    assert load_themes(SHIPPED, tmp_path)[0]["exlchat-dark"].colors["background"] == "#000000"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[colors\n", "not valid TOML"),
        ('[colors]\nbackground = "blue"\n', "colors.background"),
        ('[colors]\nbackground = "#12345"\n', "colors.background"),
        (
            '[roles]\nuser = "ambre"\n',
            "roles.user: 'ambre' is neither \"#rrggbb\" nor a name in [colors]; did you mean amber?",
        ),
        ('[roles]\nusr = "amber"\n', "roles.usr: unknown key; did you mean user?"),
        ("[roles]\nuser = 3\n", "roles.user"),
        ("dark = 1\n", "dark: 1 must be true or false"),
        ('name = "../x"\n', "name: '../x'"),
        ("roles = 3\n", "roles: must be a table"),
        ("colour = 3\n", "colour: unknown key; did you mean colors?"),
        ('[colors]\n# one\nline = "ansi_grey"\n', "line 3: colors.line: 'ansi_grey' is not a colour like"),
        ('[colors]\na = "#000000"\n[roles]\n\nuser="b"\n', "line 5: roles.user: 'b' is neither"),
        ('[text]\nlink = "sky"\n"qote" = "sky"\n', "line 3: text.qote: unknown key; did you mean quote?"),
        ("\ndark = 1\n", "line 2: dark: 1 must be"),
        ("\n\n[[roles]]\n", "roles: must be a table"),
        ('[styles]\nquote = "blinking"\n', "line 2: styles.quote: 'blinking' must be none, or some of bold, dim"),
        ('[styles]\nkeyword = "dim"\n', "styles.keyword: 'dim' must be none, or some of bold, italic, underline"),
        ('[styles]\nlink = "none bold"\n', "styles.link: "),
        ("[styles]\nlink = 1\n", "styles.link: 1 must be text in quotes"),
        ('description = "one\\ntwo"\n', "description: must be one line"),
        ('description = "\\u009b2J"\n', "description: must be one line"),
        (f'description = "{"x" * 121}"\n', "description: must be one line of text in quotes, at most 120 characters"),
        (f"# {'x' * MOST_BYTES}\n", "which no theme is"),
        ("x = " + "[" * 3000, "not valid TOML"),
    ],
)
def test_a_broken_file_gives_one_line_with_file_and_key_and_keeps_the_others(
    tmp_path: Path, text: str, expected: str
) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text(text)
    (tmp_path / "good.toml").write_text("dark = false\n")
    themes, errors = load_themes(SHIPPED, tmp_path)
    assert set(themes) == {*RGB, *TERMINAL, "good"}
    assert len(errors) == 1
    assert errors[0].startswith(f"{broken}: ")
    assert expected in errors[0]
    assert "\n" not in errors[0]
    assert errors[0].isprintable()
    assert len(errors[0]) < len(str(broken)) + 160


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b'name = "caf\xe9"\n')
    errors = load_themes(SHIPPED, tmp_path)[1]
    assert len(errors) == 1
    assert "byte 11" in errors[0]


def test_a_missing_shipped_theme_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ThemeError, match="install exlchat again"):
        load_themes(tmp_path, tmp_path)


def test_the_package_ships_the_themes() -> None:
    import exlchat

    assert (Path(exlchat.__file__).parent / "themes" / "exlchat-dark.toml").is_file()


def test_what_is_no_file_is_named_and_nothing_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "lost.toml").symlink_to(tmp_path / "nothing")
    errors = load_themes(SHIPPED, tmp_path)[1]
    assert [error.split(": ", 1)[1] for error in errors] == [
        "not a plain file; give one",
        "there is no such file",
        "not a plain file; give one",
    ]


def test_styles_and_description_are_read_and_left_out_styles_are_those_of_the_shipped_theme(tmp_path: Path) -> None:
    (tmp_path / "dusk.toml").write_text('description = "Late"\n[styles]\nheading = "bold underline"\n')
    dusk = load_themes(SHIPPED, tmp_path)[0]["dusk"]
    assert dusk.description == "Late"
    assert dusk.styles["heading"] == "bold underline"
    assert dusk.styles["link"] == shipped(DEFAULT_THEME).styles["link"] == "underline"
    assert attributes(dusk)("heading").underline


@pytest.mark.parametrize(("dark", "base"), [("true", "exlchat-dark"), ("false", "exlchat-light")])
def test_what_is_left_out_is_that_of_the_shipped_theme_of_the_same_brightness(
    tmp_path: Path, dark: str, base: str
) -> None:
    (tmp_path / "bare.toml").write_text(f"dark = {dark}\n")
    assert load_themes(SHIPPED, tmp_path)[0]["bare"].colors == shipped(base).colors


def test_one_colour_of_the_terminal_is_enough_to_leave_them_all_to_it(tmp_path: Path) -> None:
    (tmp_path / "half.toml").write_text('[colors]\nbackground = "ansi_default"\n')
    half = load_themes(SHIPPED, tmp_path)[0]["half"]
    assert textual_theme(half).ansi
    assert textual_theme(half).to_color_system().generate()["roles-user"] == half.colors["roles.user"]
