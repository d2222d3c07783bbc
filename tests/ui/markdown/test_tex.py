"""Formulas: those that a line can hold are shown as Unicode, all others and all money as they were typed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.app.markdown.tex import readable
from tests.patience import within
from tests.ui.markdown.test_streaming import at_once, texts
from tests.ui.markdown.texts import TEX_FRAGMENTS


@pytest.mark.parametrize(
    ("formula", "shown"),
    [
        (r"\alpha + \beta^2", "α + β²"),
        (r"x^{n+1}_i", "xᵢⁿ⁺¹"),
        (r"x^{q_i}", "x^(qᵢ)"),
        (r"\theta_{\text{old}} x", "θ_old x"),
        (r"x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}", "x = (−b ± √(b² − 4ac))/(2a)"),
        (r"\frac{n(n+1)}{2}", "n(n + 1)/2"),
        (r"\frac{1}{2}(x+1)", "(1/2)(x + 1)"),
        (r"\left(\frac{1}{2}\right)^n", "(1/2)ⁿ"),
        (r"\frac{a}{\frac{b}{c}}", "a/(b/c)"),
        (r"\frac{dy}{dx} = \frac{\partial f}{\partial x}", "dy/dx = ∂f/∂x"),
        (r"\sqrt{2}x + \sqrt[3]{x+1}", "√2 x + ∛(x + 1)"),
        (r"\sqrt{x}^2 + \sqrt{x}(y)", "(√x)² + √x (y)"),
        (r"{x^2}^3 + {a+b}^2 + {x_i}^2", "(x²)³ + (a + b)² + xᵢ²"),
        (r"f : \mathbb{R}^n \to \mathbb{R}", "f : ℝⁿ → ℝ"),
        (r"\hat{y} + \vec{v} - \overline{AB}", "y\u0302 + v\u20d7 − A\u0305B\u0305"),
        (r"\text{softmax}\left(\frac{QK^T}{\sqrt{d_k}}\right)V", "softmax(QKᵀ/√dₖ)V"),
        (r"\mathcal{L} = -\sum_i y_i \log \hat{y}_i", "ℒ = −∑ᵢ yᵢ log y\u0302ᵢ"),
        (r"\lim_{x \to 0} \frac{\sin x}{x} = 1", "lim_(x→0) ((sin x)/x) = 1"),
        (r"\int_0^\infty e^{-x^2}\,dx", "∫₀^∞ e^(−x²) dx"),
        (r"P(A \mid B) = \frac{P(B \mid A)P(A)}{P(B)}", "P(A ∣ B) = P(B ∣ A)P(A)/P(B)"),
        (r"f'(x), 90^\circ, 5\%, 1,000", "f′(x), 90°, 5%, 1,000"),
        (r"\text{if } a \ne b, \quad a \le b", "if a ≠ b,  a ≤ b"),
        (r"\boxed{42}", "[42]"),
    ],
)
def test_a_simple_formula_is_a_line_of_unicode(formula: str, shown: str) -> None:
    for opening, closing in (("$", "$"), ("$$", "$$"), (r"\(", r"\)"), (r"\[", r"\]"), ("$$\n", "\n$$")):
        assert texts(at_once(f"{opening}{formula}{closing}", 200)) == [shown]


@pytest.mark.parametrize(
    "formula",
    [
        r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}",
        r"x + \unknown{y}",
        r"\color{red}{x}",
        r"\underbrace{a + b}_{c}",
        r"\overset{!}{=}",
        r"\binom{n}{k}",
        r"a \\ b",
        r"\frac{a}{b",
        r"a}b",
        r"\frac{a}",
        r"x^",
        r"x^a^b",
        r"\left( x",
        r"\hat{abc}",
        r"\hspace{1em} x",
        r"this is no formula",
        "x % y",
        "x # y",
        r"\text{&#27;[31m}",
        r"\text{a \unknown b}",
    ],
)
def test_any_other_stays_whole_without_emphasis(formula: str) -> None:
    for opening, closing in (("$$", "$$"), (r"\(", r"\)"), (r"\[", r"\]")):
        text = f"{opening}*a*{formula}_b_{closing}"
        assert texts(at_once(text, 200)) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 and $10.",
        "costs $5-$10",
        "$5/month or $50/year",
        "US$5 and CA$6",
        "I have $5 (or 10$)",
        "$20 to 30$ each",
        "PATH=$HOME:$PATH",
        "$foo->bar($baz)",
        "echo $a$b",
        "between $ 5 and 6 $ and $$",
        "$100M-$200M",
        "a $ and a \\( that never end",
    ],
)
def test_money_and_variables_stay_text(text: str) -> None:
    assert texts(at_once(text, 200)) == [text]


def test_code_is_never_read_as_a_formula() -> None:
    assert texts(at_once("`$x^2$` and `\\(a\\)`, $a `b$` c", 200)) == ["$x^2$ and \\(a\\), $a b$ c"]
    fence = texts(at_once("```\n$x^2$\n\\[\ny^2\n\\]\n```", 40))
    assert [line.rstrip() for line in fence] == ["$x^2$", "\\[", "y^2", "\\]"]


def test_formulas_within_a_text() -> None:
    shown = texts(at_once("The $n$th **term $a_n$** | of $\\mathbb{N}$, \\(k\\)-means: $x$.", 200))
    assert shown == ["The nth term aₙ | of ℕ, k-means: x."]


@pytest.mark.parametrize("marks", [("$$", "$$"), (r"\[", r"\]")])
def test_lines_of_a_formula_begin_no_lists_or_headings(marks: tuple[str, str]) -> None:
    opening, closing = marks
    assert texts(at_once(f"So:\n{opening}\na\n+ b\n- c\n{closing}\n- item", 80)) == ["So:", "a + b − c", "• item"]
    assert texts(at_once(f"- so\n  {opening}\n  a\n  + b\n  {closing}\n- item", 80)) == ["• so", "  a + b", "• item"]
    unknown = f"{opening}\n\\unknown\n# b\n{closing}"
    assert texts(at_once(unknown, 80)) == unknown.split("\n")


def test_a_formula_that_never_ends_takes_nothing_beyond_a_blank_line() -> None:
    assert texts(at_once("$$\na\n\n- item", 80)) == ["$$", "a", "", "• item"]
    assert texts(at_once("so $$\na\n$$\n- item", 80)) == ["so a", "• item"]


@pytest.mark.parametrize(
    "formula",
    [
        "{" * 400 + "}" * 400,
        r"\frac{1}{" * 100 + "x" + "}" * 100,
        r"\sqrt" * 190 + "x",
        r"\left(" * 160,
        "x^2+" * 25_000,
        r"\unknown " * 11_000,
        "$" * 2_000,
        r"\(" * 2_000,
        "x^" * 400,
        "\x00\x1b[31m\u202e",
    ],
    ids=["braces", "fractions", "roots", "left", "100 kB", "unknown", "dollars", "opened", "powers", "control"],
)
def test_hostile_formulas_cost_little_and_stay_printable(formula: str) -> None:
    for text in (f"${formula}$", f"$${formula}$$", rf"\({formula}\)", f"\\[\n{formula}\n\\]"):
        with within(2):
            lines = texts(at_once(text, 80))
        assert not set("".join(lines)) & set("\x00\x1b\u202e")


@given(st.lists(st.sampled_from(TEX_FRAGMENTS), max_size=30).map("".join) | st.text())
def test_no_formula_is_an_error(formula: str) -> None:
    line = readable(formula)
    assert line is None or (line and "\n" not in line and "\x1b" not in line)
