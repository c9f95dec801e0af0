"""What every script does before its other imports, which take seconds."""

import signal
import sys
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[1]
OWN_FOLDERS = ("configs", "lra_tasks", "nystromformer", "scripts")


def prepare() -> None:
    """Lets Ctrl-C end the process, puts the folder of scripts/ first on the path.

    Ctrl-C would end an import with a traceback. The folder has the package and the
    configs that belong to the scripts; an installed package may be of another place. A
    package that is not installed becomes an error in one line.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.path.insert(0, str(ROOT))
    sys.excepthook = _report


def _report(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Says which extras a script needs; shows the traceback of any other error."""
    if not (isinstance(error, ModuleNotFoundError) and _is_of_extras(error, trace)):
        sys.__excepthook__(kind, error, trace)
        return
    print(
        f"error: {Path(sys.argv[0]).name} needs `pip install '.[train,report]'` in the "
        f"folder of nystromformer-jax: {error}",
        file=sys.stderr,
    )
    sys.exit(2)


def _is_of_extras(error: ModuleNotFoundError, trace: TracebackType | None) -> bool:
    """Returns whether a file of this project has imported a package that is not there.

    What a user's own module or another package lacks, no extra would bring.
    """
    name = str(error.name).partition(".")[0]
    if trace is None or name in OWN_FOLDERS or name in sys.stdlib_module_names:
        return False
    while trace.tb_next:
        trace = trace.tb_next
    file = Path(trace.tb_frame.f_code.co_filename).resolve()
    return any(ROOT / folder in file.parents for folder in OWN_FOLDERS)
