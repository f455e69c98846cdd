"""The command line: every command explains itself; whatever is wrong gives one message and exit code 2."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roofline.cli import COMMANDS, cli, main
from roofline.cli.options import TOKENS
from roofline.errors import InputError, RooflineError
from roofline.estimates import estimate


def process(*args: str, **more) -> subprocess.CompletedProcess:
    """`python -m roofline` with these arguments."""
    command = [sys.executable, "-m", "roofline", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **more)


def run(*args: str):
    """(exit code, standard output, standard error) of `main` in this process."""
    import contextlib
    import io

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
        main(list(args))
    return left.value.code, out.getvalue(), err.getvalue()


def commands(group: click.Group = cli, path: tuple[str, ...] = ()):
    """Every command with its subcommands, by path."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


EVERY = dict(commands())


# -- help


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_command_explains_itself(path):
    code, out, err = run(*path, "--help")
    assert code == 0 and err == ""
    assert out.startswith("Usage: ")
    command = EVERY[path]
    assert command.help and len(command.help.split()) >= 4
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, f"{' '.join(path)}: {parameter.opts} has no help"
    assert all(len(line) <= 116 for line in out.splitlines()), "fits a terminal"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_teaches_by_example(name):
    _, out, _ = run(name, "--help")
    assert re.search(rf"roofline {name}\b", out.partition("\n")[2]), "an example that can be copied"


def examples():
    """The commands that the help texts show, as far as they are quick and need nothing else."""
    found = []
    for path, command in EVERY.items():
        text = (command.help or "").replace("\\\n", " ")
        for line in re.findall(r"^\s*(?:\w+:\s+)?(roofline [^\n#]+)", text, re.MULTILINE):
            if path[0] in ("estimate", "list", "show", "completion", "simulate"):
                found.append(line.strip())
    return list(dict.fromkeys(found))


NEEDS = re.compile(r"\S+\.(json|yaml|csv|jsonl|html)\b|>")  # a file that the reader has


@pytest.mark.parametrize("line", [e for e in examples() if not NEEDS.search(e)])
def test_examples_run(line):
    code, out, err = run(*shlex.split(line)[1:])
    assert code == 0, err
    assert out.strip()


def test_no_command_is_help_and_module_runs():
    found = process("--help")
    assert found.returncode == 0
    for name in COMMANDS:
        assert re.search(rf"^  {name}\s", found.stdout, re.MULTILINE), name
    assert re.fullmatch(r"roofline, version \d+\.\d+\S*\n", process("--version").stdout)


# -- one message


WRONG = [
    ("nosuch",), ("estimat",), ("--nosuch",), ("estimate", "llama-3.1-9000b"), ("estimate", "--hw", "h100sxm"),
    ("estimate", "--nosuch"), ("estimate", "--tp", "two"), ("estimate", "--tp", "0"), ("estimate", "--tp", "-1"),
    ("estimate", "--tp", "3"), ("estimate", "--tp", "99999999999999999999"), ("estimate", "--pp", "1000"),
    ("estimate", "--isl", "nan"), ("estimate", "--isl", "inf"), ("estimate", "--isl", "-5"), ("estimate", "--isl", "0"),
    ("estimate", "--isl", "1e300"), ("estimate", "--isl", "ten"), ("estimate", "--osl", "nan"),
    ("estimate", "--batch", "nan"), ("estimate", "--batch", "-3"),
    ("estimate", "--concurrency", "inf"), ("estimate", "--rate", "-1"),
    ("estimate", "--rate", "1", "--batch", "2"), ("estimate", "--cached", "99999"), ("estimate", "--price", "free"),
    ("estimate", "--price", "-1"), ("estimate", "--price", "nan"), ("estimate", "--weights", "fp7"),
    ("estimate", "--kv", "fp7"), ("estimate", "--engine", "nosuch"), ("estimate", "--specs", "/no/such/folder"),
    ("estimate", "/no/such/config.json"), ("estimate", "--ops", "some"), ("estimate", ""), ("estimate", "a\x00b"),
    ("estimate", "é" * 300), ("list",), ("list", "nosuch"), ("show", "hardware", "nosuch"), ("show", "model", "nosuch"),
    ("show", "engine", "nosuch"), ("import", "/no/such/file.json"), ("completion", "powershell"), ("completion",),
    ("validate", "memory", "/no/such.csv"), ("simulate", "--rate", "nan"), ("simulate", "--isl", "9-1"),
    ("explore", "--port", "-1", "--no-open"), ("sweep", "--tp", "1,a"), ("sweep", "--tp", "1,2.5"),
    ("sweep", "--batch", "1:8*x"), ("sweep", "--where", "tpot_s<fast", "--concurrency", "1"),
    ("sweep", "--where", "hw<3", "--hw", "h100-sxm,l40s"), ("levers", "--hit-rate", "3"),
    ("levers", "--acceptance", "-1"), ("estimate", "--speculation", "eagle:3:9"),
]  # fmt: skip


@pytest.mark.parametrize("args", WRONG, ids=lambda a: " ".join(a)[:50].replace("\x00", "NUL"))
def test_what_is_wrong_gets_one_message(args):
    code, out, err = run(*args)
    assert code == 2
    assert "Traceback" not in err
    assert err.strip() and out == ""
    assert len(re.findall(r"(?im)^error: .{10,}", err)) == 1, err


@pytest.mark.parametrize(
    ("args", "nearest"),
    [
        (("estimat",), "estimate"), (("estimate", "llama3.1-8b"), "llama-3.1-8b"),
        (("estimate", "--hw", "h100sxm"), "h100-sxm"),
        (("estimate", "--engine", "vlm"), "vllm"), (("estimate", "--weights", "fp88"), "fp8"),
        (("show", "hardware", "mi300"), "mi300x"), (("simulate", "--knob", "max_seq=3"), "max_seqs"),
    ],
)  # fmt: skip
def test_the_nearest_name_is_offered(args, nearest):
    _, _, err = run(*args)
    assert f"'{nearest}'" in err


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("estimate", "--weights", "xyzzy"), "roofline list formats"),
        (("estimate", "--kv", "xyzzy"), "roofline list formats"),
        (("estimate", "xyzzy"), "roofline list models"),
        (("estimate", "--engine", "xyzzy"), "vllm; see 'roofline list engines'"),
        (("estimate", "--speculation", "xyzzy:3:0.5"), "ngram"),
        (("estimate", "--speculation", "eagle:3:9"), "9 is out of range; 3 drafts yield at most 4"),
        (("estimate", "--price", "xyzzy"), "price: 'xyzzy'"),
        (("sweep", "--metrics", "xyzzy"), "usd_per_mtok_output"),
        (("sweep", "--isl", "1:1e12"), "1:1e+12:STEP"),
        (("simulate", "--knob", "xyzzy=1"), "hold_steps"),
        (("simulate", "--isl", "xyzzy"), "isl: 'xyzzy'"),
    ],
)  # fmt: skip
def test_where_no_name_is_near_the_known_ones_are_said(args, told):
    _, _, err = run(*args)
    assert told in err


@pytest.mark.parametrize(
    "args",
    [
        ("simulate", "--out"), ("sweep", "--concurrency", "1:99", "--out"), ("report", "--out"), ("import", "x", "-o"),
        ("plan", "--report"), ("explore", "--export"), ("plot", "roofline", "-o"), ("validate", "memory", "--out"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_written_is_said_before_the_work(args, tmp_path, monkeypatch):
    import roofline.simulation

    monkeypatch.setattr(roofline.simulation, "simulate", lambda *_, **__: pytest.fail("simulated in vain"))
    code, out, err = run(*args, str(tmp_path / "nosuch" / "x.csv"))
    assert code == 2 and out == ""
    assert re.fullmatch(r"error: (out|report|export): '.*nosuch' is not a folder\n", err), err


@pytest.mark.parametrize(
    "args",
    [
        ("levers", "mistral-7b-v0.1", "--hw", "rtx-4090"), ("speculate", "mamba-2.8b", "--drafter", "ngram"),
        ("sweep", "mistral-7b-v0.1", "--hw", "rtx-4090", "--concurrency", "1,2", "--metrics", "usd_per_mtok_output"),
    ],
)  # fmt: skip
def test_json_has_null_where_a_number_is_not_known(args):
    """These devices have no price: JSON knows no NaN."""
    code, out, _ = run(*args, "--json")
    assert code == 0
    json.loads(out, parse_constant=lambda c: pytest.fail(f"{c} in the answer to {args}"))


@pytest.mark.parametrize(
    "args", [("nosuch",), ("estimate", "--isl", "nan"), ("estimate", "nosuch"), ("estimate", "--tp", "x")]
)
def test_real_processes_say_so_too(args):
    found = process(*args)
    assert found.returncode == 2
    assert found.stdout == ""
    assert "Traceback" not in found.stderr
    assert len(found.stderr.strip().splitlines()) <= 4  # click adds the usage to its own


def test_a_closed_pipe_is_no_error():
    command = f"{shlex.quote(sys.executable)} -m roofline list models | head -1"
    found = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in found.stderr
    assert found.stdout.count("\n") == 1


def test_a_config_that_is_no_config(tmp_path):
    for name, text in (("a.json", "{"), ("b.json", "[1]"), ("c.yaml", "a: [b"), ("d.json", "\x00"), ("e.gguf", "GGUF")):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        code, _, err = run("estimate", str(path))
        assert code == 2, name
        assert "Traceback" not in err and name in err, err


# -- the numbers are those of the library


def test_json_is_what_the_library_says():
    load = ("--isl", "2k", "--osl", "500", "--concurrency", "32")
    code, out, _ = run("estimate", "llama-3.1-70b", "--tp", "4", *load, "--json")
    assert code == 0
    told = json.loads(out)
    expected = estimate("llama-3.1-70b", "h100-sxm", tp=4, isl=2000, osl=500, concurrency=32)
    assert told["tpot_s"]["value"] == pytest.approx(expected.tpot_s.value, rel=1e-12)
    assert told["fits"] is True


def test_tables_are_csv():
    import io

    import pandas as pd

    code, out, _ = run("estimate", "--csv")
    assert code == 0
    frame = pd.read_csv(io.StringIO(out))
    assert set(frame["step"]) == {"prefill", "decode"}
    assert frame["time_s"].gt(0).all()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("2000", 2000), ("128k", 128_000), ("128Ki", 131_072), ("1_000", 1000), ("1,500", 1500), ("2m", 2e6)],
)
def test_tokens_have_suffixes(text, tokens):
    assert TOKENS.convert(text, None, None) == tokens


# -- anything at all

NUMBERS = st.one_of(
    st.integers(-10, 10**20).map(str),
    st.floats().map(repr),
    st.sampled_from(["1", "4", "8", "128k", "1Ki", "nan", "-inf", "1e308", "", " ", "0x10", "１２", "1e-320", "+5"]),
)
NAMES = st.one_of(
    st.sampled_from(["llama-3.1-8b", "mixtral-8x7b", "deepseek-r1", "gpt-oss-20b", "h100-sxm", "mi300x", "m3-max",
                     "vllm", "sglang", "ideal", "fp8", "bf16", "nvfp4", "q4_k_m", "auto", "int4_g64",
                     "0.5*fp8+0.5*bf16"]),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=12).filter(lambda t: "/" not in t),  # no Hub ids
)  # fmt: skip
OPTIONS = st.one_of(
    st.tuples(st.sampled_from(["--tp", "--pp", "--ep", "--dp", "--cp", "--isl", "--osl", "--cached", "--batch",
                               "--concurrency", "--rate", "--price"]), NUMBERS),
    st.tuples(st.sampled_from(["--hw", "--weights", "--kv", "--engine"]), NAMES),
)  # fmt: skip


@settings(max_examples=150, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(model=st.one_of(st.just("llama-3.1-8b"), NAMES), options=st.lists(OPTIONS, max_size=4), as_json=st.booleans())
def test_estimate_answers_or_refuses(model, options, as_json):
    """Whatever is typed: an answer that is finite, or a message; never another exception."""
    args = ["estimate", *(x for o in options for x in o), *(["--json"] if as_json else []), "--", model]
    found = CliRunner().invoke(cli, args, standalone_mode=False)
    if found.exception is not None:
        assert isinstance(found.exception, (RooflineError, click.ClickException)), (args, found.exception)
        assert str(found.exception).strip() or found.exception.format_message()
    elif as_json:
        told = json.loads(found.stdout, parse_constant=lambda c: pytest.fail(f"{c} in the answer to {args}"))
        assert told["tpot_s"]["low"] <= told["tpot_s"]["value"] <= told["tpot_s"]["high"]
        assert told["tpot_s"]["value"] > 0


@settings(max_examples=200, derandomize=True)
@given(text=st.text(max_size=20))
def test_tokens_are_a_number_or_a_message(text):
    try:
        assert isinstance(TOKENS.convert(text, None, None), float)
    except InputError as error:
        assert "e.g. 2000" in str(error)


# -- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_and_where_it_goes(shell):
    code, out, _ = run("completion", shell)
    assert code == 0
    assert f"_ROOFLINE_COMPLETE={shell}_complete" in out
    assert f"#   roofline completion {shell} > ~/" in out
    assert all(line.startswith("#") for line in out.splitlines()[:2])  # a comment: the output can be sourced


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_valid_for_its_shell(shell):
    import shutil

    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not at hand")
    _, out, _ = run("completion", shell)
    checked = subprocess.run([shell, "-n"], input=out, capture_output=True, text=True, timeout=30)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["sim"], "simulate"), (["estimate", "llama-3.1-8"], "llama-3.1-8b"),
        (["estimate", "--hw", "h200-s"], "h200-sxm"), (["estimate", "--engine", "sgl"], "sglang"),
        (["estimate", "--weights", "nvfp"], "nvfp4"),
        (["simulate", "--router", "least-l"], "least-loaded"), (["estimate", "--conc"], "--concurrency"),
    ],
)  # fmt: skip
def test_names_complete(typed, offered):
    from click.shell_completion import BashComplete

    completer = BashComplete(cli, {}, "roofline", "_ROOFLINE_COMPLETE")
    assert offered in [item.value for item in completer.get_completions(typed[:-1], typed[-1])]


def test_completion_of_nonsense_is_silent():
    from click.shell_completion import BashComplete

    completer = BashComplete(cli, {}, "roofline", "_ROOFLINE_COMPLETE")
    assert completer.get_completions(["nosuch", "--x"], "y") == []
    items = completer.get_completions(["estimate", "--specs", "/no/such/folder", "--hw"], "h1")
    assert [item.type for item in items] == ["file"]


def test_no_listed_name_is_cut():
    """What is listed in a pipe can be typed: every name, at any width of the terminal."""
    from roofline.specs.library import names

    _, out, _ = run("list", "hardware")
    assert set(names("hardware")) <= {line.split()[0] for line in out.splitlines() if line.strip()}
