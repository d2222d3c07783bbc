"""Themes: legible, complete, and honest about a broken file."""

from __future__ import annotations

from pathlib import Path

import pytest
from prompt_toolkit.styles import Style as PromptStyle
from pygments import highlight
from pygments.formatters import NullFormatter
from pygments.lexers import PythonLexer
from pygments.token import Token
from textual.color import Color

from exlchat.ui.theme_files import ThemeError, load_themes
from exlchat.ui.themes import DEFAULT_THEME, USES, ThemeFile

SHIPPED = Path(__file__).parents[2] / "themes"


def luminance(color: str) -> float:
    """Relative luminance, WCAG 2.2."""
    channels = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.fixture(params=["exlchat-dark", "exlchat-light"])
def theme(request: pytest.FixtureRequest, tmp_path: Path) -> ThemeFile:
    return load_themes(SHIPPED, tmp_path)[0][request.param]


def test_black_on_white_has_the_known_contrast() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_every_text_colour_is_legible_on_every_surface_it_is_used_on(theme: ThemeFile) -> None:
    texts = {key: color for key, color in theme.colors.items() if key in ("foreground", "quiet") or "." in key}
    del texts["text.code-background"]
    surfaces = ("background", "surface", "panel", "selection")
    weak = {
        f"{key} on {surface}": round(contrast(color, theme.colors[surface]), 2)
        for key, color in texts.items()
        for surface in surfaces
        if contrast(color, theme.colors[surface]) < 4.5
    }
    assert weak == {}


def test_selected_text_stays_legible(theme: ThemeFile) -> None:
    assert contrast(theme.colors["foreground"], theme.colors["selection"]) >= 4.5


def test_brightness_is_as_declared(theme: ThemeFile) -> None:
    assert (luminance(theme.colors["background"]) < 0.5) is theme.dark


def test_textual_theme_carries_our_own_variables(theme: ThemeFile) -> None:
    textual = theme.textual_theme()
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
    style = PromptStyle.from_dict(theme.prompt_toolkit_style())
    attrs = style.get_attrs_for_style_str("class:prompt")
    assert attrs.color == theme.colors["roles.user"].removeprefix("#")
    assert attrs.bold


def test_pygments_uses_the_theme_for_code(theme: ThemeFile) -> None:
    style = theme.pygments_style()
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
    ],
)
def test_a_broken_file_gives_one_line_with_file_and_key_and_keeps_the_others(
    tmp_path: Path, text: str, expected: str
) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text(text)
    (tmp_path / "good.toml").write_text("dark = false\n")
    themes, errors = load_themes(SHIPPED, tmp_path)
    assert set(themes) == {"exlchat-dark", "exlchat-light", "good"}
    assert len(errors) == 1
    assert errors[0].startswith(f"{broken}: ")
    assert expected in errors[0]
    assert "\n" not in errors[0]


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
