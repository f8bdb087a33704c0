"""`%%pure` and `%%jit`: a cell of torch code as one XLA program."""

from __future__ import annotations

import difflib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class, output_can_be_silenced
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.core.magics.execution import TimeitResult
from IPython.display import display

from jaxtorch.capture.cells.code import CellCode
from jaxtorch.capture.cells.interface import UNNAMED, CellOptions, CellOutcome
from jaxtorch.capture.cells.program import CellProgram
from jaxtorch.capture.errors import CaptureError
from jaxtorch.insight.timing import repeated
from jaxtorch.widgets.target import fit_view

from . import elsewhere
from .cells import uncommented
from .ran import noting_runs, shown_of
from .report import cell_error, read_cell, report, show_from_cell

OPTIONS = (
    "--name", "--static", "--no-grad", "--donate", "--precision", "--target", "--time", "-q",
)  # fmt: skip
PRECISIONS = ("default", "high", "highest")
_MOST_CELLS = 64  # number of cells whose programs are kept


def _options(function: Any) -> Any:
    """The options of both magics."""
    for decorate in (
        argument("-q", "--quiet", action="store_true", help="do not print the line about tracing"),
        argument(
            "--time",
            action="store_true",
            help="run the cell repeatedly and print the time, like %%timeit",
        ),
        elsewhere.target_argument(f"{elsewhere.HELP}; each of several has a report"),
        argument(
            "--precision",
            choices=PRECISIONS,
            help="precision of matrix products and convolutions, as in jaxtorch.config(matmul_precision=...)",
        ),
        argument(
            "--donate",
            nargs="+",
            default=[],
            metavar="NAME",
            help="tensors to donate: their memory may be reused, and their names are deleted unless the cell sets them",
        ),
        argument("--no-grad", action="store_true", help="record no gradients"),
        argument(
            "--static",
            nargs="+",
            default=[],
            metavar="NAME",
            help="tensors whose values are compiled into the program: the cell may branch on them, "
            "and is retraced when they change",
        ),
        argument("--name", default=UNNAMED, help="name of the program in profiles and listings"),
    ):
        function = decorate(function)
    return function


@magics_class
class CellMagics(Magics):
    """The cell magics that `%load_ext jaxtorch` adds."""

    def __init__(self, shell: Any = None, **kwargs: Any):
        super().__init__(shell, **kwargs)
        self._programs: OrderedDict[Any, CellProgram] = OrderedDict()

    @output_can_be_silenced
    @cell_magic
    @magic_arguments()
    @_options
    def pure(self, line: str, cell: str) -> Any:
        """Compile the cell's torch code into one XLA program, with its gradient.

        The cell is traced once for each shape, dtype and state of its inputs; after that, running the cell runs the
        compiled program. Names are assigned as usual, and `loss.backward()` in the next cell fills `.grad`. If a
        function is redefined, or a constant or a module changes, the cell is retraced, and the reason is printed.

        Its only side effects may be writes to module buffers (running statistics) and random numbers. For a
        training step with its optimizer, use %%jit.

        %%pure
        logits = model(images)
        loss = F.cross_entropy(logits, labels)
        """
        return self._run("pure", line, cell)

    @output_can_be_silenced
    @cell_magic
    @magic_arguments()
    @_options
    def jit(self, line: str, cell: str) -> Any:
        """Compile the cell's torch code, effects included, into one XLA program: a whole training step.

        Like %%pure, but the program also writes back everything that the cell changes: parameters, gradients,
        optimizer state, tensors in place. The Python code runs only while the cell is traced: print, append to lists
        and step schedulers in the next cell.

        %%jit
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        """
        return self._run("jit", line, cell)

    def _run(self, magic: str, line: str, cell: str) -> object:
        return self.run_below(f"%%{magic} {line}".rstrip(), magic, line, cell)

    def run_below(self, head: str, magic: str, line: str, cell: str) -> object:
        """Run a cell; its magic may also be below another one.

        Args:
            head: all lines above the code, as they were typed. Views and tracebacks show them.
            magic: "pure" or "jit".
            line: its options.
            cell: the code.
        """
        arguments = _parsed(getattr(self, magic), line)
        options = CellOptions(
            magic == "jit",
            arguments.name,
            tuple(arguments.static),
            arguments.no_grad,
            tuple(arguments.donate),
            arguments.precision,
        )
        shell = self.shell
        assert shell is not None
        code = read_cell(shell, head, cell)
        self._check_names(magic, options, code, shell.user_ns)
        program = self._program(cell, options, shell.user_ns)

        def once() -> CellOutcome:
            try:
                return program.run(code)
            except CaptureError as error:
                raise cell_error(error, code) from None
            except Exception as error:
                show_from_cell(shell, error, code)
                raise

        targets = list(dict.fromkeys(arguments.target))
        elsewhere.check_targets(targets)
        with noting_runs() as ran:
            outcome = once()
        if not arguments.quiet:
            print(report(magic, outcome))
        if arguments.time:
            print(_timed(once))
        if targets and (info := shown_of(ran)) is not None:
            for compiled in elsewhere.compiled_for(info, targets):
                display(fit_view(compiled))
        return outcome.shown

    def _check_names(
        self, magic: str, options: CellOptions, code: CellCode, names: dict[str, Any]
    ) -> None:
        for option, named in (("static", options.static), ("donate", options.donate)):
            for name in named:
                if name not in code.reads:
                    hint = _hint(name, code.reads)
                    raise UsageError(
                        f"%%{magic} --{option} {name}: the cell does not read `{name}`.{hint}"
                    )
                if option == "donate" and not isinstance(names.get(name), torch.Tensor):
                    raise UsageError(f"%%{magic} --donate {name}: `{name}` is not a tensor.")

    def _program(self, cell: str, options: CellOptions, names: dict[str, Any]) -> CellProgram:
        key = cell, options
        program = self._programs.pop(key, None) or CellProgram(names, options)
        self._programs[key] = program
        if len(self._programs) > _MOST_CELLS:
            self._programs.popitem(last=False)
        return program


def _parsed(magic: Any, line: str) -> Any:
    """Parse the options on a magic's line. An unknown option raises an error that suggests the nearest one."""
    name = f"%%{magic.__name__}"
    parsed, unparsed = magic.parser.parse_argstring(uncommented(line), partial=True)
    for text in unparsed:
        if text.startswith("-"):
            raise UsageError(f"{name} has no option {text}.{_hint(text, list(OPTIONS))}")
        raise UsageError(
            f"{name} takes only options on its line, not {text!r}; the code goes on the lines below."
        )
    return parsed


def _hint(given: str, choices: list[str]) -> str:
    near = difflib.get_close_matches(given, choices, 1, 0.3)
    return f" The nearest is {near[0]}." if near else ""


def _timed(run: Callable[[], object]) -> TimeitResult:
    """The time of a run, printed as `%timeit` prints it. Each measurement waits for the device."""
    measured = repeated(run)
    best, worst = min(measured.seconds), max(measured.seconds)
    totals = list(measured.totals)
    return TimeitResult(measured.loops, len(totals), best, worst, totals, 0.0, 3)
