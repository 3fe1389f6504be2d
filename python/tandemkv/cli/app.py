"""The verbs of the command line, and how their errors become an exit status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

import click

import tandemkv
from tandemkv.cli.names import in_option_names
from tandemkv.errors import BudgetError, TandemkvError

VERBS = ("plan", "replay", "cache", "chat", "bench", "env")
"""Each is a module of this package with a click command of the same name."""

OK, DOES_NOT_FIT, BAD_INPUT = 0, 1, 2


class LazyGroup(click.Group):
    """A group whose commands are imported on use, so that `plan` never loads what `env` needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs, in the order that `--help` lists them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name, or None."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = getattr(import_module(f"tandemkv.cli.{cmd_name}"), cmd_name)
        return command


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(tandemkv.__version__, prog_name="tandemkv")
@click.pass_context
def app(ctx: click.Context) -> None:
    """Plan and examine the KV cache of a model and its speculative draft."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(argv: Sequence[str] | None) -> int:
    """Run a verb; see `tandemkv.cli.main`. Errors that are no misuse pass through."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A bar or a file name that the terminal's encoding lacks is no reason to print nothing.
            stream.reconfigure(errors="replace")
    try:
        status = app.main(
            args=None if argv is None else list(argv), prog_name="tandemkv", standalone_mode=False
        )
    except (TandemkvError, click.ClickException, click.Abort, OSError) as error:
        print("error: " + " ".join(_message(error).split()), file=sys.stderr)
        return DOES_NOT_FIT if isinstance(error, BudgetError) else BAD_INPUT
    # Without standalone mode click hands back the status of `ctx.exit`, and what a verb returns.
    return status if isinstance(status, int) else OK


def _message(error: Exception) -> str:
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, click.Abort):
        return "interrupted"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return in_option_names(error)
