"""The command `tinymlx`. A subcommand's module is imported only when that subcommand runs."""

import importlib
import importlib.util
import os
import sys

import click

from tinymlx import __version__
from tinymlx.errors import UserError

# Name -> line in the help. The module is tinymlx/cli/<name>.py, its click command is called `command`.
COMMANDS = {
    "chat": "Talk with a model.",
    "generate": "Answer one prompt.",
    "convert": "Quantise or dequantise a model.",
    "doctor": "Look at this machine: what runs, how fast, what is missing.",
    "learn": "Do the course: write parts of this engine and run them in it.",
    "kernels": "List our Metal kernels and check them here.",
    "bench": "Measure memory bandwidth and draw a roofline.",
}


class LazyGroup(click.Group):
    """Knows its subcommands by name, so that `--help` costs no import of theirs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if importlib.util.find_spec(f"tinymlx.cli.{name}")]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        return importlib.import_module(f"tinymlx.cli.{name}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tinymlx", message="%(prog)s %(version)s")
def group() -> None:
    """Run, serve and fine-tune Qwen3 in unified memory."""


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits: 0 done, 1 error, 2 wrong usage, 130 interrupted.

    With TINYMLX_DEBUG=1 an error shows where it was raised.
    """
    _mend_streams()
    try:
        status = group.main(arguments, prog_name="tinymlx", standalone_mode=False)
        sys.stdout.flush()  # here, where a closed pipe can still be handled
    except UserError as error:
        status = _fail(str(error))
    except ImportError as error:
        if not (error.name or "").startswith("mlx") and "libmlx" not in str(error):
            raise
        act = "on Linux install exactly one of the extras cpu, cuda12 and cuda13"
        status = _fail(f"MLX cannot be loaded ({error}); {act}")
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except click.Abort as abort:  # click raises it for Ctrl-C, and where an answer was asked for and the input ended
        status = 130 if isinstance(abort.__cause__, KeyboardInterrupt) else 1
    except BrokenPipeError:  # the reader has left, as in `tinymlx ... | head`
        _silence_stdout()
        status = 1
    except MemoryError:
        status = _fail("not enough memory; close other programs, or take a smaller model or context")
    except OSError as error:
        _silence_stdout()
        status = _fail(
            f"reading or writing failed: {error.filename or 'standard input or output'}: {error.strerror or error}"
        )
    sys.exit(status if isinstance(status, int) else 0)


def _mend_streams() -> None:
    """A closed stream becomes the null device, so that nothing else is opened under its number; odd characters are replaced."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
            setattr(sys, name, open(number, mode, closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows what it can


def _silence_stdout() -> None:
    """So that the flush at exit is quiet too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(line: str) -> int:
    if os.environ.get("TINYMLX_DEBUG") == "1":
        raise  # noqa: PLE0704 (called while an error is being handled)
    click.echo("error: " + " ".join(line.split()), err=True)
    return 1
