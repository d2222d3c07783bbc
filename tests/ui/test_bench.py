"""`exlchat bench`: its options, its table, its files, and what becomes of an interrupted run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from exlchat.cli import main as cli
from exlchat.cli.bench.command import BenchOptions, RandomModel, bench_options, run_bench
from exlchat.cli.bench.command import build_parser as bench_parser
from exlchat.cli.bench.plot import draw, draw_batches
from exlchat.cli.bench.table import render
from exlchat.engine import ModelError
from exlchat.engine.bench import measure
from exlchat.engine.bench.figures import (
    BenchMachine,
    BenchSettings,
    Figure,
    Memory,
    Model,
    Report,
    Result,
    RowRoom,
    Skipped,
)
from exlchat.engine.bench.mixes import Gptq, MeanBits
from exlchat.llm.info import Footprint

SETTING = BenchMachine(
    "cuda:0", "NVIDIA H200", 8, "0.1.0", "2.11.0", "13.0", "3.12.3", "Linux 6", (4.2e12, 4.3e12, 4.4e12)
)
RESULTS: list[Result] = [
    SETTING,
    Model("llama-8b-random", "EXL2 4.1 bpw", 8_030_000_000, "float16", 16512, made=True),
    Figure("load", "fp16", 0, (3.2,)),
    Figure("prefill", "fp16", 2048, (41_000.0, 42_000.0, 42_500.0)),
    Figure("decode", "fp16", 128, (800.0, 810.0, 820.0), 4e9, "run-ahead"),
    Figure("sampled", "fp16", 128, (790.0, 800.0, 802.0), 4e9, "run-ahead"),
    Figure("decode", "fp16", 16384, (550.0, 555.0, 560.0), 6.1e9, "run-ahead"),
    Figure("turn", "fp16", 8192, (0.0101, 0.0102, 0.0104)),
    Memory(
        "fp16", Footprint(5_000_000_000, 4_000_000_000, 2_000_000_000, 131072), 5_600_000_000, 7_400_000_000, 8 << 30
    ),
    Figure("decode", "q4", 128, (815.0,), 3.95e9),
    Skipped("40,000 and 128 new tokens: the context is 16,512"),
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def report() -> Report:
    filled = Report(BenchSettings())
    for result in RESULTS:
        filled.add(result)
    return filled


def options(*arguments: str) -> BenchOptions:
    parser = bench_parser()
    return bench_options(parser, parser.parse_args(arguments))


def scripted(monkeypatch: pytest.MonkeyPatch, results: list[Result], end: BaseException | None = None) -> None:
    """In the measurement's place: these results, and then perhaps an end before the time."""

    def benchmark(_open: object, _settings: object, _say: Callable[[str], None], **_: object) -> Iterator[Result]:
        yield from results
        if end is not None:
            raise end

    monkeypatch.setattr(measure, "benchmark", benchmark)


def test_without_options_everything_of_the_guide_is_measured() -> None:
    chosen = options()
    assert isinstance(chosen.model, Path)
    assert chosen.model.name == "guide"
    assert chosen.settings == BenchSettings()
    assert chosen.settings.contexts == (128, 2048, 16384)


def test_a_random_model() -> None:
    model = options("--shape", "llama-70b-10layers").model
    assert isinstance(model, RandomModel)
    assert (model.shape.layers, model.mix, model.head_bits, model.folder) == (10, MeanBits(4.1), 6, None)
    model = options("--shape", "llama-8b", "--mix", "gptq-g128-actorder", "--write", "there").model
    assert isinstance(model, RandomModel)
    assert (model.mix, model.folder) == (Gptq(128, act_order=True), Path("there"))


def test_measurement_options() -> None:
    settings = options("--contexts", "2048,128", "--kv-cache", "fp16,fp32", "--runs", "9", "--no-ext").settings
    assert (settings.contexts, settings.kv_caches, settings.runs) == ((128, 2048), ("fp16", "fp32"), 9)
    assert not settings.extension
    assert settings.quantize_head is None
    assert options("--quantize-head", "8").settings.quantize_head == 8
    quick = options("--quick").settings
    assert quick.kv_caches == ("auto",)
    assert max(quick.contexts) == 2048
    assert options("--quick", "--runs", "7").settings.runs == 7


def test_side_by_side_many_rows_of_one_context_are_measured() -> None:
    settings = options("--batch").settings
    assert settings.rows == (1, 2, 4, 8, 16, 32, 64, 128)
    assert (settings.contexts, settings.kv_caches) == ((1024,), ("auto",))
    assert options("--batch", "--rows", "8,2").settings.rows == (2, 8)
    assert options("--quick", "--batch").settings.rows == (1, 2, 4, 8)
    assert options().settings.rows == ()


def test_the_setting_that_turns_the_kernels_off_holds_here_too(home: Path) -> None:
    (home / "config").mkdir(parents=True)
    (home / "config" / "settings.toml").write_text("extension = false\n")
    assert not options().settings.extension
    assert options("--ext").settings.extension


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["guide", "--shape", "tiny"], "give a MODEL or a --shape, not both"),
        (["--mix", "4bpw"], "--mix is for a random model; give its --shape too"),
        (["guide", "--head-bits", "6"], "--head-bits is for a random model"),
        (["--shape", "llama-9b"], "'llama-9b' is no shape; there are"),
        (["--shape", "tiny", "--mix", "lots"], "'lots' is no mix"),
        (["--shape", "tiny", "--mix", "gptq-g128", "--head-bits", "6"], "the head of a GPTQ model is float16"),
        (["--shape", "tiny", "--head-bits", "7"], "invalid choice: 7"),
        (["--contexts", "128,none"], "'none' is not a whole number"),
        (["--quantize-head", "5"], "invalid choice: 5"),
        (["--rows", "4"], "--rows is for --batch; give that too"),
        (["--runs", "0"], "'0' is not a whole number, 1 or more"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", *arguments])
    assert caught.value.code == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert said in line


def test_the_table_fits_eighty_columns_and_says_everything(report: Report) -> None:
    text = render(report)
    assert max(map(len, text.splitlines())) <= 80
    for part in (
        "llama-8b-random: EXL2 4.1 bpw, 8.03 B weights, float16, context 16,512",
        "Random weights",
        "cuda:0: NVIDIA H200",
        "torch 2.11.0, CUDA 13.0, Python 3.12.3",
        "4,300 GB/s",
        "Not measured: 40,000 and 128 new tokens: the context is 16,512.",
        "temperature 0.8, top-k 40, top-p 0.95, min-p 0.05",
    ):
        assert part in text


def test_the_figures_in_the_table(report: Report) -> None:
    rows = [" ".join(line.split()) for line in render(report).splitlines()]
    assert "load, fp16 cache 3.20 s one run" in rows
    assert "prefill, fp16 cache 2,048 42,000 tok/s ± 1.8%" in rows
    # 810 tok/s of 4 GB are 3,240 GB/s, of 4,300.
    assert "decode, fp16 cache 128 810 tok/s ± 1.2% 3,240.0 75%" in rows
    assert "with samplers * 128 800 tok/s ± 0.8% 98.8% *" in rows
    assert "turn of 50, fp16 cache 8,192 10.2 ms ± 1.5%" in rows
    assert "decode, q4 cache 128 815 tok/s one run 3,219.2 75%" in rows
    assert "fp16 cache 5.00 GB 2.00 GB 128.0 KiB 5.60 GB 7.40 GB" in rows
    assert "fp16 cache: 0.40 GB beyond weights and cache; 8.59 GB of the card taken in all." in render(report)


def test_a_report_without_a_setting_can_be_shown() -> None:
    report = Report(BenchSettings())
    report.add(Figure("decode", "fp16", 128, (9.5,), 4e9))
    assert "9.5 tok/s" in render(report)


def test_a_model_s_name_cannot_steer_the_terminal(report: Report) -> None:
    report.add(Model("\x1b[2Jevil\u202e", "EXL2", 1, "float16", 1, made=False))
    assert "\x1b" not in render(report)
    assert "\u202e" not in render(report)


def test_the_plot_shows_each_rate_and_asks_no_server(report: Report) -> None:
    svg = draw(report)
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg")
    assert "<script" not in svg
    texts = {text.text for text in root.iter() if text.text}
    # Measured, and 4.3 TB/s over the bytes of a token.
    for value in ("810", "555", "1,075", "815"):
        assert value in texts
    assert "fp16 cache at copy speed" in texts
    assert "llama-8b-random, EXL2 4.1 bpw on NVIDIA H200" in texts


@pytest.fixture
def batches() -> Report:
    filled = Report(BenchSettings(rows=(1, 4, 8, 16)))
    for result in (
        *RESULTS[:2],
        RowRoom("fp16", 1024, 57),
        Figure("batch", "fp16", 1024, (600.0, 610.0), 4e9, rows=1, slowest=605.0),
        Figure("batch", "fp16", 1024, (2000.0, 2020.0), 1.1e9, rows=4, slowest=500.0),
        Figure("batch", "fp16", 1024, (2100.0, 2104.0), 0.6e9, rows=8, slowest=40.5),
        Skipped("64, 128 rows of 1,152 tokens, fp16 cache: 57 fit"),
    ):
        filled.add(result)
    return filled


def test_the_table_of_rows_says_how_many_to_take(batches: Report) -> None:
    text = render(batches)
    assert all(len(line) <= 80 for line in text.splitlines())
    # 2,010 x 1.1 GB a token are 2.2 of 4.3 TB/s.
    assert "fp16, 1,024                4     2,010 tok/s     500 tok/s    ± 0.5%         51%" in text
    assert "40.5 tok/s" in text
    # Eight rows give next to nothing more than four.
    assert "57 rows of 1,024 tokens and an answer fit.\nTake 4: 2,010 tok/s in all, 500 tok/s each." in text
    assert "Not measured: 64, 128 rows" in text


def test_the_plot_of_rows_has_a_line_for_each_cache_and_one_of_the_memory_s_speed(batches: Report) -> None:
    svg = draw_batches(batches)
    texts = {text.text for text in ElementTree.fromstring(svg).iter() if text.text}
    assert {"fp16 cache, 1,024 tokens a row", "fp16 cache, 1,024 tokens a row, at copy speed"} <= texts
    assert {"605", "2,010", "2,102", "1,075"} <= texts
    assert "<script" not in svg


def test_results_go_to_stdout_and_to_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(monkeypatch, RESULTS)
    files = (tmp_path / "out.json", tmp_path / "out.svg")
    assert run_bench(BenchOptions(tmp_path, BenchSettings(), *files)) == 0
    assert "810 tok/s" in capsys.readouterr().out
    content = json.loads(files[0].read_text())
    assert content["complete"]
    assert len(content["figures"]) == 7
    assert files[1].read_text().startswith("<svg")


STOPPED = (KeyboardInterrupt(), 130, "exlchat: stopped; this is what was measured until then\n")
FAILED = (ModelError("no memory for 128 more tokens"), 1, "exlchat: no memory for 128 more tokens\n")


@pytest.mark.parametrize("early_end", [STOPPED, FAILED])
def test_an_early_end_still_prints_what_there_is(
    early_end: tuple[BaseException, int, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    end, code, said = early_end
    scripted(monkeypatch, RESULTS[:5], end)
    file = tmp_path / "out.json"
    assert run_bench(BenchOptions(tmp_path, BenchSettings(), file)) == code
    printed = capsys.readouterr()
    assert "810 tok/s" in printed.out
    assert "turn of" not in printed.out
    assert printed.err == said
    assert not json.loads(file.read_text())["complete"]


def test_nothing_measured_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(monkeypatch, [], ModelError("no such device"))
    assert run_bench(BenchOptions(tmp_path, BenchSettings())) == 1
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_file_that_cannot_be_written_is_said_before_measuring(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(monkeypatch, [], AssertionError("measured"))
    assert cli.main(["bench", option, str(tmp_path / "none" / "file")]) == 1
    assert "none is missing or may not be written" in capsys.readouterr().err
    assert cli.main(["bench", option, str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"exlchat: {tmp_path}: is a folder; give the name of a file\n"


def test_a_plot_without_pygal_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(monkeypatch, [], AssertionError("measured"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert cli.main(["bench", "--plot", str(tmp_path / "out.svg")]) == 1
    assert capsys.readouterr().err == (
        "exlchat: --plot needs the package pygal; install it with: pip install 'exlchat[plot]'\n"
    )


def test_a_folder_that_is_there_is_not_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for there in (tmp_path, tmp_path / "file"):
        assert cli.main(["bench", "--shape", "tiny", "--write", str(there)]) == 1
        said = capsys.readouterr().err
        assert said == f"exlchat: {there}: is there already; give a new folder for the random model\n"
