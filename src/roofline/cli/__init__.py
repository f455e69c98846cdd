"""The command line: `roofline COMMAND ...`. Each command is one module, imported when it runs."""

from __future__ import annotations

import gc
import sys
from importlib import import_module

import click

from roofline import __version__
from roofline.errors import RooflineError

# command -> (module, one-line help): listed without importing what a command needs
COMMANDS = {
    "estimate": ("estimate", "How fast, how large and how dear one deployment is, and why."),
    "sweep": ("sweep", "Any set of inputs as lists: millions of points, the best, the frontier, files."),
    "plan": ("plan", "The cheapest fleet that serves a traffic within latency objectives, and why."),
    "levers": ("levers", "What would help most: every technique as a what-if, and what +10 % of each part brings."),
    "compare": ("compare", "Lay predictions beside the files that benchmarks and engines write."),
    "speculate": ("speculate", "Does speculative decoding pay, with how many drafts, and up to which batch."),
    "simulate": ("simulate", "Replay requests one by one: percentiles, queues, cache hits, preemptions."),
    "plot": ("plot", "Draw one figure: roofline, waterfall, regimes, memory, frontier, cost and more."),
    "report": ("report", "Write one self-contained page: answer, evidence, figures, tables, sources."),
    "explore": ("explore", "Move sliders in the browser: roofline, memory, frontier and cost follow."),
    "list": ("library", "List the hardware, models, engines or formats that are known."),
    "show": ("library", "Show one hardware, model or engine spec with its sources."),
    "import": ("library", "Turn a Hugging Face config.json (or GGUF) into a model spec in YAML."),
    "measure": ("measure", "Time real kernels and whole models on the device at hand."),
    "calibrate": ("calibrate", "Fit the constants of the cost model to measurements."),
    "validate": ("validate", "Predict measured tables and print the errors."),
    "completion": ("completion", "Print the script that completes commands and options in your shell."),
}


class Lazy(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = import_module(f"roofline.cli.{COMMANDS[name][0]}")
        return getattr(module, f"{name}_command")

    def resolve_command(self, ctx, args):
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS and not ctx.resilient_parsing:
            from roofline.errors import UnknownNameError

            raise UnknownNameError("command", name, list(COMMANDS), "see 'roofline --help'")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="roofline")
def cli() -> None:
    """How fast, how large and how dear an LLM will be to serve on given hardware, and why.

    \b
    Try:  roofline estimate
          roofline estimate llama-3.1-70b --hw h100-sxm --tp 4 --isl 2000 --osl 500 --concurrency 32
          roofline list hardware
    """


def main(args: list[str] | None = None) -> None:
    """Run the command line; exit with 2 and one clear message on anything that a user can cause."""
    gc.set_threshold(100_000)  # what a command makes it mostly keeps: looking for garbage took a tenth of its time
    try:
        status = cli.main(args=args, standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except RooflineError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
